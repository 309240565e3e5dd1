// Transposed access on a GPU. Where loads run against the threads but along another outer loop, a block takes
// a square of the two loops: it reads the loads' elements along that loop into shared memory, and computes
// along the last loop from there. So both ways neighbouring threads touch neighbouring elements.
#include <utility>
#include <vector>

#include "compiler/codegen/thread_emitter.h"
#include "compiler/ir/dtypes.h"
#include "compiler/schedule/tile_threads.h"

namespace kiln {

// A square from `across` and `along` on, in its two loops.
class ThreadEmitter::SharedTile {
 public:
  SharedTile(ThreadEmitter* emitter, llvm::Value* across, llvm::Value* along)
      : e_(*emitter), tile_(emitter->chosen_.tile()), across_(across), along_(along) {}

  // Of a whole one nothing is tested, and all loads of a thread are in flight at once.
  void Emit();

 private:
  uint32_t last() const { return static_cast<uint32_t>(e_.k_.kernel.outer_size()) - 1; }

  void ByWhole(llvm::Value* whole, Body body);
  void Read();
  void Compute();
  // A thread's turns; neighbours are neighbours in the last loop, or in the first of the two.
  void EmitTurns(bool neighbours_in_last, bool in_a_row, absl::FunctionRef<void(llvm::Value*)> body);
  llvm::Value* Position(const v1::LoopOp& op, llvm::Value* row, llvm::Value* column);

