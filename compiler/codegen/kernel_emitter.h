// Emits the LLVM IR of one loop kernel for a CPU: explicit vectors along the scheduled dimension, masked
// tails. What is a choice is the schedule's (compiler/schedule/vector_schedule.h): emitters obey.
//
// It has the entry, the units and the outer loops, and is made of:
//   kernel_context, loop_state    what is emitted into, and where in the loops: what all of the others share
//   index, op, reduce             index expressions, the value of an op, reductions and scans
//   vector_memory, cpu_failure    loads and stores, failures of checks: a back-end's own
//   stage_emitter                 a stage's loops and its ops
//   row_cache, shifted_reduction, row_pipeline, tile    what a schedule may ask for besides
//
// Ownership: borrows the kernel, the target and the module. Threads: one. Errors: UNIMPLEMENTED for what has
// no lowering; the kernel and its schedule are taken to be verified.
#pragma once

#include "absl/status/status.h"
#include "compiler/codegen/cpu_failure.h"
#include "compiler/codegen/row_pipeline_emitter.h"
#include "compiler/codegen/tile_emitter.h"
#include "compiler/codegen/vector_memory.h"

namespace kiln {

inline constexpr char kKernelEntryName[] = "kiln_kernel";

class KernelEmitter {
 public:
  KernelEmitter(const v1::Kernel& kernel, const VectorTarget& target, llvm::Module* module);

  // Adds the function kKernelEntryName to the module. Once.
  absl::Status Emit();

 private:
  llvm::Function* Entry();
  void EnterParts();
  void Units(llvm::Value* begin, llvm::Value* end);
  void OuterFrom(uint32_t loop);
  void OuterRange(uint32_t loop, llvm::Value* lo, llvm::Value* hi);
  void Stages();

  KernelContext k_;
  LoopState at_;
  LoopBuilder& b_;
  IndexEmitter index_;
  CpuFailure failure_;
  OpEmitter ops_;
  VectorMemory memory_;
  ReduceEmitter reductions_;
  RowCacheEmitter cache_;
  StageEmitter stages_;
  ShiftedReductionEmitter shifted_;
  RowPipelineEmitter pipeline_;
  TileEmitter tiles_;
};

}  // namespace kiln
