// Stages of a GPU's kernel: threads share their loops as the schedule says.
//
// Loops of a known trip count are unrolled, so that their loads are in flight together. A stage may read what
// another thread stored in an earlier stage with other loops: barriers separate them.
//
// Ownership: borrows all that it is made with. Threads: one. Errors: as its parts.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/codegen/stage_emitter.h"
#include "compiler/codegen/thread_combine.h"
#include "compiler/codegen/thread_memory.h"

namespace kiln {

// A sum down the columns of a strip of rows, which stays in registers from its first row to its last.
struct StripSum {
  const StageInfo* info = nullptr;
  const v1::LoopOp* op = nullptr;        // the accumulating store
  std::vector<llvm::AllocaInst*> slots;  // by a thread's iteration
  llvm::Value* shared = nullptr;         // where the warps of a block have rows each
};
using StripSums = std::vector<StripSum>;  // empty: blocks take no strips

class ThreadStages : public StageEmitter {
 public:
  // `point`: of threads that share one in rows. `sums`: of the strip that is being emitted.
  ThreadStages(KernelContext* context, LoopState* state, OpEmitter* ops, ThreadMemory* memory,
               ReduceEmitter* reductions, ThreadCombine* combine, ThreadBlock* block,
               const SharedPoint* point, const StripSums* sums);

  // All of them, at the present point.
  void Stages();
  // Iterations that a block's threads share; neighbours take neighbouring ones. Where their number is known,
  // those that every thread has are unrolled without conditions, by `at_once` or all of them: a later stage
  // finds their values in registers.
  void Iterations(llvm::Value* thread, llvm::Value* count, unsigned at_once, LoopBody iteration);
  // Of this thread, where all iterations are unrolled.
  unsigned iteration() const { return iteration_; }

  void VectorLoop(uint32_t variable, llvm::Value* lo, llvm::Value* hi, unsigned unroll,
                  CodeBody body) override;

 protected:
  void InnerFrom(const StageInfo& info, uint32_t level) override;
  void InnerLoop(const StageInfo& info, uint32_t level, LoopBody body) override;
  LaneValue Load(const v1::LoopOp& op) override;
  void Store(const v1::LoopOp& op) override;

 private:
  void StagesInOrder();
  size_t StageOrSoftmax(size_t number);
  void IfFirstRow(CodeBody body);  // of threads that share a point
  void StoreOfSharedPoint(const v1::LoopOp& op);
  bool IsSharedPoint() const;  // where code is being emitted: all threads of a row run what has no loop
  // All inner loops of the stage as one, whose iterations the threads of the block share.
  void FlatLoops(const StageInfo& info);
  unsigned rows() const { return chosen_.has_columns() ? chosen_.columns().rows() : 1; }

  ThreadMemory& memory_;
  ThreadCombine& combine_;
  ThreadBlock& block_;
  const SharedPoint& point_;
  const StripSums& sums_;
  const v1::ThreadSchedule& chosen_;
  const unsigned threads_;
  bool in_first_row_ = false;  // in code of IfFirstRow
  // At a shared point, since threads last waited for each other.
  bool loaded_ = false, stored_ = false;
  unsigned iteration_ = 0;
};

}  // namespace kiln
