// Sums of e^(x - m) over a row, where m is the row's maximum: what is below 1 there need not be exact in its
// own last place, only in that of the sum, to which the maximum itself gives 1. Threads: pure functions.
// Errors: INVALID_ARGUMENT for what the kernel does not allow.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "compiler/schedule/kernel_facts.h"
#include "compiler/target/vector_target.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

// The maximum m of a row's x where the op is e^(x - m) and its stage walks the same row.
std::optional<uint32_t> MaximumBelow(const KernelFacts& facts, uint32_t exponential);

void ChooseSummedExponentials(const KernelFacts& facts, const VectorTarget& target,
                              v1::VectorSchedule* schedule);
absl::Status CheckSummedExponentials(const KernelFacts& facts, const VectorTarget& target,
                                     const v1::VectorSchedule& schedule);

}  // namespace kiln
