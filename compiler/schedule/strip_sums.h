// Sums down the columns of rows that a GPU's blocks take in strips, the schedule's chunks: a strip's sums
// stay in registers from its first row to its last. Such a sum is an accumulating store to elements of its
// strip's own,
// `[row // chunk, column]`.
// Threads: pure functions. Errors: INVALID_ARGUMENT for what the kernel does not allow.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "compiler/schedule/kernel_facts.h"
#include "compiler/target/machine.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

// Where all accumulating stores are such sums.
void ChooseStripSums(const KernelFacts& facts, const Machine& machine, v1::ThreadSchedule* schedule);
absl::Status CheckStripSums(const KernelFacts& facts, const Machine& machine,
                            const v1::ThreadSchedule& schedule);

// Registers for two blocks, unless blocks are large.
void ChooseStripBlocks(const KernelFacts& facts, const Machine& machine, v1::ThreadSchedule* schedule);
absl::Status CheckStripBlocks(const KernelFacts& facts, const Machine& machine,
                              const v1::ThreadSchedule& schedule);

// Every iteration of a sum has a register of its own, so all are unrolled, and one look at the
// addresses does for all rows.
absl::Status CheckStripsFit(const KernelFacts& facts, const Machine& machine,
                            const v1::ThreadSchedule& schedule);

// k where the index is `column + k * (row // chunk)`.
std::optional<int64_t> StripStride(const KernelFacts& facts, uint32_t index);

}  // namespace kiln
