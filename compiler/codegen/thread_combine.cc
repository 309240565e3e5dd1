// How the threads of a block combine their partial reductions: shuffles within a warp, shared memory between
// warps, always in the same order.
#include <tuple>
#include <utility>

#include "compiler/codegen/thread_emitter.h"
#include "llvm/IR/IntrinsicsNVPTX.h"

namespace kiln {

// Every warp folds in halves, its first lane has the result; then all threads fold the warps' in order.
void ThreadEmitter::CombineThreads(const Accumulator& accumulator, v1::DType kept, llvm::Value** value,
                                   llvm::Value** position) {
  if (at_.stage->extents.empty() || at_.stage->has_scan) return;
  if (rows_ > 1) CombineRows(accumulator, kept, value, position);
  if (!chosen_.has_rows()) return;
  const bool arg = *position != nullptr;
  const auto fold = [&](llvm::Value* other, llvm::Value* other_position) {
    Fold(accumulator, kept, value, position, other, other_position);
  };
  const auto shuffle = [&](llvm::Intrinsic::ID id, llvm::Value* v, unsigned lane) {
    return v == nullptr ? nullptr : block_.Shuffle(id, v, lane);
  };
  for (unsigned distance = kWarp / 2; distance >= 1; distance /= 2) {
    const auto down = llvm::Intrinsic::nvvm_shfl_sync_down_i32;
    llvm::Value* other = block_.Shuffle(down, *value, distance);
    fold(other, shuffle(down, *position, distance));
  }
  if (threads_ == kWarp) {
    *value = block_.Shuffle(llvm::Intrinsic::nvvm_shfl_sync_idx_i32, *value, 0);
    *position = shuffle(llvm::Intrinsic::nvvm_shfl_sync_idx_i32, *position, 0);
    return;
  }
  // i1 has no shared memory form of its own.
  const bool is_bool = (*value)->getType()->isIntegerTy(1);
  llvm::Type* type = is_bool ? b_.getInt8Ty() : (*value)->getType();
  llvm::Type* i64 = b_.getInt64Ty();
  llvm::Value* slots = block_.SharedSlots(type, threads_ / kWarp, "partial");
  llvm::Value* positions = arg ? block_.SharedSlots(i64, threads_ / kWarp, "partial_position") : nullptr;
  const auto at = [&](llvm::Value* base, llvm::Type* element, llvm::Value* index) {
    return b_.CreateInBoundsGEP(element, base, {index});
  };
  llvm::Value* thread = block_.Thread();
  b_.If(b_.CreateICmpEQ(b_.CreateURem(thread, b_.I64(kWarp)), b_.I64(0)), "warp", [&] {
    llvm::Value* warp = b_.CreateUDiv(thread, b_.I64(kWarp));
    b_.CreateStore(is_bool ? b_.CreateZExt(*value, type) : *value, at(slots, type, warp));
    if (arg) b_.CreateStore(*position, at(positions, i64, warp));
  });
  block_.Barrier();
  for (unsigned warp = 0; warp < threads_ / kWarp; ++warp) {
    llvm::Value* other = b_.CreateLoad(type, at(slots, type, b_.I64(warp)));
    if (is_bool) other = b_.CreateTrunc(other, b_.getInt1Ty());
    llvm::Value* other_position = arg ? b_.CreateLoad(i64, at(positions, i64, b_.I64(warp))) : nullptr;
    if (warp == 0) {
      *value = other;
      *position = other_position;
    } else {
      fold(other, other_position);
    }
  }
}

// The rows within a warp fold by shuffles; then the first row folds the warps' and leaves the result for all.
// A warp holds whole rows, or a row whole warps.
void ThreadEmitter::CombineRows(const Accumulator& accumulator, v1::DType kept, llvm::Value** value,
                                llvm::Value** position) {
  const unsigned columns = PointsOfBlock(chosen_);
  const bool arg = *position != nullptr;
  const bool is_bool = (*value)->getType()->isIntegerTy(1);  // i1 has no shared memory form of its own
  llvm::Type* type = is_bool ? b_.getInt8Ty() : (*value)->getType();
  llvm::Type* i64 = b_.getInt64Ty();
  const auto fold = [&](llvm::Value* other, llvm::Value* other_position) {
    Fold(accumulator, kept, value, position, other, other_position);
  };
  for (unsigned distance = kWarp / 2; distance >= columns; distance /= 2) {
    const auto down = llvm::Intrinsic::nvvm_shfl_sync_down_i32;
    llvm::Value* other = block_.Shuffle(down, *value, distance);
    fold(other, arg ? block_.Shuffle(down, *position, distance) : nullptr);
  }
  const unsigned rows = columns < kWarp ? threads_ / kWarp : rows_;  // of partial results
  llvm::Value* slots = block_.SharedSlots(type, rows * columns, "row_partial");
  llvm::Value* positions = arg ? block_.SharedSlots(i64, rows * columns, "row_position") : nullptr;
  llvm::Value* thread = block_.Thread();
  llvm::Value* column = b_.CreateURem(thread, b_.I64(columns));
  const auto at = [&](llvm::Value* base, llvm::Type* element, llvm::Value* index) {
    return b_.CreateInBoundsGEP(element, base, {index});
  };
  const auto put = [&](llvm::Value* index) {
    b_.CreateStore(is_bool ? b_.CreateZExt(*value, type) : *value, at(slots, type, index));
    if (arg) b_.CreateStore(*position, at(positions, i64, index));
  };
  const auto get = [&](llvm::Value* index) {
    llvm::Value* v = b_.CreateLoad(type, at(slots, type, index));
    llvm::Value* p = arg ? b_.CreateLoad(i64, at(positions, i64, index)) : nullptr;
    return std::make_pair(is_bool ? b_.CreateTrunc(v, b_.getInt1Ty()) : v, p);
  };
  if (columns < kWarp) {
    llvm::Value* lane = b_.CreateURem(thread, b_.I64(kWarp));
    b_.If(b_.CreateICmpULT(lane, b_.I64(columns)), "warp", [&] {
      llvm::Value* warp = b_.CreateUDiv(thread, b_.I64(kWarp));
      put(b_.CreateNSWAdd(b_.CreateNSWMul(warp, b_.I64(columns)), lane));
    });
  } else {
    put(thread);
  }
  block_.Barrier();
  // In pairs: one after the other, a sum would round as often as there are rows.
  const auto folded = [&](auto&& self, unsigned first,
                          unsigned count) -> std::pair<llvm::Value*, llvm::Value*> {
    if (count == 1) return get(b_.CreateNSWAdd(column, b_.I64(int64_t{first} * columns)));
    auto [mine, mine_position] = self(self, first, count / 2);
    const auto [other, other_position] = self(self, first + count / 2, count - count / 2);
    Fold(accumulator, kept, &mine, &mine_position, other, other_position);
    return {mine, mine_position};
  };
  b_.If(b_.CreateICmpEQ(row_, b_.I64(0)), "fold", [&] {
    std::tie(*value, *position) = folded(folded, 0, rows);
    put(column);
  });
  block_.Barrier();
  std::tie(*value, *position) = get(column);
}

}  // namespace kiln
