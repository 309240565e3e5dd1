// A long row's maximum and the sum of its exponentials in one pass: each thread keeps the largest value so
// far and the sum scaled by it.
//
// Ownership: borrows all that it is made with. Threads: one. Errors: none.
#pragma once

#include <cstdint>

#include "compiler/codegen/thread_stages.h"

namespace kiln {

class ThreadSoftmax {
 public:
  ThreadSoftmax(KernelContext* context, LoopState* state, ThreadStages* stages, ThreadCombine* combine,
                ThreadBlock* block);

  // At the present point, in the place of the stage of the maximum, that of the sum and those between.
  void Emit();

 private:
  // What a thread has seen so far.
  struct Running {
    llvm::AllocaInst* largest;
    llvm::AllocaInst* sum;
  };
  void OnePass(const Running& running);
  void Add(llvm::Value* first_iteration, int64_t iterations, const Running& running);
  llvm::Value* Exp(llvm::Value* v) { return k_.math.Emit(b_, LoopOpcode::kExp, {v}); }

  KernelContext& k_;
  LoopState& at_;
  LoopBuilder& b_;
  ThreadStages& stages_;
  ThreadCombine& combine_;
  ThreadBlock& block_;
  const v1::ThreadSchedule& chosen_;
  const v1::SoftmaxSum& softmax_;
};

}  // namespace kiln
