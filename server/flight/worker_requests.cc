#include "server/flight/worker_requests.h"

#include "absl/status/status.h"
#include "compiler/support/status_macros.h"

namespace kiln {

void WorkerRequests::AddFirst(Work work) {
  absl::MutexLock lock(&mutex_);
  works_[0] = std::move(work);
}

FlightTask WorkerRequests::Add(Work work) {
  absl::MutexLock lock(&mutex_);
  work.task.number = ++last_;
  const FlightTask task = work.task;
  works_[task.number] = std::move(work);
  return task;
}

std::vector<std::future<WorkerResult>> WorkerRequests::Ask(std::vector<v1::Frame> requests,
                                                           absl::Duration limit) {
  std::vector<std::future<WorkerResult>> results;
  std::vector<FlightTask> tasks;
  for (v1::Frame& request : requests) {
    Work work;
    work.task.kind = request.has_plan() ? TaskQueue::Kind::kPlan : TaskQueue::Kind::kEmit;
    work.task.urgent = true;
    work.awaited = std::make_shared<std::promise<WorkerResult>>();
    work.once = true;
    work.limit = limit;
    work.request = [request = std::move(request)] { return request; };
    results.push_back(work.awaited->get_future());
    tasks.push_back(Add(std::move(work)));
  }
  ask_(std::move(tasks));
  // Who stopped it before knew nothing of them.
  if (stopped_) Stop();
  return results;
}

WorkerTask WorkerRequests::TaskFor(uint64_t number) {
  WorkerTask task;
  task.tenant = request_->ns;
  task.abandoned = [this] { return stopped_.load(); };
  absl::MutexLock lock(&mutex_);
  if (first_begun_ == MonotonicTime()) first_begun_ = MonotonicNow();
  const auto found = works_.find(number);
  if (found == works_.end()) return task;  // stopped
  found->second.started = true;
  task.request = found->second.request;
  task.time_limit = found->second.limit;
  return task;
}

std::optional<WorkerRequests::Next> WorkerRequests::After(uint64_t number, WorkerResult result) {
  Work work;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = works_.find(number);
    if (found == works_.end()) return std::nullopt;
    if (result.crashed && !found->second.once) {
      work.task = found->second.task;
    } else {
      work = std::move(found->second);
      works_.erase(found);
    }
  }
  if (!result.crashed) held_bytes_ += result.reply.ByteSizeLong();
  if (work.awaited != nullptr) {
    work.awaited->set_value(std::move(result));
    return std::nullopt;
  }
  return work.after == nullptr ? TryAgain(work.task, result) : work.after(std::move(result));
}

WorkerRequests::Next WorkerRequests::TryAgain(const FlightTask& task, const WorkerResult& crash) {
  FlightCompiler::Losses losses;
  {
    absl::MutexLock lock(&mutex_);
    ++losses_.workers;
    if (crash.killed) ++losses_.killed;
    losses = losses_;
  }
  KILN_RETURN_IF_ERROR(compiler_->Strike(*request_, crash, losses));
  return FlightNext{{task}, std::nullopt, 0};
}

void WorkerRequests::Stop() {
  stopped_ = true;
  absl::MutexLock lock(&mutex_);
  for (auto work = works_.begin(); work != works_.end();) {
    const auto now = work++;
    if (now->second.awaited == nullptr || now->second.started) continue;
    now->second.awaited->set_value({absl::CancelledError("nobody waits for the answer"), {}, false});
    works_.erase(now);
  }
}

MonotonicTime WorkerRequests::first_begun() const {
  absl::MutexLock lock(&mutex_);
  return first_begun_;
}

void WorkerRequests::AddTo(FlightNext* next) const {
  absl::MutexLock lock(&mutex_);
  next->workers_lost = losses_.workers;
  next->held_bytes = held_bytes_;
}

}  // namespace kiln
