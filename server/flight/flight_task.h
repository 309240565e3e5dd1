// The tasks that a compile is made of, and who does them.
//
// Threads: plain values; `Workers` is called on the table's strand, returns at once and never calls back in.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "server/build/artifact.h"
#include "server/flight/flight_request.h"
#include "server/schedule/task_queue.h"

namespace kiln {

using TaskId = TaskQueue::TaskId;

// A task of a flight's. Number 0 is its first plan, or is given to another daemon (kForward); the others are
// chosen by who compiles.
struct FlightTask {
  TaskQueue::Kind kind = TaskQueue::Kind::kPlan;
  uint64_t number = 0;
  bool urgent = false;
};

// What the end of a task brings.
struct FlightNext {
  std::vector<FlightTask> tasks;  // to be done now
  std::optional<absl::StatusOr<std::shared_ptr<const Artifact>>> outcome;
  uint32_t workers_lost = 0;  // so far
  uint64_t held_bytes = 0;    // of what workers have made of it, so far
  bool tries_tuning = false;  // not told to the table: FlightCompile::TryTuning comes before
};

// Does tasks. Each Start ends with one input `Ended`, when the worker or GPU is free again, and then, for a
// flight's, one `Advanced`; Progress and Asked come before it.
class Workers {
 public:
  virtual ~Workers() = default;
  // `request` is null for a task of no flight.
  virtual void Start(TaskId id, FlightId flight, FlightRequestPtr request, const FlightTask& task) = 0;
  // Nothing of it is wanted any more: what runs may end early, and nothing else starts.
  virtual void Stop(FlightId flight) = 0;
};

}  // namespace kiln
