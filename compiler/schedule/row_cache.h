// A row's values that two stages compute alike, exponentials of a softmax: the first keeps them on the stack,
// the other reads them there. Exponentials cost more than the second-level cache does. Threads: pure
// functions. Errors: INVALID_ARGUMENT for what the kernel does not allow.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "compiler/schedule/kernel_facts.h"
#include "compiler/target/vector_target.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

void ChooseRowCache(const KernelFacts& facts, const VectorTarget& target, v1::VectorSchedule* schedule);
absl::Status CheckRowCache(const KernelFacts& facts, const VectorTarget& target,
                           const v1::VectorSchedule& schedule);

// Do a row's kept exponentials wait for their scale, since they are made about a shifted reduction's
// estimate?
bool KeepsShifted(const KernelFacts& facts, const v1::RowSchedule& rows);

// Which products take that scale with their other factor, at the cost of no multiplication.
void ChooseScaledProducts(const KernelFacts& facts, const VectorTarget& target, v1::VectorSchedule* schedule);
absl::Status CheckScaledProducts(const KernelFacts& facts, const VectorTarget& target,
                                 const v1::VectorSchedule& schedule);

// By op: nothing asks for it, since a cached value or a sum of exponentials takes its place.
std::vector<bool> SkippedOps(const KernelFacts& facts, const v1::RowSchedule& rows);

}  // namespace kiln
