// Software pipelining over rows.
//
// A kernel that walks a row several times is bound by memory in the first pass and by arithmetic in the
// others. Where those compute much (a softmax's exponentials), the passes of neighbouring rows share one
// loop: the first pass of one row, the second of the row before it, the third of the one before that. So
// memory traffic is even, and overlaps with arithmetic.
//
// A range of rows starts and ends with iterations in which some pass has no row of its own and is left out.
// The others then run one after the other: each pass of each row runs once, after the row's passes before it.
// (A result may take over an operand's memory, schedule/plan_memory.h: no row may be stored before it has
// been read.)
//
// What the last pass reads beside its row, alike for all rows (a layer norm's weights), would be driven out
// of the first-level cache before the next row asks for it. So where that is much, rows go in groups: while
// the rows of a group are walked for the first time, the results of the group before are made by blocks of
// columns, row after row in each block. The first passes go one by one, or, where the processor's own
// prefetching needs several rows in flight to keep memory busy, several side by side.
//
// Ownership: borrows all that it is made with. Threads: one. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compiler/codegen/shifted_reduction_emitter.h"

namespace kiln {

class RowPipelineEmitter {
 public:
  RowPipelineEmitter(KernelContext* context, LoopState* state, StageEmitter* stages,
                     ReduceEmitter* reductions, ShiftedReductionEmitter* shifted);

  // In the entry; `cache` says which ops are not emitted.
  void Enter(const RowCacheEmitter& cache);
  // Has the schedule a pipeline?
  bool exists() const { return !passes_.empty(); }
  void Rows(llvm::Value* lo, llvm::Value* hi);

 private:
  using Stages = std::vector<const StageInfo*>;
  // A stage that walks a row, and those of one point that follow it.
  struct RowPass {
    const StageInfo* stage = nullptr;
    Stages after;
  };
  // A row's value that a later pass uses, some iterations later.
  struct CarriedScalar {
    uint32_t op = 0;
    size_t pass = 0;  // that makes it
    // Its value of one iteration ago, of two, …; in groups the first is an array of two groups' values.
    std::vector<llvm::AllocaInst*> iterations;
    LaneValue made;  // in the present iteration
  };
  // A row of a group that is being computed beside others.
  struct RowOfGroup {
    llvm::Value* number = nullptr;  // in the group
    llvm::Value* origin = nullptr;
    std::vector<LaneValue> values;
    std::vector<Accumulator> accumulators;
  };

  bool IsShifted(const RowPass& pass) const { return shifted_.IsFirst(*pass.stage); }
  void PassStages(const Stages& stages);
  void InitPass(const RowPass& pass, unsigned unroll);
  void PassOps(const RowPass& pass);
  void FinishPass(const RowPass& pass, llvm::Value* origin);  // and the stages that follow it

  // Pass by pass: an iteration has a row of each.
  void Iteration(llvm::Value* iteration);
  void EdgeIteration(llvm::Value* iteration, llvm::Value* lo, llvm::Value* hi);
  void ShiftCarried(const CarriedScalar& carried);
  void TakeCarried(size_t pass, llvm::Value* row);

  // In groups.
  int64_t GroupRows() const { return schedule_.group_rows(); }
  int64_t BlockColumns() const { return schedule_.block_columns(); }
  void Groups(llvm::Value* lo, llvm::Value* hi);
  void Group(llvm::Value* begin);
  void EdgeGroup(llvm::Value* begin, llvm::Value* lo, llvm::Value* hi);
  std::vector<RowOfGroup> BeginRowsOfGroup(llvm::Value* begin, llvm::Value* number);
  void RowsOfGroup(llvm::Value* begin, llvm::Value* number);
  llvm::Value* CarriedOfGroup(const CarriedScalar& carried, llvm::Value* number);
  void TakeCarriedOfGroup(llvm::Value* number);
  void KeepCarriedOfGroup(llvm::Value* number);

  KernelContext& k_;
  LoopState& at_;
  LoopBuilder& b_;
  StageEmitter& stages_;
  ReduceEmitter& reductions_;
  ShiftedReductionEmitter& shifted_;
  const v1::RowPipeline& schedule_;
  Stages before_;  // the first pass
  std::vector<RowPass> passes_;
  std::vector<CarriedScalar> carried_;
};

}  // namespace kiln
