// The passes of neighbouring rows in one loop, and how many vectors of a row reduce side by side.
// codegen/row_pipeline_emitter.cc tells what is gained and has the code.
// Threads: pure functions. Errors: INVALID_ARGUMENT for what the kernel does not allow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "compiler/schedule/kernel_facts.h"
#include "compiler/target/vector_target.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

// The stages of a kernel by pass over a row. A shifted reduction is one pass, named by its first stage.
struct RowPasses {
  struct Pass {
    size_t stage = 0;           // that walks the row
    std::vector<size_t> after;  // of one point each, which follow it
  };
  std::vector<size_t> before;  // the first pass
  std::vector<Pass> passes;

  // The pass that an op belongs to, alone or as part of a stage beside it.
  size_t PassOf(const KernelFacts& facts, uint32_t op) const;
};
// Nothing where some stages walk other rows, or in another way.
std::optional<RowPasses> RowPassesOf(const KernelFacts& facts, const v1::RowSchedule& rows);

void ChooseRowPipeline(const KernelFacts& facts, const VectorTarget& target, v1::VectorSchedule* schedule);
absl::Status CheckRowPipeline(const KernelFacts& facts, const VectorTarget& target,
                              const v1::VectorSchedule& schedule);

// After the pipeline.
void ChooseUnroll(const KernelFacts& facts, const VectorTarget& target, v1::VectorSchedule* schedule);
absl::Status CheckUnroll(const KernelFacts& facts, const VectorTarget& target,
                         const v1::VectorSchedule& schedule);

// Of `unroll` vectors side by side: no more than the stage's innermost loop has, where its length is known.
uint32_t VectorsSideBySide(const KernelFacts& facts, const v1::VectorSchedule& schedule,
                           const StageFacts& stage, uint32_t unroll);

}  // namespace kiln
