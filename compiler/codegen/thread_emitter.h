// Emits a loop kernel for a GPU: the lanes of the schedule are threads. Shares everything below the loops
// (indices, loads, arithmetic, math) with the CPU's KernelEmitter, with few lanes.
//
//   VECTOR_INNER_LAST   a block takes one point of the outer domain at a time; its threads share the last
//                       inner loop and combine their partial reductions: a warp's by shuffles, the warps'
//                       through shared memory
//   otherwise           a thread takes one point of the outer domain and runs all inner loops itself
//
// Where all accesses run along the scheduled loop, a thread's turn is a short vector of it, so that its
// loads and stores are of 16 bytes. Whether addresses are aligned is decided on the device, before the
// vector; the order of combining is the same either way.
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
  void ChooseLanes() override;
  void ChooseTile() override {}
  void EmitEntry() override;
  void EmitUnits() override;
  void EmitStages() override;
  void VectorLoop(uint32_t variable, llvm::Value* lo, llvm::Value* hi, unsigned unroll, Body body) override;
  unsigned Unroll(const StageInfo&) const override { return 1; }
  llvm::Align VectorAlign(const v1::LoopOp& op) const override;
  void CombineThreads(const Accumulator& accumulator, v1::DType kept, llvm::Value** value,
                      llvm::Value** position) override;
  int64_t ThreadsOf(const StageInfo& info) const override;
  void FailWhere(llvm::Value* bad, int32_t code, uint32_t op, llvm::Value* value, llvm::Value* bound,
                 bool is_unsigned) override;

  llvm::Value* Special(llvm::Intrinsic::ID id);  // a thread or block number, as i64
  void Barrier();
  void Choose(llvm::Value* condition, Body then, Body otherwise);
  uint32_t VectorVariable(const StageInfo& info) const;
  unsigned LanesFor(const StageInfo& info);  // 1: some access does not run along the stage's vector loop
  unsigned LanesAlongOuter();
  // Are the addresses aligned of all vectors at the current point?
  llvm::Value* IsAligned(llvm::ArrayRef<const StageInfo*> stages);
  void EmitPoint(llvm::Value* number, llvm::ArrayRef<llvm::Value*> extents);
  llvm::Value* Shuffle(llvm::Intrinsic::ID id, llvm::Value* value, unsigned lane);
  llvm::Value* SharedSlots(llvm::Type* type, const char* name);

  bool block_shares_point_ = false;
  unsigned threads_ = 0;  // of a block
  bool aligned_ = false;  // in code that runs where IsAligned
};

}  // namespace kiln
