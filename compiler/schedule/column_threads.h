// Threads of a GPU's blocks that take points by themselves or share each point's longest loop: then a block
// has columns of neighbouring points and rows of threads, which combine what they reduce. Threads: pure
// functions. Errors: INVALID_ARGUMENT for what the kernel does not allow.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "compiler/schedule/kernel_facts.h"
#include "compiler/target/machine.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

// Where points are few and reductions long: rows of threads until the device is full or a thread has little
// left to do. Else a usual block; what computes much for each point has fewer threads.
void ChooseColumnThreads(const KernelFacts& facts, const Machine& machine, v1::ThreadSchedule* schedule);
absl::Status CheckColumnThreads(const KernelFacts& facts, const Machine& machine,
                                const v1::ThreadSchedule& schedule);
std::vector<v1::ThreadSchedule> OtherColumnThreads(const KernelFacts& facts, const Machine& machine,
                                                   const v1::ThreadSchedule& own);

}  // namespace kiln
