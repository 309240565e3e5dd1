// Transposed access on a GPU. Where loads run against the threads but along another outer loop, a block takes
// a square of the two loops: it reads the loads' elements along that loop into shared memory, and computes
// along the last loop from there. So both ways neighbouring threads touch neighbouring elements.
#include <utility>
#include <vector>

#include "compiler/codegen/thread_emitter.h"
#include "compiler/ir/dtypes.h"
#include "compiler/schedule/tile_threads.h"
#include "llvm/IR/IntrinsicsNVPTX.h"

namespace kiln {

void ThreadEmitter::EmitSharedTiles() {
  const uint32_t last = kernel_.outer_size() - 1, first = chosen_.tile().loop();
  const int64_t side = chosen_.tile().side();
  std::vector<llvm::Value*> extents = outer_extents_;
  for (const uint32_t loop : {first, last}) {
    extents[loop] = b_.CreateUDiv(b_.CreateNSWAdd(extents[loop], I64(side - 1)), I64(side), "tiles");
  }
  llvm::Value* tiles = I64(1);
  for (llvm::Value* extent : extents) tiles = b_.CreateNSWMul(tiles, extent);
  for (const v1::LoopOp* op : packable_) {
    const v1::DType dtype = kernel_.buffers(op->buffer()).dtype();
    const int64_t elements = side * TileRowElements(side, ir::ByteWidth(dtype));
    llvm::Type* type = llvm::ArrayType::get(MemoryType(dtype), static_cast<uint64_t>(elements));
    packed_[op] = {type, SharedSlots(MemoryType(dtype), static_cast<unsigned>(elements), "tile")};
  }
  ScalarLoop(Block(), tiles, Blocks(), "tile", [&](llvm::Value* number) {
    SetPoint(number, extents);
    EmitSharedTile(b_.CreateNSWMul(variables_[first], I64(side)),
                   b_.CreateNSWMul(variables_[last], I64(side)));
  });
  packed_.clear();
}

// Of a whole tile nothing is tested, and all loads of a thread are under way at once.
void ThreadEmitter::EmitSharedTile(llvm::Value* across, llvm::Value* along) {
  const v1::TileThreads& tile = chosen_.tile();
  const uint32_t last = kernel_.outer_size() - 1;
  llvm::Value* size = I64(tile.side());
  llvm::Value* whole =
      b_.CreateAnd(b_.CreateICmpSLE(b_.CreateNSWAdd(across, size), outer_extents_[tile.loop()]),
                   b_.CreateICmpSLE(b_.CreateNSWAdd(along, size), outer_extents_[last]), "whole");
  llvm::Value* thread = Thread();
  llvm::Value* column = b_.CreateURem(thread, size);
  llvm::Value* row = b_.CreateUDiv(thread, size);
  const int64_t step = threads_ / tile.side();
  bool every_turn = false;  // exists
  // A thread's turns, with the variables where `first` is the loop along which threads are neighbours.
  const auto turns = [&](uint32_t first, llvm::Value* first_start, uint32_t second, llvm::Value* second_start,
                         bool in_a_row, absl::FunctionRef<void(llvm::Value*)> body) {
    const auto turn = [&](llvm::Value* begin) {
      llvm::Value* own = b_.CreateNSWAdd(begin, row);
      variables_[first] = b_.CreateNSWAdd(first_start, column);
      variables_[second] = b_.CreateNSWAdd(second_start, own);
      if (every_turn) {
        body(own);
        return;
      }
      If(b_.CreateAnd(b_.CreateICmpSLT(variables_[first], outer_extents_[first]),
                      b_.CreateICmpSLT(variables_[second], outer_extents_[second])),
         "inside", [&] { body(own); });
    };
    if (every_turn && in_a_row) {
      for (int64_t begin = 0; begin < tile.side(); begin += step) turn(I64(begin));
    } else {
      ScalarLoop(I64(0), size, I64(step), "turn", turn);
    }
  };
  const auto in_tile = [&](const v1::LoopOp& op, llvm::Value* slot_row, llvm::Value* slot_column) {
    const int64_t width = ir::ByteWidth(kernel_.buffers(op.buffer()).dtype());
    return b_.CreateNSWAdd(b_.CreateNSWMul(slot_row, I64(TileRowElements(tile.side(), width))), slot_column);
  };
  const auto read = [&] {
    std::vector<std::pair<llvm::Value*, llvm::Value*>>
        elements;  // and their places: loads first, then stores
    const auto put = [&] {
      for (const auto& [element, place] : elements) b_.CreateStore(element, place);
      elements.clear();
    };
    turns(tile.loop(), across, last, along, true, [&](llvm::Value* turn) {
      for (const v1::LoopOp* op : packable_) {
        llvm::Type* type = MemoryType(kernel_.buffers(op->buffer()).dtype());
        llvm::Value* from = b_.CreateGEP(type, buffers_[op->buffer()], ScalarIndex(op->index()));
        llvm::Value* element = Annotate(b_.CreateLoad(type, from), op->buffer());
        const PackedTile& packed = packed_[op];
        llvm::Value* position = in_tile(*op, turn, column);
        elements.emplace_back(element, b_.CreateInBoundsGEP(packed.type, packed.slots, {I64(0), position}));
      }
      if (!every_turn) put();
    });
    put();
  };
  const auto compute = [&] {
    turns(last, along, tile.loop(), across, tile.in_a_row(), [&](llvm::Value* turn) {
      for (const v1::LoopOp* op : packable_) packed_[op].position = in_tile(*op, column, turn);
      EmitStages();
    });
  };
  const auto by_whole = [&](Body body) {
    Choose(
        whole,
        [&] {
          every_turn = true;
          body();
          every_turn = false;
        },
        body);
  };
  by_whole(read);
  Barrier();
  by_whole(compute);
  Barrier();
}

}  // namespace kiln
