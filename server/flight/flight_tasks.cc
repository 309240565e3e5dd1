#include "server/flight/flight_tasks.h"

#include <algorithm>
#include <utility>

namespace kiln {

void FlightTasks::Add(Flight& flight, const FlightTask& task, TaskQueue::Task queued) {
  queued.kind = task.kind;
  queued.caller = CallerOf(flight);
  queued.program = flight.request->job.program;
  queued.urgent = task.urgent;
  const TaskId id = queue_.Push(std::move(queued));
  flight.work.waiting.insert(id);
  doing_[id] = {flight.id, task, ""};
}

void FlightTasks::PushFirst(Flight& flight, double seconds) {
  const TaskQueue::Kind kind = flight.look.elsewhere ? TaskQueue::Kind::kForward : TaskQueue::Kind::kPlan;
  TaskQueue::Task queued;
  queued.begins = true;
  if (!flight.look.elsewhere) queued.brings = std::max(0.0, seconds - queue_.Typical(kind, CallerOf(flight)));
  Add(flight, {kind, 0, false}, std::move(queued));
}

void FlightTasks::Push(Flight& flight, const std::vector<FlightTask>& tasks) {
  for (const FlightTask& task : tasks) Add(flight, task, {});
}

void FlightTasks::MakeInteractive(const Flight& flight) {
  for (const TaskId task : flight.work.waiting) queue_.MakeInteractive(task);
}

void FlightTasks::Drop(Flight& flight) {
  for (const TaskId id : flight.work.waiting) {
    queue_.Remove(id);
    doing_.erase(id);
  }
  flight.work.waiting.clear();
}

void FlightTasks::PushChore(uint64_t number, const Caller& caller, TaskQueue::Kind kind, uint64_t program) {
  TaskQueue::Task task;
  task.kind = kind;
  task.caller = caller;
  task.program = program;
  const TaskId id = queue_.Push(std::move(task));
  doing_[id] = {0, {kind, number, false}, kind == TaskQueue::Kind::kTune ? caller.tenant : ""};
}

void FlightTasks::Withdraw(uint64_t number) {
  const auto found = std::find_if(doing_.begin(), doing_.end(), [number](const auto& doing) {
    return doing.second.flight == 0 && doing.second.task.number == number;
  });
  if (found == doing_.end() || !queue_.Remove(found->first)) return;
  doing_.erase(found);
}

void FlightTasks::Forget(TaskId id) {
  doing_.erase(id);
  queue_.Ended(id, 0, /*typical=*/false);
}

std::optional<FlightTasks::Doing> FlightTasks::Ended(TaskId id, double seconds, bool typical) {
  const auto found = doing_.find(id);
  if (found == doing_.end() || !queue_.Runs(id)) return std::nullopt;
  Doing doing = std::move(found->second);
  doing_.erase(found);
  queue_.Ended(id, seconds, typical);
  return doing;
}

double FlightTasks::SecondsOfRest(const Flight& flight, TaskQueue::Kind taken, const Caller& caller) const {
  double seconds = queue_.Typical(taken, caller);
  for (const TaskId id : flight.work.waiting) {
    const TaskQueue::Kind kind = doing_.at(id).task.kind;
    if (kind != TaskQueue::Kind::kTune) seconds += queue_.Typical(kind, caller);
  }
  return seconds;
}

}  // namespace kiln
