// Emits a loop kernel for a GPU: the lanes of the schedule are threads. Shares everything below the loops
// (indices, loads, arithmetic, math) with the CPU's KernelEmitter, with few lanes.
//
// What is a choice is the schedule's (compiler/schedule/thread_schedule.h tells the forms): the emitter
// obeys.
//
// Whether addresses are aligned is decided on the device, where the schedule says that there is code for
// both; the order of combining is the same either way. Turns of a known number are unrolled, and what a
// kernel only reads is read once: later stages find it in registers.
//
// A sum down a strip's columns is kept in registers from the strip's first row to its last. Other
// accumulating stores are reductions in memory, which a thread does not wait for, unless the kernel reads the
// buffer again. After a failing index check or integer division the kernel traps at its end, as a device
// assertion of torch's does.
//
// A kernel whose schedule has members takes them by one parameter, a MemberTable, in which each block finds
// the member that it works for.
//
// thread_emitter.cc has the shape of a kernel, member_entry.h its entry, thread_block.h a block's numbers and
// barriers, thread_combine.cc how threads combine, thread_tile.cc transposed access, thread_strip.cc strips,
// thread_softmax.cc the sum of a softmax.
//
// Ownership, threads, errors: as KernelEmitter; the kernel's schedule is one of threads.
#pragma once

#include "compiler/codegen/kernel_emitter.h"
#include "compiler/codegen/thread_block.h"
#include "compiler/codegen/thread_combine.h"
#include "compiler/codegen/thread_failure.h"
#include "compiler/codegen/thread_memory.h"
#include "compiler/image/gpu_image.h"
#include "compiler/schedule/thread_walk.h"

namespace kiln {

class ThreadEmitter : public KernelEmitter {
 public:
  ThreadEmitter(const v1::Kernel& kernel, const VectorTarget& target, llvm::Module* module);

  // Adds the kernel kGpuEntryName to the module. `Emit` of the base makes the device function it calls.
  absl::Status EmitKernel();

  // After EmitKernel.
  GpuImage Launch() const;  // without code

 private:
  // thread_strip.cc
  struct StripSum {
    const StageInfo* info;
    const v1::LoopOp* op;
    std::vector<llvm::AllocaInst*> slots;  // by a thread's turn
    llvm::Value* shared = nullptr;         // where the warps of a block have rows each
  };
  using StripBody = absl::FunctionRef<void(const StripSum& sum, llvm::AllocaInst* slot, llvm::Value* pointer,
                                           llvm::Align align, llvm::Value* element)>;
  void EmitStrips(llvm::Value* rows);
  void EmitStrip(llvm::Value* begin, llvm::Value* end);
  void CombineStrip(llvm::Value* begin, llvm::Value* warp);
  void ForStripSums(llvm::Value* begin, StripBody body);  // all turns of this thread
  void EmitStore(const v1::LoopOp& op) override;

  // thread_softmax.cc
  void EmitSoftmaxSum();
  void AddToSoftmaxSum(llvm::Value* first_turn, int64_t turns, llvm::AllocaInst* largest,
                       llvm::AllocaInst* sum);

  void UseSchedule() override;
  void EmitEntry() override;
  void EmitUnits() override;
  void EmitStages() override;
  void VectorLoop(uint32_t variable, llvm::Value* lo, llvm::Value* hi, unsigned unroll, Body body) override;
  void EmitInnerFrom(const StageInfo& info, uint32_t level) override;
  void InnerLoop(const StageInfo& info, uint32_t level, absl::FunctionRef<void(llvm::Value*)> body) override;

  // thread_tile.cc
  class SharedTile;
  void EmitSharedTiles();

  void EmitPoints();
  void EmitPointsOfThreads(llvm::Value* points, llvm::ArrayRef<llvm::Value*> extents);
  void EmitColumns(llvm::Value* points);
  void EmitTurns(llvm::Value* thread, llvm::Value* count, unsigned at_once,
                 absl::FunctionRef<void(llvm::Value*)> turn);
  void EmitStagesInTurn();
  void IfFirstRow(Body body);  // of threads that share a point
  void SetPoint(llvm::Value* number, llvm::ArrayRef<llvm::Value*> extents);
  void EmitPoint(llvm::Value* number, llvm::ArrayRef<llvm::Value*> extents);

  const v1::ThreadSchedule& chosen_;
  const unsigned threads_;  // of the schedule
  const unsigned warps_;    // with a point each
  const unsigned rows_;     // of threads that share a point, else 1
  ThreadBlock block_;
  SharedPoint point_;
  ThreadCombine combine_;
  ThreadFailure failure_;
  ThreadMemory thread_memory_;
  bool in_first_row_ = false;         // in code of IfFirstRow
  std::vector<StripSum> strip_sums_;  // empty: blocks take no strips
  unsigned turn_ = 0;                 // of this thread, in EmitTurns, where all turns stand in a row
};

}  // namespace kiln
