// A long row's maximum and the sum of its exponentials in one pass of a GPU's threads;
// codegen/thread_softmax.cc has the arithmetic. Threads: pure functions. Errors: INVALID_ARGUMENT for what
// the kernel does not allow.
#pragma once

#include "absl/status/status.h"
#include "compiler/schedule/kernel_facts.h"
#include "compiler/target/machine.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

// max(x) and then sum(exp(x - max)), nothing else that runs along the row, and nothing in between. Of shorter
// rows x is kept in registers from one stage to the next.
void ChooseSoftmaxSum(const KernelFacts& facts, const Machine& machine, v1::ThreadSchedule* schedule);
absl::Status CheckSoftmaxSum(const KernelFacts& facts, const Machine& machine,
                             const v1::ThreadSchedule& schedule);

// Whole vectors, and sums that are not kept in F64.
absl::Status CheckSoftmaxFits(const KernelFacts& facts, const Machine& machine,
                              const v1::ThreadSchedule& schedule);

}  // namespace kiln
