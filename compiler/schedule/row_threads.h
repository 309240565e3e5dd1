// Points that a GPU's blocks take one at a time: the threads share the last inner loops, and combine what
// they reduce. Of many short rows a block has several, each a warp's. Threads: pure functions. Errors:
// INVALID_ARGUMENT for what the kernel does not allow.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "compiler/schedule/kernel_facts.h"
#include "compiler/target/machine.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

// Who takes a point: its block where lanes run along rows. Accumulating stores happen in program order within
// a point, so that threads share one only where it meets each element once; else, and elsewhere, it is a
// thread's.
void ChooseForm(const KernelFacts& facts, const Machine& machine, v1::ThreadSchedule* schedule);
absl::Status CheckForm(const KernelFacts& facts, const Machine& machine, const v1::ThreadSchedule& schedule);

// All inner loops of a stage as one, wherever it can be.
void ChooseFlattened(const KernelFacts& facts, const Machine& machine, v1::ThreadSchedule* schedule);
absl::Status CheckFlattened(const KernelFacts& facts, const Machine& machine,
                            const v1::ThreadSchedule& schedule);

// A short row gets fewer threads, down to a warp. A long one that several stages read gets more, so that
// fewer rows are in work and the device's cache holds them from one stage to the next.
void ChooseRowThreads(const KernelFacts& facts, const Machine& machine, v1::ThreadSchedule* schedule);
absl::Status CheckRowThreads(const KernelFacts& facts, const Machine& machine,
                             const v1::ThreadSchedule& schedule);
std::vector<v1::ThreadSchedule> OtherRowThreads(const KernelFacts& facts, const Machine& machine,
                                                const v1::ThreadSchedule& own);

// Stages with a loop.
int Passes(const KernelFacts& facts);

}  // namespace kiln
