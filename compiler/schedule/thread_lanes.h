// Lanes of a GPU's thread: how many neighbouring elements it takes as one vector, and what of the code is
// there twice so that aligned ones are loaded and stored at once. Threads: pure functions. Errors:
// INVALID_ARGUMENT for what the kernel does not allow.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "compiler/schedule/kernel_facts.h"
#include "compiler/target/machine.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

// Accesses of 16 bytes where all run along the lanes; of fewer where they are known to start off such
// addresses. Points side by side only where they fill the GPU.
void ChooseThreadLanes(const KernelFacts& facts, const Machine& machine, v1::ThreadSchedule* schedule);
absl::Status CheckThreadLanes(const KernelFacts& facts, const Machine& machine,
                              const v1::ThreadSchedule& schedule);

// As seldom as one look at the addresses is enough; of long code only what differs is there twice.
void ChooseAligned(const KernelFacts& facts, const Machine& machine, v1::ThreadSchedule* schedule);
absl::Status CheckAligned(const KernelFacts& facts, const Machine& machine,
                          const v1::ThreadSchedule& schedule);

// Is every vector of the stage aligned where its first one is?
bool KeepsAlignment(const KernelFacts& facts, const v1::ThreadSchedule& schedule, size_t stage);

}  // namespace kiln
