// How the vectors of a CPU walk a kernel: one list of rules chooses, the same list verifies, and the emitter
// obeys. A schedule is a function of the kernel and the target's features and machine, never of what a host
// measures.
//
// Threads: pure functions. Errors: INVALID_ARGUMENT for a schedule that the kernel does not allow. Limits: a
// kernel whose expressions do not fit (KernelFacts::ExpressionsFit) gets no schedule; no back-end emits it
// either.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compiler/schedule/kernel_facts.h"
#include "compiler/target/vector_target.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

v1::VectorSchedule ChooseVectorSchedule(const KernelFacts& facts, const VectorTarget& target);

absl::Status CheckVectorSchedule(const KernelFacts& facts, const VectorTarget& target,
                                 const v1::VectorSchedule& schedule);

// Gives the kernel, which has passed ir/verify_kernel.h, the chosen schedule where it has none, and checks
// it. UNIMPLEMENTED where its expressions do not fit.
absl::Status ScheduleVectors(const VectorTarget& target, v1::Kernel* kernel);

// The chosen one, then those that the list gives without one of the rules that a kernel can do without; each
// once.
std::vector<v1::VectorSchedule> VectorSchedules(const KernelFacts& facts, const VectorTarget& target);

}  // namespace kiln
