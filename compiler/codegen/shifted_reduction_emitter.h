// Two reductions over a row in one pass, where the second depends on the first.
//
// A softmax subtracts a row's maximum before each exponential, so that none overflows; a variance is the sum
// of squares of what a row's mean is subtracted from. Either walks the row once for little else than to read
// it, from memory or the second-level cache. Any number nearby does as well, since
//   sum e^(x - m) = e^(g - m) sum e^(x - g)   and   sum (x - c)² = sum (x - g)² - d (2 sum (x - g) - n d), d
//   = c - g:
// the row's first vector gives an estimate g, and one pass sums up both and finds what m or c is on the way.
// Where m or c is so far from g that exponentials may have overflowed, or digits cancelled, the second pass
// runs after all. The row's own values decide all of it, so results don't depend on threads.
//
// What is special comes out as two passes have it. Rows of -inf have the second pass; infinities beside
// numbers have it too, or their sum is NaN at once; a mean that is infinite or NaN is taken to
// be 0.
//
// Ownership: borrows all that it is made with. Threads: one. Errors: none. Without a shifted reduction in the
// schedule every stage is emitted as it is.
#pragma once

#include "compiler/codegen/row_cache_emitter.h"
#include "compiler/codegen/stage_emitter.h"

namespace kiln {

class ShiftedReductionEmitter {
 public:
  ShiftedReductionEmitter(KernelContext* context, LoopState* state, StageEmitter* stages,
                          ReduceEmitter* reductions, RowCacheEmitter* cache);

  // The stage; with the first of the two reductions, all up to the second.
  void Stage(const StageInfo& info);
  bool IsDone(const StageInfo& info) const { return exists() && &info > first_ && &info <= second_; }

  // For who has the pass in a loop of its own:
  bool exists() const { return first_ != nullptr; }
  bool IsFirst(const StageInfo& info) const { return &info == first_; }
  // From the row's first vector: the estimate, which becomes the second stage's center.
  llvm::Value* Estimate();
  void Init(unsigned unroll);
  void Ops();  // in a loop along the row
  // After the pass from `origin`: what it reduced becomes what two passes have reduced, and the stages
  // between are emitted.
  void Settle(llvm::Value* origin);

 private:
  struct Settled {
    llvm::Value* misfit;  // whether the estimate is too far off
    llvm::Value* sum;
  };
  // `found`: of the first reduction, about the estimate, over `count` values in F64.
  Settled SettleSquares(llvm::Value* origin, llvm::Value* found, llvm::Value* count);
  Settled SettleExponentials(llvm::Value* origin, llvm::Value* unshift);

  KernelContext& k_;
  LoopState& at_;
  LoopBuilder& b_;
  StageEmitter& stages_;
  ReduceEmitter& reductions_;
  RowCacheEmitter& cache_;
  const v1::ShiftedReduction& shifted_;
  const StageInfo* first_ = nullptr;  // of the two stages
  const StageInfo* second_ = nullptr;
};

}  // namespace kiln
