// Points that a GPU's threads have of their own: how many vectors of them in a group, and how many groups.
// Threads: pure functions. Errors: INVALID_ARGUMENT for what the kernel does not allow.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "compiler/schedule/kernel_facts.h"
#include "compiler/target/machine.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

// Where a thread's accesses are narrow it takes several points, so that more of them are in flight. A seed's
// keys for all rounds of Philox are made once a thread: as long as a device is full, threads take several
// vectors of numbers each.
void ChoosePointThreads(const KernelFacts& facts, const Machine& machine, v1::ThreadSchedule* schedule);
absl::Status CheckPointThreads(const KernelFacts& facts, const Machine& machine,
                               const v1::ThreadSchedule& schedule);
std::vector<v1::ThreadSchedule> OtherPointThreads(const KernelFacts& facts, const Machine& machine,
                                                  const v1::ThreadSchedule& own);

}  // namespace kiln
