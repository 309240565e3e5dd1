// Two reductions of a row in one pass, the second of which asks for the first: a softmax's maximum and the
// sum of its exponentials, a mean and the sum of squares off it. codegen/shifted_reduction_emitter.cc has the
// arithmetic. Threads: pure functions. Errors: INVALID_ARGUMENT for what the kernel does not allow.
#pragma once

#include "absl/status/status.h"
#include "compiler/schedule/kernel_facts.h"
#include "compiler/target/vector_target.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

void ChooseShiftedReduction(const KernelFacts& facts, const VectorTarget& target,
                            v1::VectorSchedule* schedule);
absl::Status CheckShiftedReduction(const KernelFacts& facts, const VectorTarget& target,
                                   const v1::VectorSchedule& schedule);

// Of the two stages in one pass: the one whose loads are the other's.
bool ReadsShifted(const KernelFacts& facts, const v1::RowSchedule& rows, const StageFacts& stage);
// Behind the first of the two, up to the second: part of the pass that the first begins.
bool IsDoneShifted(const KernelFacts& facts, const v1::RowSchedule& rows, const StageFacts& stage);

}  // namespace kiln
