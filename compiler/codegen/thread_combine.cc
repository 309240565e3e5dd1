#include "compiler/codegen/thread_combine.h"

#include <tuple>
#include <utility>

#include "compiler/schedule/thread_walk.h"
#include "llvm/IR/IntrinsicsNVPTX.h"

namespace kiln {
namespace {

using Partial = std::pair<llvm::Value*, llvm::Value*>;  // a value, and its position where it has one

// Partial results in shared memory, where i1 has no form of its own.
class PartialSlots {
 public:
  PartialSlots(LoopBuilder* b, ThreadBlock* block, Partial like, unsigned count, const char* name,
               const char* position_name)
      : b_(*b),
        is_bool_(like.first->getType()->isIntegerTy(1)),
        type_(is_bool_ ? b->getInt8Ty() : like.first->getType()),
        values_(block->SharedSlots(type_, count, name)),
        positions_(like.second == nullptr ? nullptr
                                          : block->SharedSlots(b->getInt64Ty(), count, position_name)) {}

  void Put(llvm::Value* index, Partial partial) {
    b_.CreateStore(is_bool_ ? b_.CreateZExt(partial.first, type_) : partial.first, At(values_, type_, index));
    if (positions_ != nullptr) b_.CreateStore(partial.second, At(positions_, b_.getInt64Ty(), index));
  }

  Partial Get(llvm::Value* index) {
    llvm::Type* i64 = b_.getInt64Ty();
    llvm::Value* value = b_.CreateLoad(type_, At(values_, type_, index));
    llvm::Value* position = positions_ == nullptr ? nullptr : b_.CreateLoad(i64, At(positions_, i64, index));
    return {is_bool_ ? b_.CreateTrunc(value, b_.getInt1Ty()) : value, position};
  }

 private:
  llvm::Value* At(llvm::Value* base, llvm::Type* element, llvm::Value* index) {
    return b_.CreateInBoundsGEP(element, base, {index});
  }

  LoopBuilder& b_;
  const bool is_bool_;
  llvm::Type* const type_;
  llvm::Value* const values_;
  llvm::Value* const positions_;
};

}  // namespace

ThreadCombine::ThreadCombine(KernelContext* context, LoopState* state, ThreadBlock* block,
                             const SharedPoint* point)
    : at_(*state),
      b_(context->b),
      block_(*block),
      point_(*point),
      chosen_(context->kernel.schedule().threads()),
      threads_(chosen_.threads()),
      combine_(context) {}

void ThreadCombine::CombineThreads(v1::ReduceKind kind, v1::DType kept, llvm::Value** value,
                                   llvm::Value** position) {
  if (at_.stage->extents.empty() || at_.stage->has_scan) return;
  if (chosen_.has_columns() && chosen_.columns().rows() > 1) CombineRows(kind, kept, value, position);
  if (chosen_.has_rows()) CombineBlock(kind, kept, value, position);
}

void ThreadCombine::FoldWarp(unsigned to, v1::ReduceKind kind, v1::DType kept, llvm::Value** value,
                             llvm::Value** position) {
  const auto down = llvm::Intrinsic::nvvm_shfl_sync_down_i32;
  for (unsigned distance = kWarp / 2; distance >= to; distance /= 2) {
    llvm::Value* other = block_.Shuffle(down, *value, distance);
    llvm::Value* other_position = *position == nullptr ? nullptr : block_.Shuffle(down, *position, distance);
    combine_.Fold(kind, kept, value, position, other, other_position);
  }
}

// Every warp folds in halves, its first lane has the result; then all threads fold the warps' in order.
void ThreadCombine::CombineBlock(v1::ReduceKind kind, v1::DType kept, llvm::Value** value,
                                 llvm::Value** position) {
  FoldWarp(1, kind, kept, value, position);
  if (threads_ == kWarp) {
    const auto first = llvm::Intrinsic::nvvm_shfl_sync_idx_i32;
    *value = block_.Shuffle(first, *value, 0);
    if (*position != nullptr) *position = block_.Shuffle(first, *position, 0);
    return;
  }
  PartialSlots slots(&b_, &block_, {*value, *position}, threads_ / kWarp, "partial", "partial_position");
  llvm::Value* thread = block_.Thread();
  b_.If(b_.CreateICmpEQ(b_.CreateURem(thread, b_.I64(kWarp)), b_.I64(0)), "warp",
        [&] { slots.Put(b_.CreateUDiv(thread, b_.I64(kWarp)), {*value, *position}); });
  block_.Barrier();
  for (unsigned warp = 0; warp < threads_ / kWarp; ++warp) {
    const auto [other, other_position] = slots.Get(b_.I64(warp));
    if (warp == 0) {
      *value = other;
      *position = other_position;
    } else {
      combine_.Fold(kind, kept, value, position, other, other_position);
    }
  }
}

// The rows within a warp fold by shuffles; then the first row folds the warps' and leaves the result for all.
// A warp holds whole rows, or a row whole warps.
void ThreadCombine::CombineRows(v1::ReduceKind kind, v1::DType kept, llvm::Value** value,
                                llvm::Value** position) {
  const unsigned columns = PointsOfBlock(chosen_);
  FoldWarp(columns, kind, kept, value, position);
  const unsigned rows = columns < kWarp ? threads_ / kWarp : chosen_.columns().rows();  // of partial results
  PartialSlots slots(&b_, &block_, {*value, *position}, rows * columns, "row_partial", "row_position");
  llvm::Value* thread = block_.Thread();
  llvm::Value* column = b_.CreateURem(thread, b_.I64(columns));
  if (columns < kWarp) {
    llvm::Value* lane = b_.CreateURem(thread, b_.I64(kWarp));
    b_.If(b_.CreateICmpULT(lane, b_.I64(columns)), "warp", [&] {
      llvm::Value* warp = b_.CreateUDiv(thread, b_.I64(kWarp));
      slots.Put(b_.CreateNSWAdd(b_.CreateNSWMul(warp, b_.I64(columns)), lane), {*value, *position});
    });
  } else {
    slots.Put(thread, {*value, *position});
  }
  block_.Barrier();
  // In pairs: one after the other, a sum would round as often as there are rows.
  const auto folded = [&](auto&& self, unsigned first, unsigned count) -> Partial {
    if (count == 1) return slots.Get(b_.CreateNSWAdd(column, b_.I64(int64_t{first} * columns)));
    auto [mine, mine_position] = self(self, first, count / 2);
    const auto [other, other_position] = self(self, first + count / 2, count - count / 2);
    combine_.Fold(kind, kept, &mine, &mine_position, other, other_position);
    return {mine, mine_position};
  };
  b_.If(b_.CreateICmpEQ(point_.row, b_.I64(0)), "fold", [&] {
    std::tie(*value, *position) = folded(folded, 0, rows);
    slots.Put(column, {*value, *position});
  });
  block_.Barrier();
  std::tie(*value, *position) = slots.Get(column);
}

}  // namespace kiln
