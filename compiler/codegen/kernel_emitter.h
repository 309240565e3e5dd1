// Emits the LLVM IR of one loop kernel: explicit vectors along the scheduled dimension, masked tails.
// The class is one; its parts have a file each:
//   kernel_emitter.cc             entry, units, loop nests, stages
//   index_emitter.cc              index expressions: uniform, contiguous or per lane
//   memory_emitter.cc             loads and stores
//   prefetch_emitter.cc           nontemporal stores, reads ahead
//   row_cache_emitter.cc          values of a row that a later stage reads back
//   shifted_reduction_emitter.cc  two reductions of a row in one pass
//   row_pipeline_emitter.cc       passes over neighbouring rows in one loop
//   op_emitter.cc                 arithmetic, comparison, logic
//   convert_emitter.cc            casts
//   reduce_emitter.cc             reductions and scans
//   check_emitter.cc              index checks, integer division, failures
//   random_emitter.cc             Philox
// Math functions are in math.h.
// What is a choice is the schedule's (compiler/schedule/vector_schedule.h): the emitter obeys.
//
// Ownership: borrows the kernel and the module. Threads: one. Errors: UNIMPLEMENTED for what has no
// lowering; the kernel and its schedule are taken to be verified.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "compiler/codegen/cpu_failure.h"
#include "compiler/codegen/index_emitter.h"
#include "compiler/codegen/kernel_context.h"
#include "compiler/codegen/loop_state.h"
#include "compiler/codegen/op_emitter.h"
#include "compiler/codegen/vector_memory.h"
#include "compiler/ir/ops.h"
#include "kiln/v1/kernel.pb.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/IR/Module.h"

namespace kiln {

inline constexpr char kKernelEntryName[] = "kiln_kernel";

class KernelEmitter {
 public:
  KernelEmitter(const v1::Kernel& kernel, const VectorTarget& target, llvm::Module* module);
  KernelEmitter(const KernelEmitter&) = delete;
  KernelEmitter& operator=(const KernelEmitter&) = delete;
  virtual ~KernelEmitter() = default;

  // Adds the function kKernelEntryName to the module.
  absl::Status Emit();

 protected:
  // `failure` and `memory`: nullptr, or a back-end's own.
  KernelEmitter(const v1::Kernel& kernel, const VectorTarget& target, llvm::Module* module,
                FailureEmitter* failure, MemoryEmitter* memory);

  // a back-end whose lanes are threads overrides what is virtual
  struct Accumulator {
    uint32_t op = 0;
    v1::ReduceKind kind = v1::REDUCE_UNSPECIFIED;
    v1::DType dtype = v1::DTYPE_UNSPECIFIED;  // of the value that is reduced
    bool widened = false;                     // sums over long domains are kept in F64
    llvm::AllocaInst* total = nullptr;     // of a widened one whose copies are not: what they were added to
    llvm::AllocaInst* lost = nullptr;      // of an F64 total: what its additions lost
    std::vector<llvm::AllocaInst*> value;  // one an unrolled copy
    std::vector<llvm::AllocaInst*> position;  // arg reductions only
    std::vector<llvm::Value*> untested;       // what an unrolled body's copies reduced, an even number
  };
  // The two stages of the schedule's shifted reduction.
  struct ShiftedStages {
    const StageInfo* first = nullptr;
    const StageInfo* second = nullptr;
    llvm::AllocaInst* scale = nullptr;  // of a row's kept exponentials, where any are
  };
  // Stages that walk a row, and those of one point that follow each.
  struct RowPass {
    const StageInfo* stage = nullptr;
    std::vector<const StageInfo*> after;
  };
  // A value of a row that a later pass asks for, some turns later.
  struct CarriedScalar {
    uint32_t op = 0;
    size_t pass = 0;                       // that makes it
    std::vector<llvm::AllocaInst*> turns;  // its value of one turn ago, of two, …
    LaneValue made;                        // in the present turn
  };
  struct RowPipeline {
    std::vector<const StageInfo*> before;  // the first pass
    std::vector<RowPass> passes;           // none: rows are done one after the other
    std::vector<CarriedScalar> carried;    // in groups a value's first slot is an array of two groups' values
  };
  // A row of a group that is being computed beside others.
  struct RowOfGroup {
    llvm::Value* number = nullptr;  // in the group
    llvm::Value* origin = nullptr;
    std::vector<LaneValue> values;
    std::vector<Accumulator> accumulators;
  };
  using Body = CodeBody;

  // kernel_emitter.cc
  virtual void UseSchedule();
  virtual void EmitEntry();
  void EmitExtents();  // of all loops, and the slot that ends the entry
  virtual void EmitUnits();
  void EmitParallelRange(llvm::Value* lo, llvm::Value* hi);
  void EmitOuterFrom(uint32_t loop);
  void EmitOuterRange(uint32_t loop, llvm::Value* lo, llvm::Value* hi);
  virtual void EmitStages();
  void EmitStage(const StageInfo& info);
  virtual void EmitInnerFrom(const StageInfo& info, uint32_t level);
  // One inner loop of a stage that is not its vector loop.
  virtual void InnerLoop(const StageInfo& info, uint32_t level, absl::FunctionRef<void(llvm::Value*)> body);
  void EmitOps(const StageInfo& info);
  bool MayLoadFirst(const v1::LoopOp& op) const;
  void EmitOp(uint32_t id, const v1::LoopOp& op);
  virtual void EmitStore(const v1::LoopOp& op);
  virtual void VectorLoop(uint32_t variable, llvm::Value* lo, llvm::Value* hi, unsigned unroll, Body body);
  virtual unsigned Unroll(const StageInfo& info) const;  // of the stage's vector loop
  void MaskedVector(uint32_t variable, llvm::Value* i, llvm::Value* hi, Body body);

