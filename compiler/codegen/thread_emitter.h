// Emits a loop kernel for a GPU: the lanes of the schedule are threads. What is below the loops (indices,
// ops, reductions, math) is emitted as for a CPU, with few lanes.
//
// What is a choice is the schedule's (compiler/schedule/thread_schedule.h tells the forms): emitters obey.
//
// After a failing index check or integer division the kernel traps at its end, as a device assertion of
// torch's does. A kernel whose schedule has members takes them by one parameter, a MemberTable, in which each
// block finds the member that it works for.
//
// It has the shape of a kernel, and is made of the parts that kernel_emitter.h names, and of a GPU's own:
//   thread_memory, thread_failure    loads and stores, failures of checks
//   thread_block, thread_combine     a block's numbers and barriers; how threads combine
//   thread_stages, thread_softmax    loops of stages; the sum of a softmax
//   thread_points, thread_strip, thread_tile    which points a block takes: by number, in strips, in tiles
//   thread_gemm      a gemm of few rows, by tiles of columns
//
// Ownership: borrows the kernel, the target and the module. Threads: one. Errors: UNIMPLEMENTED for what has
// no lowering; the kernel and its schedule, which is one of threads, are taken to be verified.
#pragma once

#include "absl/status/status.h"
#include "compiler/codegen/thread_failure.h"
#include "compiler/codegen/thread_points.h"
#include "compiler/image/gpu_image.h"

namespace kiln {

class ThreadEmitter {
 public:
  ThreadEmitter(const v1::Kernel& kernel, const VectorTarget& target, llvm::Module* module);

  // Adds the kernel kGpuEntryName, and the device function that it calls, to the module. Once.
  absl::Status EmitKernel();

  // After EmitKernel.
  GpuImage Launch() const;  // without code

 private:
  absl::Status EmitBody();
  void EnterBody();
  void Points();

  KernelContext k_;
  LoopState at_;
  LoopBuilder& b_;
  const v1::ThreadSchedule& chosen_;
  IndexEmitter index_;
  ThreadFailure failure_;
  OpEmitter ops_;
  ThreadMemory memory_;
  ThreadBlock block_;
  SharedPoint point_;  // of threads that share one in rows
  ThreadCombine combine_;
  ReduceEmitter reductions_;
  StripSums strip_sums_;
  ThreadStages stages_;
  ThreadPoints points_;
};

}  // namespace kiln
