// Bodies of a loop that stand in a row in the code of a GPU's thread, so that their loads are in flight at
// once and later stages find in registers what they read. Threads: pure functions. Errors: INVALID_ARGUMENT
// for what the kernel does not allow.
#pragma once

#include "absl/status/status.h"
#include "compiler/schedule/kernel_facts.h"
#include "compiler/target/machine.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

// As many as there are, and as a thread has registers for what they load.
void ChooseThreadUnroll(const KernelFacts& facts, const Machine& machine, v1::ThreadSchedule* schedule);
absl::Status CheckThreadUnroll(const KernelFacts& facts, const Machine& machine,
                               const v1::ThreadSchedule& schedule);

}  // namespace kiln
