// The order of a GPU's thread's code. Loops are unrolled, and a body's loads stand before what it
// computes, so that they are in flight at once; later stages find in registers what they read. Threads: pure
// functions. Errors: INVALID_ARGUMENT for what the kernel does not allow.
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

// Wherever some load has ops before it: instructions are issued in order, and what stands behind a branch of
// a function's (sines of large arguments) does not start before it.
void ChooseLoadsFirst(const KernelFacts& facts, const Machine& machine, v1::ThreadSchedule* schedule);
absl::Status CheckLoadsFirst(const KernelFacts& facts, const Machine& machine,
                             const v1::ThreadSchedule& schedule);

}  // namespace kiln
