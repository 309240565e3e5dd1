// How many lanes a CPU's vectors have, and whether the last two outer loops run in tiles of that side.
// Threads: pure functions. Errors: INVALID_ARGUMENT for what the kernel does not allow.
#pragma once

#include "absl/status/status.h"
#include "compiler/schedule/kernel_facts.h"
#include "compiler/target/vector_target.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

void ChooseLanes(const KernelFacts& facts, const VectorTarget& target, v1::VectorSchedule* schedule);
absl::Status CheckLanes(const KernelFacts& facts, const VectorTarget& target,
                        const v1::VectorSchedule& schedule);

// Where some access runs along the loop outside of the vectors: so each cache line is read once. Of cheap
// bodies the loads that do are packed: read along that loop, and transposed.
void ChooseTile(const KernelFacts& facts, const VectorTarget& target, v1::VectorSchedule* schedule);
absl::Status CheckTile(const KernelFacts& facts, const VectorTarget& target,
                       const v1::VectorSchedule& schedule);

}  // namespace kiln
