// The tasks that wait and run, and whose each is: a flight's, or a chore, which is nobody's flight. Which one
// is next is fair to tenants and their jobs (task_queue.h).
//
// Ownership: of flights it changes `work.waiting`. Threads: one at a time (the table's strand). Limits: who
// pushes bounds what waits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/flight/flight.h"
#include "server/flight/flight_task.h"
#include "server/schedule/task_queue.h"

namespace kiln {

class FlightTasks {
 public:
  struct Doing {
    FlightId flight = 0;  // 0: a chore
    FlightTask task;
    std::string measures_for;  // of a chore: the tenant who is charged
  };

  explicit FlightTasks(const TaskQueue::Options& options) : queue_(options) {}

  // Of a flight that is queued: its plan, or that it is given to another daemon. `seconds` of workers are
  // what all of it takes.
  void PushFirst(Flight& flight, double seconds);
  void Push(Flight& flight, const std::vector<FlightTask>& tasks);
  // What waits of it is interactive from now on.
  void MakeInteractive(const Flight& flight);
  void Drop(Flight& flight);  // what waits of it

  // `program`: in the order of arrival, among flights. A measurement is its tenant's seconds.
  void PushChore(uint64_t number, const Caller& caller, TaskQueue::Kind kind, uint64_t program);
  void Withdraw(uint64_t number);  // a chore that has not been started

  // What runs from now on; who takes it has it out of its flight's `waiting`.
  std::optional<TaskId> Take(bool may_begin) { return queue_.Take(may_begin); }
  const Doing& doing(TaskId id) const { return doing_.at(id); }
  // One that was taken and is not begun after all.
  void Forget(TaskId id);
  // The worker or GPU was taken for `seconds`. Nothing where it does not run.
  std::optional<Doing> Ended(TaskId id, double seconds, bool typical);

  // What workers take for a task of `taken` and all that waits of its flight, by what such tasks took.
  double SecondsOfRest(const Flight& flight, TaskQueue::Kind taken, const Caller& caller) const;

  const TaskQueue& queue() const { return queue_; }

 private:
  void Add(Flight& flight, const FlightTask& task, TaskQueue::Task queued);

  TaskQueue queue_;
  absl::flat_hash_map<TaskId, Doing> doing_;
};

}  // namespace kiln
