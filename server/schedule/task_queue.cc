#include "server/schedule/task_queue.h"

#include <algorithm>
#include <utility>

namespace kiln {

TaskQueue::TaskQueue(const Options& options)
    : seconds_{RecentMeans(options.plan_seconds), RecentMeans(options.emit_seconds),
               RecentMeans(options.tune_seconds), RecentMeans(0)} {
  workers_.count = options.workers;
  gpus_.count = options.gpus;
  forwards_.count = options.forwards;
}

TaskQueue::TaskId TaskQueue::Push(Task task) {
  const TaskId id = ++last_;
  Servers& servers = ServersOf(task.kind);
  double charged = 0;
  if (task.urgent) {
    servers.urgent.push_back(id);
  } else {
    charged = std::max(Typical(task.kind, task.caller), FairQueue::kSecondsMin);
    PushFair(id, task, charged);
  }
  waiting_.emplace(id, Known{std::move(task), charged});
  return id;
}

void TaskQueue::PushFair(TaskId id, const Task& task, double charged) {
  const int step = task.kind == Kind::kPlan || task.kind == Kind::kForward ? 0 : 1;
  ServersOf(task.kind).queue.Push({id, task.caller, task.program, step, charged, task.brings, task.begins});
}

void TaskQueue::MakeInteractive(TaskId id) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return;
  Task& task = found->second.task;
  if (!task.urgent) ServersOf(task.kind).queue.Remove(id);
  task.caller.work_class = Caller::Class::kInteractive;
  if (!task.urgent) PushFair(id, task, found->second.charged);
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

std::optional<TaskQueue::TaskId> TaskQueue::TakeFor(Servers& servers, bool may_begin) {
  if (servers.busy >= servers.count) return std::nullopt;
  if (!servers.urgent.empty()) {
    const TaskId id = servers.urgent.front();
    servers.urgent.pop_front();
    return id;
  }
  return servers.queue.Pop(may_begin);
}

std::optional<TaskQueue::TaskId> TaskQueue::Take(bool may_begin) {
  std::optional<TaskId> id = TakeFor(workers_, may_begin);
  if (!id.has_value()) id = TakeFor(gpus_, may_begin);
  if (!id.has_value()) id = TakeFor(forwards_, may_begin);
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
  if (typical) seconds_[static_cast<size_t>(ended.task.kind)].Add(ended.task.caller, seconds);
}

double TaskQueue::SecondsOfNew(const Caller& caller, double seconds) const {
  return SecondsOfNext(caller, workers_.queue.SecondsOf(caller) + seconds);
}

double TaskQueue::SecondsOfNext(const Caller& caller, double seconds) const {
  double urgent = 0;
  for (const TaskId id : workers_.urgent) {
    const Task& task = waiting_.at(id).task;
    urgent += Typical(task.kind, task.caller);
  }
  return (urgent + workers_.queue.SecondsToServe(caller, seconds)) / static_cast<double>(workers_.count);
}

}  // namespace kiln
