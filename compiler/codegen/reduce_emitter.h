// Reductions and scans. Lanes and unrolled copies have accumulators of their own, combined in a fixed order
// at the end of the stage; so a result depends on the kernel alone, never on the threads.
//
// A stage's accumulators are begun before its loops (Init) and finished behind them; between, its ops reduce
// into those of LoopState::copy. Stages that share a loop are begun together.
//
// Ownership: borrows all that it is made with. Threads: one. Errors: none.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/codegen/combine_emitter.h"
#include "compiler/codegen/loop_state.h"
#include "llvm/ADT/DenseMap.h"

namespace kiln {

struct Accumulator {
  uint32_t op = 0;
  v1::ReduceKind kind = v1::REDUCE_UNSPECIFIED;
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;  // of the value that is reduced
  bool widened = false;                     // kept in F64: schedule/long_sums.h
  llvm::AllocaInst* total = nullptr;        // of a widened one whose copies are not: what they were added to
  llvm::AllocaInst* lost = nullptr;         // of an F64 total: what its additions lost
  std::vector<llvm::AllocaInst*> value;     // one an unrolled copy
  std::vector<llvm::AllocaInst*> position;  // arg reductions only
  std::vector<llvm::Value*> untested;       // what an unrolled body's copies reduced, an even number
};

// Where threads share a stage's loop.
class SharedReduction {
 public:
  virtual ~SharedReduction() = default;

  // Makes the threads' partial results of a reduction one, which all of them get. `position`: of those that
  // give a position, else null.
  virtual void CombineThreads(v1::ReduceKind kind, v1::DType kept, llvm::Value** value,
                              llvm::Value** position) = 0;
};

class ReduceEmitter {
 public:
  // `shared`: nullptr, or how threads share loops.
  ReduceEmitter(KernelContext* context, LoopState* state, SharedReduction* shared);

  void Init(const StageInfo& info, unsigned unroll);
  void InitScans(const StageInfo& info);  // before each run of the innermost loop
  void Reduce(uint32_t id, const v1::LoopOp& op);
  LaneValue Scan(uint32_t id, const v1::LoopOp& op);
  void TestForNans();  // after the copies of an unrolled body
  // After an iteration of a loop of `count` elements: `done` of them came before it, `step` in it.
  void AddToTotals(llvm::Value* done, int64_t step, llvm::Value* count);
  // After a run of an innermost loop that others surround: what it has not added to totals itself.
  void AddRunToTotals(const StageInfo& info, unsigned unroll);
  void Finish(const StageInfo& info);

  // Of rows that are reduced beside each other, each has its own.
  void Swap(std::vector<Accumulator>* accumulators) { accumulators_.swap(*accumulators); }

 private:
  llvm::Type* AccumulatorType(const StageInfo& info, llvm::Type* scalar) const;
  void BeginTotal(const StageInfo& info, Accumulator* accumulator);
  llvm::Value* PositionInDomain();
  llvm::Value* Accumulate(Accumulator& accumulator, llvm::Value* sum, llvm::Value* value, bool exponential);
  bool HasTotals() const;
  void AddToTotal(const Accumulator& accumulator);
  void AddToTotalsIf(llvm::Value* due);
  void FoldLanes(const Accumulator& accumulator, v1::DType kept, llvm::Value** value, llvm::Value** position);
  LaneValue ResultOf(const Accumulator& accumulator);

  KernelContext& k_;
  LoopState& at_;
  LoopBuilder& b_;
  CombineEmitter combine_;
  SharedReduction* const shared_;
  llvm::DenseMap<uint32_t, uint32_t> summed_exponents_;  // by sum: the exponents of what it adds
  std::vector<Accumulator> accumulators_;                // of the stages being emitted
  llvm::AllocaInst* runs_ = nullptr;  // of the stage's innermost loop, where others surround it
};

}  // namespace kiln
