// Emits a loop kernel for a GPU: the lanes of the schedule are threads. Shares everything below the loops
// (indices, loads, arithmetic, math) with the CPU's KernelEmitter, at one lane.
//
//   VECTOR_INNER_LAST   a block takes one point of the outer domain at a time; its threads share the last
//                       inner loop and combine their partial reductions through shared memory
//   otherwise           a thread takes one point of the outer domain and runs all inner loops itself
//
// Accumulating stores must happen in program order within a point, so a kernel that has one is never shared
// by a block. A failing index check or integer division traps, as a device assertion of torch's does.
#pragma once

#include "compiler/codegen/gpu_image.h"
#include "compiler/codegen/kernel_emitter.h"

namespace kiln {

class ThreadEmitter : public KernelEmitter {
 public:
  ThreadEmitter(const v1::Kernel& kernel, const VectorTarget& target, llvm::Module* module);

  // Adds the kernel kGpuEntryName to the module. `Emit` of the base makes the device function it calls.
  absl::Status EmitKernel();

  GpuImage Launch() const;  // without code

 private:
  void ChooseLanes() override { vector_lanes_ = 1; }
  void ChooseTile() override {}
  void EmitEntry() override;
  void EmitUnits() override;
  void EmitStages() override;
  void VectorLoop(uint32_t variable, llvm::Value* lo, llvm::Value* hi, unsigned unroll, Body body) override;
  void FinishAccumulators(const StageInfo& info) override;
  void FailWhere(llvm::Value* bad, int32_t code, uint32_t op, llvm::Value* value, llvm::Value* bound,
                 bool is_unsigned) override;

  llvm::Value* Special(llvm::Intrinsic::ID id);  // a thread or block number, as i64
  void Barrier();
  // Folds every thread's value (and position, of an arg reduction) into one that all threads get.
  void CombineOverBlock(const Accumulator& accumulator, v1::DType kept, llvm::Value** value,
                        llvm::Value** position);
  llvm::Value* SharedSlots(llvm::Type* type, const char* name);

  bool block_shares_point_ = false;
  bool in_shared_loop_ = false;
};

}  // namespace kiln
