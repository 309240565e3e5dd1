// How the threads of a block combine their partial reductions: shuffles within a warp, shared memory between
// warps, always in the same order.
//
// Ownership: borrows all that it is made with. Threads: one. Errors: none.
#pragma once

#include "compiler/codegen/reduce_emitter.h"
#include "compiler/codegen/thread_block.h"

namespace kiln {

// In a block of columns: this thread's part of a point that rows of threads share.
struct SharedPoint {
  llvm::Value* row = nullptr;
  llvm::Value* active = nullptr;  // does the point exist?
};

class ThreadCombine : public SharedReduction {
 public:
  ThreadCombine(KernelContext* context, LoopState* state, ThreadBlock* block, const SharedPoint* point);

  void CombineThreads(v1::ReduceKind kind, v1::DType kept, llvm::Value** value,
                      llvm::Value** position) override;

 private:
  void CombineBlock(v1::ReduceKind kind, v1::DType kept, llvm::Value** value, llvm::Value** position);
  void CombineRows(v1::ReduceKind kind, v1::DType kept, llvm::Value** value, llvm::Value** position);
  // By shuffles, in halves, down to `to` lanes.
  void FoldWarp(unsigned to, v1::ReduceKind kind, v1::DType kept, llvm::Value** value,
                llvm::Value** position);

  LoopState& at_;
  LoopBuilder& b_;
  ThreadBlock& block_;
  const SharedPoint& point_;
  const v1::ThreadSchedule& chosen_;
  const unsigned threads_;
  CombineEmitter combine_;
};

}  // namespace kiln
