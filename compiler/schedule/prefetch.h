// Memory beyond the cache: stores that pass it by, and lines that are asked for before their turn.
// codegen/vector_memory.h tells why.
// Threads: pure functions. Errors: INVALID_ARGUMENT for what the kernel does not allow.
#pragma once

#include "absl/status/status.h"
#include "compiler/schedule/kernel_facts.h"
#include "compiler/target/vector_target.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

void ChooseNontemporal(const KernelFacts& facts, const VectorTarget& target, v1::VectorSchedule* schedule);
absl::Status CheckNontemporal(const KernelFacts& facts, const VectorTarget& target,
                              const v1::VectorSchedule& schedule);

// Last of all rules: what is asked for depends on how rows are walked.
void ChoosePrefetches(const KernelFacts& facts, const VectorTarget& target, v1::VectorSchedule* schedule);
absl::Status CheckPrefetches(const KernelFacts& facts, const VectorTarget& target,
                             const v1::VectorSchedule& schedule);

}  // namespace kiln