  // tile_emitter.cc
  void EmitTiles(uint32_t loop, llvm::Value* lo, llvm::Value* hi);
  void PackTile(const v1::LoopOp& op, llvm::Value* start, llvm::AllocaInst* slot);

  // row_cache_emitter.cc
  void UseRowCache();  // after the entry's start
  llvm::Value* KeptSlot();
  void KeepValue(uint32_t id);
  bool ReadKeptValue(uint32_t id);
  llvm::Value* KeptTimes(llvm::Value* factor);
  LaneValue EmitAboutShift(uint32_t id, const v1::LoopOp& op);

  // shifted_reduction_emitter.cc
  void UseShiftedReduction();  // after the row cache
  bool IsDoneShifted(const StageInfo& info) const;
  llvm::Value* EmitShift();
  void InitShifted(unsigned unroll);
  void EmitShiftedOps();
  void SettleShifted(llvm::Value* origin);
  void EmitShiftedStages();

  // row_pipeline_emitter.cc
  void UseRowPipeline();
  int64_t GroupRows() const { return rows_.pipeline().group_rows(); }
  int64_t BlockColumns() const { return rows_.pipeline().block_columns(); }
  void EmitPipeline(llvm::Value* lo, llvm::Value* hi);
  bool IsShifted(const RowPass& pass) const;
  void InitPass(const RowPass& pass, unsigned unroll);
  void EmitPassOps(const RowPass& pass);
  void FinishPass(const RowPass& pass, llvm::Value* origin);  // and the stages that follow it
  void EmitGroups(llvm::Value* lo, llvm::Value* hi);
  void EmitGroup(llvm::Value* begin);
  std::vector<RowOfGroup> BeginRowsOfGroup(llvm::Value* begin, llvm::Value* number);
  void EmitRowsOfGroup(llvm::Value* begin, llvm::Value* number);
  void EmitEdgeGroup(llvm::Value* begin, llvm::Value* lo, llvm::Value* hi);
  llvm::Value* CarriedOfGroup(const CarriedScalar& carried, llvm::Value* number);
  void TakeCarriedOfGroup(llvm::Value* number);
  void KeepCarriedOfGroup(llvm::Value* number);
  void EmitTurn(llvm::Value* turn);
  void EmitEdgeTurn(llvm::Value* turn, llvm::Value* lo, llvm::Value* hi);
  void EmitPassStages(const std::vector<const StageInfo*>& stages);
  void ShiftCarried(const CarriedScalar& carried);
  void TakeCarried(size_t pass, llvm::Value* row);

  // reduce_emitter.cc
  void InitAccumulators(const StageInfo& info, unsigned unroll);
  void FinishAccumulators(const StageInfo& info);
  // Combines a partial result of later elements into `value` (and `position`, which only positions have).
  void Fold(const Accumulator& accumulator, v1::DType kept, llvm::Value** value, llvm::Value** position,
            llvm::Value* other, llvm::Value* other_position);
  // Where threads share the stage's loop: makes their partial results one, which all of them get.
  virtual void CombineThreads(const Accumulator& accumulator, v1::DType kept, llvm::Value** value,
                              llvm::Value** position) {}
  virtual bool IsLongSumOfThreads(const StageInfo& info) const { return false; }  // likewise
  void InitScans(const StageInfo& info);
  bool HasTotals() const;
  void AddToTotal(const Accumulator& accumulator);
  void AddToTotals(llvm::Value* done, int64_t step, llvm::Value* count);
  void AddRunToTotals(const StageInfo& info, unsigned unroll);
  void AddToTotalsIf(llvm::Value* due);
  void TestForNans();  // after the copies of an unrolled body
  llvm::Value* Accumulate(Accumulator& accumulator, llvm::Value* sum, llvm::Value* value, bool exponential);
  void EmitReduce(uint32_t id, const v1::LoopOp& op);
  LaneValue EmitScan(uint32_t id, const v1::LoopOp& op);
  unsigned CopiesOf(const StageInfo& info, unsigned unroll) const;
  std::optional<int64_t> AdditionsOfRun(const StageInfo& info, unsigned unroll) const;
  bool LongSum(const StageInfo& info, const v1::LoopOp& op, unsigned unroll) const;
  llvm::Value* PositionInDomain();

  KernelContext k_;
  LoopState at_;
  LoopBuilder& b_ = k_.b;
  IndexEmitter index_{&k_, &at_};
  CombineEmitter combine_{&k_};
  CpuFailure cpu_failure_{&k_.b, k_.module};
  OpEmitter ops_;
  VectorMemory vector_memory_{&k_, &at_, &index_};
  MemoryEmitter& memory_;
  const v1::VectorSchedule& schedule_;  // empty where lanes are threads
  const v1::RowSchedule& rows_;         // likewise, and where vectors run along the outer loop

  llvm::Value* begin_ = nullptr;
  llvm::Value* end_ = nullptr;
  llvm::AllocaInst* kept_ = nullptr;  // the row cache
  std::optional<ShiftedStages> shifted_;
  RowPipeline pipeline_;
  llvm::DenseMap<uint32_t, uint32_t> summed_exponents_;  // by sum: the exponents of what it adds
  std::vector<bool> skipped_;                            // by op: nothing asks for it
  bool tiled_ = false;                                   // the last two outer loops run in tiles
  std::vector<const v1::LoopOp*> packable_;              // loads that a tile turns round
  bool wraps_ = false;                                   // sums and products of an index expression may
  std::vector<Accumulator> accumulators_;                // of the stages being emitted
  llvm::AllocaInst* runs_ = nullptr;  // of the stage's innermost loop, where others surround it
};

}  // namespace kiln
