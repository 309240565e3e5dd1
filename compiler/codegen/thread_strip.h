// Sums down the columns of rows that blocks take in strips: a strip's sums stay in registers from its first
// row to its last.
//
// Ownership: borrows all that it is made with. Threads: one. Errors: none.
#pragma once

#include "compiler/codegen/thread_points.h"

namespace kiln {

class ThreadStrip {
 public:
  // `sums`: of the schedule, without slots.
  ThreadStrip(KernelContext* context, LoopState* state, ThreadStages* stages, ThreadMemory* memory,
              ThreadBlock* block, ThreadPoints* points, StripSums* sums);

  // All rows of the kernel.
  void Emit();

 private:
  // An iteration of a sum of this thread's: its register, its first element's place in memory, with what is
  // known of that, and among the strip's columns.
  struct Iteration {
    const StripSum& sum;
    llvm::AllocaInst* slot;
    llvm::Value* pointer;
    llvm::Align align;
    llvm::Value* element;
  };
  void MakeSlots();
  void Strip(llvm::Value* begin, llvm::Value* end);
  void Combine(llvm::Value* begin, llvm::Value* warp);
  void LoadSums(llvm::Value* begin);
  void StoreSums(llvm::Value* begin);
  void ForSums(llvm::Value* begin, absl::FunctionRef<void(const Iteration&)> body);

  KernelContext& k_;
  LoopState& at_;
  LoopBuilder& b_;
  ThreadStages& stages_;
  ThreadMemory& memory_;
  ThreadBlock& block_;
  ThreadPoints& points_;
  StripSums& sums_;
  const v1::ThreadSchedule& chosen_;
};

}  // namespace kiln
