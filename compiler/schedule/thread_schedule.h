// How the threads of a GPU share a kernel: one list of rules chooses, the same list verifies and says what
// else is worth measuring, and the emitter obeys. A schedule is a function of the kernel and the target's
// machine, never of what a host measures; max-autotune measures those of the list.
//
//   rows      a block takes a point of the outer domain: its threads share the last inner loop, or all of a
//             stage's, and combine their partial reductions. Of many short rows a block has several, each a
//             warp's; where rows are summed down their columns as well, a block takes a strip of them
//   points    a thread takes points and runs all inner loops itself
//   columns   where points are few and reductions long, threads of a block share the longest loop of a point
//   tile      where loads run along another outer loop than the last, a block takes tiles of points
//   gemm      where the one loop sums products of two matrices, one of few rows (gemm_threads.h); no other
//   rule
//             has a say then
//
// Threads: pure functions. Errors: INVALID_ARGUMENT for a schedule that the kernel does not allow. Limits: a
// kernel whose expressions do not fit (KernelFacts::ExpressionsFit) gets no schedule; no back-end emits it
// either.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "compiler/schedule/kernel_facts.h"
#include "compiler/target/machine.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

v1::ThreadSchedule ChooseThreadSchedule(const KernelFacts& facts, const Machine& machine);

absl::Status CheckThreadSchedule(const KernelFacts& facts, const Machine& machine,
                                 const v1::ThreadSchedule& schedule);

// Gives the kernel, which has passed ir/verify_kernel.h, the chosen schedule where it has none, and checks
// it. UNIMPLEMENTED where its expressions do not fit.
absl::Status ScheduleThreads(const Machine& machine, v1::Kernel* kernel);

// The chosen one, then a few others that may be faster; each once.
std::vector<v1::ThreadSchedule> ThreadSchedules(const KernelFacts& facts, const Machine& machine);

}  // namespace kiln