  ThreadEmitter& e_;
  const v1::TileThreads& tile_;
  llvm::Value* across_;
  llvm::Value* along_;
  llvm::Value* column_ = nullptr;  // of this thread, in its first turn
  llvm::Value* row_ = nullptr;
  bool every_turn_ = false;  // exists
};

void ThreadEmitter::SharedTile::Emit() {
  llvm::Value* size = e_.b_.I64(tile_.side());
  const auto fits = [&](llvm::Value* begin, uint32_t loop) {
    return e_.b_.CreateICmpSLE(e_.b_.CreateNSWAdd(begin, size), e_.k_.outer_extents[loop]);
  };
  llvm::Value* whole = e_.b_.CreateAnd(fits(across_, tile_.loop()), fits(along_, last()), "whole");
  llvm::Value* thread = e_.block_.Thread();
  column_ = e_.b_.CreateURem(thread, size);
  row_ = e_.b_.CreateUDiv(thread, size);
  ByWhole(whole, [&] { Read(); });
  e_.block_.Barrier();
  ByWhole(whole, [&] { Compute(); });
  e_.block_.Barrier();
}

void ThreadEmitter::SharedTile::ByWhole(llvm::Value* whole, Body body) {
  e_.b_.Choose(
      whole,
      [&] {
        every_turn_ = true;
        body();
        every_turn_ = false;
      },
      body);
}

void ThreadEmitter::SharedTile::EmitTurns(bool neighbours_in_last, bool in_a_row,
                                          absl::FunctionRef<void(llvm::Value*)> body) {
  const uint32_t first = neighbours_in_last ? last() : tile_.loop();
  const uint32_t second = neighbours_in_last ? tile_.loop() : last();
  llvm::Value* first_begin = neighbours_in_last ? along_ : across_;
  llvm::Value* second_begin = neighbours_in_last ? across_ : along_;
  const auto turn = [&](llvm::Value* begin) {
    llvm::Value* own = e_.b_.CreateNSWAdd(begin, row_);
    e_.at_.variables[first] = e_.b_.CreateNSWAdd(first_begin, column_);
    e_.at_.variables[second] = e_.b_.CreateNSWAdd(second_begin, own);
    if (every_turn_) {
      body(own);
      return;
    }
    e_.b_.If(e_.b_.CreateAnd(e_.b_.CreateICmpSLT(e_.at_.variables[first], e_.k_.outer_extents[first]),
                             e_.b_.CreateICmpSLT(e_.at_.variables[second], e_.k_.outer_extents[second])),
             "inside", [&] { body(own); });
  };
  const int64_t step = e_.threads_ / tile_.side();
  if (every_turn_ && in_a_row) {
    for (int64_t begin = 0; begin < tile_.side(); begin += step) turn(e_.b_.I64(begin));
  } else {
    e_.b_.ScalarLoop(e_.b_.I64(0), e_.b_.I64(tile_.side()), e_.b_.I64(step), "turn", turn);
  }
}

llvm::Value* ThreadEmitter::SharedTile::Position(const v1::LoopOp& op, llvm::Value* row,
                                                 llvm::Value* column) {
  const int64_t width = ir::ByteWidth(e_.k_.BufferDType(op));
  return e_.b_.CreateNSWAdd(e_.b_.CreateNSWMul(row, e_.b_.I64(TileRowElements(tile_.side(), width))), column);
}

void ThreadEmitter::SharedTile::Read() {
  std::vector<std::pair<llvm::Value*, llvm::Value*>> elements;  // and their places: loads first, then stores
  const auto put = [&] {
    for (const auto& [element, place] : elements) e_.b_.CreateStore(element, place);
    elements.clear();
  };
  EmitTurns(/*neighbours_in_last=*/false, /*in_a_row=*/true, [&](llvm::Value* turn) {
    for (const v1::LoopOp* op : e_.packable_) {
      llvm::Type* type = e_.k_.MemoryType(e_.k_.BufferDType(*op));
      llvm::Value* from = e_.b_.CreateGEP(type, e_.k_.buffers[op->buffer()], e_.index_.Scalar(op->index()));
      llvm::Value* element = e_.memory_.Annotate(e_.b_.CreateLoad(type, from), op->buffer());
      const PackedTile& packed = e_.memory_.packed()[op];
      llvm::Value* position = Position(*op, turn, column_);
      elements.emplace_back(element,
                            e_.b_.CreateInBoundsGEP(packed.type, packed.slots, {e_.b_.I64(0), position}));
    }
    if (!every_turn_) put();
  });
  put();
}

void ThreadEmitter::SharedTile::Compute() {
  EmitTurns(/*neighbours_in_last=*/true, tile_.in_a_row(), [&](llvm::Value* turn) {
    for (const v1::LoopOp* op : e_.packable_) e_.memory_.packed()[op].position = Position(*op, column_, turn);
    e_.EmitStages();
  });
}

void ThreadEmitter::EmitSharedTiles() {
  const uint32_t last = k_.kernel.outer_size() - 1, first = chosen_.tile().loop();
  const int64_t side = chosen_.tile().side();
  std::vector<llvm::Value*> extents = k_.outer_extents;
  for (const uint32_t loop : {first, last}) {
    extents[loop] = b_.CreateUDiv(b_.CreateNSWAdd(extents[loop], b_.I64(side - 1)), b_.I64(side), "tiles");
  }
  llvm::Value* tiles = b_.I64(1);
  for (llvm::Value* extent : extents) tiles = b_.CreateNSWMul(tiles, extent);
  for (const v1::LoopOp* op : packable_) {
    const v1::DType dtype = k_.BufferDType(*op);
    const int64_t elements = side * TileRowElements(side, ir::ByteWidth(dtype));
    llvm::Type* type = llvm::ArrayType::get(k_.MemoryType(dtype), static_cast<uint64_t>(elements));
    memory_.packed()[op] = {
        type, block_.SharedSlots(k_.MemoryType(dtype), static_cast<unsigned>(elements), "tile")};
  }
  b_.ScalarLoop(block_.Number(), tiles, block_.Count(), "tile", [&](llvm::Value* number) {
    SetPoint(number, extents);
    SharedTile(this, b_.CreateNSWMul(at_.variables[first], b_.I64(side)),
               b_.CreateNSWMul(at_.variables[last], b_.I64(side)))
        .Emit();
  });
  memory_.packed().clear();
}

}  // namespace kiln
