// Maps the points of the outer loops to blocks, warps and threads, by the schedule's form. A point is one of
// the outer loops; of points for each thread it is a vector of them.
//
// Ownership: borrows all that it is made with. Threads: one. Errors: none.
#pragma once

#include <vector>

#include "compiler/codegen/thread_stages.h"

namespace kiln {

class ThreadPoints {
 public:
  // `point`: set where threads share points in rows.
  ThreadPoints(KernelContext* context, LoopState* state, ThreadStages* stages, ThreadMemory* memory,
               ThreadBlock* block, SharedPoint* point);

  // All that the kernel has: a block's, a warp's or a thread's each, or columns of a block.
  void Emit();

  // For blocks that take points otherwise. `extents`: of the outer loops, by which a point's number counts.
  llvm::Value* Count(llvm::ArrayRef<llvm::Value*> extents);
  void Point(llvm::Value* number, llvm::ArrayRef<llvm::Value*> extents);
  void SetPoint(llvm::Value* number, llvm::ArrayRef<llvm::Value*> extents);  // and nothing at it

 private:
  void Rows();
  void PointsOfThreads();
  void IterationsOfThreads(llvm::Value* points, llvm::ArrayRef<llvm::Value*> extents);
  void Columns();
  void Vector();
  std::vector<const StageInfo*> AllStages() const;

  KernelContext& k_;
  LoopState& at_;
  LoopBuilder& b_;
  ThreadStages& stages_;
  ThreadMemory& memory_;
  ThreadBlock& block_;
  SharedPoint& point_;
  const v1::ThreadSchedule& chosen_;
  const unsigned threads_;
};

}  // namespace kiln
