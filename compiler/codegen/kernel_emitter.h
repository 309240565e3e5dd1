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
#include "compiler/codegen/reduce_emitter.h"
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
  // `failure`, `memory` and `shared`: nullptr, or a back-end's own.
  KernelEmitter(const v1::Kernel& kernel, const VectorTarget& target, llvm::Module* module,
                FailureEmitter* failure, MemoryEmitter* memory, SharedReduction* shared);

  // a back-end whose lanes are threads overrides what is virtual
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

  KernelContext k_;
  LoopState at_;
  LoopBuilder& b_ = k_.b;
  IndexEmitter index_{&k_, &at_};
  CpuFailure cpu_failure_{&k_.b, k_.module};
  OpEmitter ops_;
  VectorMemory vector_memory_{&k_, &at_, &index_};
  MemoryEmitter& memory_;
  ReduceEmitter reductions_;
  const v1::VectorSchedule& schedule_;  // empty where lanes are threads
  const v1::RowSchedule& rows_;         // likewise, and where vectors run along the outer loop

  llvm::Value* begin_ = nullptr;
  llvm::Value* end_ = nullptr;
  llvm::AllocaInst* kept_ = nullptr;  // the row cache
  std::optional<ShiftedStages> shifted_;
  RowPipeline pipeline_;
  std::vector<bool> skipped_;                // by op: nothing asks for it
  bool tiled_ = false;                       // the last two outer loops run in tiles
  std::vector<const v1::LoopOp*> packable_;  // loads that a tile turns round
  bool wraps_ = false;                       // sums and products of an index expression may
};

}  // namespace kiln
