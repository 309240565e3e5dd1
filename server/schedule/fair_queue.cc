#include "server/schedule/fair_queue.h"

#include <algorithm>
#include <utility>

namespace kiln {
namespace {

constexpr double kSecondsMin = 1e-3;

// Of what waits, the one whose next task starts first; ties go by name. `shares` holds at least one that
// waits.
template <typename Shares, typename Waits>
typename Shares::iterator First(Shares& shares, double now, const Waits& waits) {
  auto first = shares.end();
  for (auto share = shares.begin(); share != shares.end(); ++share) {
    if (!waits(share->second)) continue;
    if (first == shares.end() ||
        std::max(now, share->second.share.finish) < std::max(now, first->second.share.finish)) {
      first = share;
    }
  }
  return first;
}

}  // namespace

void FairQueue::Push(Task task) {
  task.seconds = std::max(task.seconds, kSecondsMin);
  Jobs& jobs = JobsOf(tenants_[task.caller.tenant], task.caller);
  jobs.jobs[task.caller.job].waiting.emplace(OrderOf(task), task.id);
  ++jobs.waiting;
  tasks_.emplace(task.id, std::move(task));
}

bool FairQueue::Remove(TaskId id) {
  const auto found = tasks_.find(id);
  if (found == tasks_.end()) return false;
  const Task& task = found->second;
  Jobs& jobs = JobsOf(tenants_.at(task.caller.tenant), task.caller);
  jobs.jobs.at(task.caller.job).waiting.erase(OrderOf(task));
  --jobs.waiting;
  tasks_.erase(found);
  return true;
}

std::optional<FairQueue::TaskId> FairQueue::Pop() {
  if (tasks_.empty()) return std::nullopt;
  Tenant& tenant =
      First(tenants_, now_, [](const Tenant& candidate) { return candidate.waiting() > 0; })->second;
  Jobs& jobs = tenant.classes[tenant.classes[0].waiting > 0 ? 0 : 1];
  Job& job =
      First(jobs.jobs, jobs.now, [](const Job& candidate) { return !candidate.waiting.empty(); })->second;
  const TaskId id = job.waiting.begin()->second;
  const double seconds = tasks_.at(id).seconds;
  now_ = std::max(now_, tenant.share.finish);
  tenant.share.finish = now_ + seconds;
  jobs.now = std::max(jobs.now, job.share.finish);
  job.share.finish = jobs.now + seconds;
  Remove(id);
  ForgetIdle();
  return id;
}

void FairQueue::Correct(const Caller& caller, double seconds) {
  const auto tenant = tenants_.find(caller.tenant);
  if (tenant == tenants_.end()) return;
  tenant->second.share.finish += seconds;
  Jobs& jobs = JobsOf(tenant->second, caller);
  if (const auto job = jobs.jobs.find(caller.job); job != jobs.jobs.end())
    job->second.share.finish += seconds;
}

// Who does not wait and has been caught up with is as good as new.
void FairQueue::ForgetIdle() {
  for (auto& [name, tenant] : tenants_) {
    for (Jobs& jobs : tenant.classes) {
      std::erase_if(jobs.jobs, [&](const auto& job) {
        return job.second.waiting.empty() && job.second.share.finish <= jobs.now;
      });
    }
  }
  std::erase_if(tenants_, [&](const auto& tenant) {
    return tenant.second.waiting() == 0 && tenant.second.share.finish <= now_;
  });
}

}  // namespace kiln
