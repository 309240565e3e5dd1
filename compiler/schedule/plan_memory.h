// When buffers come and go: allocation right before the first write, release right after the last use,
// and storage that passes from a dead buffer to a new one.
//
// In place: a kernel may write over a buffer that dies in it where it reads and writes the same
// elements at the same points. Later: a new buffer takes the storage of a dead one of the same size
// where that does not raise the estimated peak. Only own buffers, library calls' own results and (in place)
// donated inputs pass on storage. Inputs are released at their last use, but never static ones; what leaves
// through an output is never released.
//
// Deterministic. Threads: one. Errors: INTERNAL when a buffer is read before anything wrote it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/schedule/schedule.h"

namespace kiln {

struct BufferAllocation {
  BufferId buffer = 0;
  int64_t reuse = -1;  // buffer whose storage it takes over
};

struct StepMemory {
  std::vector<BufferAllocation> allocate;  // before the step
  std::vector<BufferId> release;           // after it
};

struct MemoryPlan {
  std::vector<StepMemory> steps;  // by Schedule::steps
  std::vector<BufferId> unused;   // inputs that may go at once
  int64_t peak_bytes = 0;         // of own buffers, estimated
  uint32_t in_place = 0;
  uint32_t taken_over = 0;

  std::string ToString() const;
};

absl::StatusOr<MemoryPlan> PlanMemory(LoopGraph& graph, const Schedule& schedule);

}  // namespace kiln
