// Transposed access on a GPU. Where loads run against the threads but along another outer loop, a block takes
// a square of the two loops: it reads the loads' elements along that loop into shared memory, and computes
// along the last loop from there. So both ways neighbouring threads touch neighbouring elements.
#include <algorithm>
#include <utility>
#include <vector>

#include "compiler/codegen/thread_emitter.h"
#include "compiler/ir/dtypes.h"
#include "compiler/target/cost_model.h"
#include "llvm/IR/IntrinsicsNVPTX.h"

namespace kiln {
namespace {

constexpr int64_t kTileExtentMin = 16;  // of either loop: less leaves most of a tile empty
constexpr int64_t kBankBytes = 4;

// Rows a bank apart, so that a column lies in as many banks as it has rows.
int64_t RowElements(int64_t tile, int64_t bytes) { return tile + std::max<int64_t>(1, kBankBytes / bytes); }

}  // namespace

bool ThreadEmitter::ChooseSharedTile() {
  if (kernel_.outer_size() < 2 || HasAccumulatingStore(kernel_)) return false;
  const int64_t large = cost::LargeTilePoints(target_.machine);
  const int64_t points = PointsEstimate(large);
  if (points < cost::TilePointsMin(target_.machine)) return false;
  for (const StageInfo& info : stages_) {
    if (info.stage->inner_size() > 0) return false;
  }
  const uint32_t last = kernel_.outer_size() - 1;
  const auto is_long = [&](uint32_t loop) {
    return ConstantExpr(kernel_.outer(loop)).value_or(kUsualRow) >= kTileExtentMin;
  };
  if (!is_long(last)) return false;
  for (uint32_t loop = last; loop-- > 0 && packable_.empty();) {
    if (!is_long(loop)) continue;
    tile_loop_ = loop;
    FindTransposedLoads(loop);
  }
  if (packable_.empty()) return false;
  const bool large_fits = TileBytes(kTileMax) <= cost::LargeTileBytesMax(target_.machine);
  tile_ = points >= large && large_fits ? kTileMax : kTileMin;
  while (TileBytes(tile_) > target_.machine.gpu.shared_bytes_of_block) packable_.pop_back();
  threads_ = kTileThreads;
  return true;
}

int64_t ThreadEmitter::TileBytes(int64_t tile) const {
  int64_t sum = 0;
  for (const v1::LoopOp* op : packable_) {
    const int64_t width = ir::ByteWidth(kernel_.buffers(op->buffer()).dtype());
    sum += tile * RowElements(tile, width) * width;
  }
  return sum;
}

bool ThreadEmitter::TileFits(int64_t tile) const {
  return (tile == kTileMin || tile == kTileMax) && !packable_.empty() &&
         TileBytes(tile) <= target_.machine.gpu.shared_bytes_of_block;
}

// Those that read along `loop`, and what the kernel does not write.
void ThreadEmitter::FindTransposedLoads(uint32_t loop) {
  const uint32_t last = kernel_.outer_size() - 1;
  for (const v1::LoopOp* op : ops_) {
    if (op->args_size() > 0 || !IsSourceLoad(*op)) continue;
    const std::optional<int64_t> along = CoefficientOf(op->index(), last);
    if (along == 0 || along == 1 || CoefficientOf(op->index(), loop) != 1) continue;
    packable_.push_back(op);
  }
}

void ThreadEmitter::EmitSharedTiles() {
  const uint32_t last = kernel_.outer_size() - 1;
  std::vector<llvm::Value*> extents = outer_extents_;
  for (const uint32_t loop : {tile_loop_, last}) {
    extents[loop] = b_.CreateUDiv(b_.CreateNSWAdd(extents[loop], I64(tile_ - 1)), I64(tile_), "tiles");
  }
  llvm::Value* tiles = I64(1);
  for (llvm::Value* extent : extents) tiles = b_.CreateNSWMul(tiles, extent);
  for (const v1::LoopOp* op : packable_) {
    const v1::DType dtype = kernel_.buffers(op->buffer()).dtype();
    const int64_t elements = tile_ * RowElements(tile_, ir::ByteWidth(dtype));
    llvm::Type* type = llvm::ArrayType::get(MemoryType(dtype), static_cast<uint64_t>(elements));
    packed_[op] = {type, SharedSlots(MemoryType(dtype), static_cast<unsigned>(elements), "tile")};
  }
  ScalarLoop(Block(), tiles, Blocks(), "tile", [&](llvm::Value* number) {
    SetPoint(number, extents);
    EmitSharedTile(b_.CreateNSWMul(variables_[tile_loop_], I64(tile_)),
                   b_.CreateNSWMul(variables_[last], I64(tile_)));
  });
  packed_.clear();
}

// Of a whole tile nothing is tested, and all loads of a thread are under way at once.
void ThreadEmitter::EmitSharedTile(llvm::Value* across, llvm::Value* along) {
  const uint32_t last = kernel_.outer_size() - 1;
  llvm::Value* size = I64(tile_);
  llvm::Value* whole =
      b_.CreateAnd(b_.CreateICmpSLE(b_.CreateNSWAdd(across, size), outer_extents_[tile_loop_]),
                   b_.CreateICmpSLE(b_.CreateNSWAdd(along, size), outer_extents_[last]), "whole");
  llvm::Value* thread = Thread();
  llvm::Value* column = b_.CreateURem(thread, size);
  llvm::Value* row = b_.CreateUDiv(thread, size);
  const int64_t step = kTileThreads / tile_;
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
      for (int64_t begin = 0; begin < tile_; begin += step) turn(I64(begin));
    } else {
      ScalarLoop(I64(0), size, I64(step), "turn", turn);
    }
  };
  const auto in_tile = [&](const v1::LoopOp& op, llvm::Value* slot_row, llvm::Value* slot_column) {
    const int64_t width = ir::ByteWidth(kernel_.buffers(op.buffer()).dtype());
    return b_.CreateNSWAdd(b_.CreateNSWMul(slot_row, I64(RowElements(tile_, width))), slot_column);
  };
  const auto read = [&] {
    std::vector<std::pair<llvm::Value*, llvm::Value*>>
        elements;  // and their places: loads first, then stores
    const auto put = [&] {
      for (const auto& [element, place] : elements) b_.CreateStore(element, place);
      elements.clear();
    };
    turns(tile_loop_, across, last, along, true, [&](llvm::Value* turn) {
      for (const v1::LoopOp* op : packable_) {
        llvm::Type* type = MemoryType(kernel_.buffers(op->buffer()).dtype());
        llvm::Value* from = b_.CreateGEP(type, buffers_[op->buffer()], ScalarIndex(op->index()));
        llvm::Value* element = Annotate(b_.CreateLoad(type, from), op->buffer());
        const PackedTile& tile = packed_[op];
        llvm::Value* position = in_tile(*op, turn, column);
        elements.emplace_back(element, b_.CreateInBoundsGEP(tile.type, tile.slots, {I64(0), position}));
      }
      if (!every_turn) put();
    });
    put();
  };
  const bool cheap =
      std::all_of(stages_.begin(), stages_.end(), [](const StageInfo& info) { return info.cheap; });
  const auto compute = [&] {
    turns(last, along, tile_loop_, across, cheap, [&](llvm::Value* turn) {
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
