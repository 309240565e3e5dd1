#include "server/schedule/task_queue.h"

#include <algorithm>
#include <utility>

namespace kiln {
namespace {

constexpr double kTypicalOf = 16;  // tasks, of which the mean is moved by the last

}  // namespace

TaskQueue::TaskQueue(const Options& options)
    : seconds_{options.plan_seconds, options.emit_seconds, options.tune_seconds} {
  workers_.count = options.workers;
  gpus_.count = options.gpus;
}

TaskQueue::TaskId TaskQueue::Push(Task task) {
  const TaskId id = ++last_;
  Servers& servers = ServersOf(task.kind);
  double charged = 0;
  if (task.urgent) {
    servers.urgent.push_back(id);
  } else {
    const int step = task.kind == Kind::kPlan ? 0 : 1;
    charged = std::max(Seconds(task.kind), FairQueue::kSecondsMin);
    servers.queue.Push({id, task.caller, task.program, step, charged, task.brings});
  }
  waiting_.emplace(id, Known{std::move(task), charged});
  return id;
}

bool TaskQueue::Remove(TaskId id) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return false;
  const Task& task = found->second.task;
  Servers& servers = ServersOf(task.kind);
  if (task.urgent) {
    std::erase(servers.urgent, id);
  } else {
    servers.queue.Remove(id);
  }
  waiting_.erase(found);
  return true;
}

std::optional<TaskQueue::TaskId> TaskQueue::TakeFor(Servers& servers) {
  if (servers.busy >= servers.count) return std::nullopt;
  if (!servers.urgent.empty()) {
    const TaskId id = servers.urgent.front();
    servers.urgent.pop_front();
    return id;
  }
  return servers.queue.Pop();
}

std::optional<TaskQueue::TaskId> TaskQueue::Take() {
  std::optional<TaskId> id = TakeFor(workers_);
  if (!id.has_value()) id = TakeFor(gpus_);
  if (!id.has_value()) return std::nullopt;
  Known taken = std::move(waiting_.extract(*id).mapped());
  ++ServersOf(taken.task.kind).busy;
  running_.emplace(*id, std::move(taken));
  return id;
}

void TaskQueue::Ended(TaskId id, double seconds, bool typical) {
  const Known ended = std::move(running_.extract(id).mapped());
  Servers& servers = ServersOf(ended.task.kind);
  --servers.busy;
  if (ended.task.urgent) {
    servers.queue.Charge(ended.task.caller, seconds);
  } else {
    servers.queue.Correct(ended.task.caller, seconds - ended.charged);
  }
  if (typical) Seconds(ended.task.kind) += (seconds - Seconds(ended.task.kind)) / kTypicalOf;
}

double TaskQueue::WaitSeconds(const Caller& caller) const {
  return workers_.queue.SecondsAhead(caller) / static_cast<double>(workers_.count);
}

}  // namespace kiln
