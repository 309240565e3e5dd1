#include "server/schedule/fair_queue.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "server/server_limits.h"

namespace kiln {
namespace {

// Of what is ready, the one whose next task starts first; ties go by name.
template <typename Shares>
typename Shares::iterator First(Shares& shares, double now, bool may_begin) {
  auto first = shares.end();
  for (auto share = shares.begin(); share != shares.end(); ++share) {
    if (share->second.ready(may_begin) == 0) continue;
    if (first == shares.end() ||
        std::max(now, share->second.share.finish) < std::max(now, first->second.share.finish)) {
      first = share;
    }
  }
  return first;
}

// Who is idle and has been caught up with is as good as new. Of the other idle ones those least ahead go
// where they are too many: one task each of ever new names leaves nobody who is caught up with.
template <typename Shares, typename Idle>
void Forget(Shares& shares, double now, const Idle& idle) {
  std::erase_if(shares,
                [&](const auto& share) { return idle(share.second) && share.second.share.finish <= now; });
  std::vector<typename Shares::iterator> ahead;
  for (auto share = shares.begin(); share != shares.end(); ++share) {
    if (idle(share->second)) ahead.push_back(share);
  }
  if (ahead.size() <= kFairQueueIdleMax) return;
  const auto kept = ahead.end() - kFairQueueIdleMax;
  std::nth_element(ahead.begin(), kept, ahead.end(), [](const auto& a, const auto& b) {
    return a->second.share.finish < b->second.share.finish;
  });
  for (auto share = ahead.begin(); share != kept; ++share) shares.erase(*share);
}

}  // namespace

void FairQueue::Push(Task task) {
  task.seconds = std::max(task.seconds, kSecondsMin);
  Jobs& jobs = JobsOf(tenants_[task.caller.tenant], task.caller);
  Job& job = jobs.jobs[task.caller.job];
  job.waiting.emplace(OrderOf(task), task.id);
  job.seconds += task.seconds + task.brings;
  ++jobs.waiting;
  if (task.begins) {
    ++job.begins;
    ++jobs.begins;
  }
  tasks_.emplace(task.id, std::move(task));
}

bool FairQueue::Remove(TaskId id) {
  const auto found = tasks_.find(id);
  if (found == tasks_.end()) return false;
  const Task& task = found->second;
  Jobs& jobs = JobsOf(tenants_.at(task.caller.tenant), task.caller);
  Job& job = jobs.jobs.at(task.caller.job);
  job.waiting.erase(OrderOf(task));
  // Sums of what came and went drift.
  job.seconds = job.waiting.empty() ? 0 : std::max(0.0, job.seconds - task.seconds - task.brings);
  --jobs.waiting;
  if (task.begins) {
    --job.begins;
    --jobs.begins;
  }
  tasks_.erase(found);
  Forget(jobs.jobs, jobs.now,
         [](const Job& candidate) { return candidate.waiting.empty() && candidate.share.running == 0; });
  Forget(tenants_, now_,
         [](const Tenant& candidate) { return candidate.waiting() == 0 && candidate.share.running == 0; });
  return true;
}

std::optional<FairQueue::TaskId> FairQueue::Pop(bool may_begin) {
  const auto first = First(tenants_, now_, may_begin);
  if (first == tenants_.end()) return std::nullopt;
  Tenant& tenant = first->second;
  Jobs& jobs = tenant.classes[tenant.classes[0].ready(may_begin) > 0 ? 0 : 1];
  Job& job = First(jobs.jobs, jobs.now, may_begin)->second;
  const TaskId id = std::find_if(job.waiting.begin(), job.waiting.end(), [&](const auto& waits) {
                      return may_begin || !tasks_.at(waits.second).begins;
                    })->second;
  const double seconds = tasks_.at(id).seconds;
  now_ = std::max(now_, tenant.share.finish);
  tenant.share.finish = now_ + seconds;
  jobs.now = std::max(jobs.now, job.share.finish);
  job.share.finish = jobs.now + seconds;
  ++tenant.share.running;
  ++job.share.running;
  Remove(id);
  return id;
}

void FairQueue::Correct(const Caller& caller, double seconds) {
  Tenant& tenant = tenants_.at(caller.tenant);
  for (Share* share : {&tenant.share, &JobsOf(tenant, caller).jobs.at(caller.job).share}) {
    share->finish += seconds;
    --share->running;
  }
}

void FairQueue::Charge(const Caller& caller, double seconds) {
  Tenant& tenant = tenants_[caller.tenant];
  Jobs& jobs = JobsOf(tenant, caller);
  Share& job = jobs.jobs[caller.job].share;
  tenant.share.finish = std::max(now_, tenant.share.finish) + seconds;
  job.finish = std::max(jobs.now, job.finish) + seconds;
}

double FairQueue::Jobs::seconds() const {
  double sum = 0;
  for (const auto& [name, job] : jobs) sum += job.seconds;
  return sum;
}

double FairQueue::SecondsOf(const Caller& caller) const {
  const auto tenant = tenants_.find(caller.tenant);
  if (tenant == tenants_.end()) return 0;
  const std::map<std::string, Job>& jobs = tenant->second.classes[static_cast<int>(caller.work_class)].jobs;
  const auto job = jobs.find(caller.job);
  return job == jobs.end() ? 0 : job->second.seconds;
}

double FairQueue::SecondsToServe(const Caller& caller, double seconds) const {
  double own = seconds;
  if (const auto tenant = tenants_.find(caller.tenant); tenant != tenants_.end()) {
    const Jobs* const classes = tenant->second.classes;
    if (caller.work_class == Caller::Class::kBackground) own += classes[0].seconds();
    for (const auto& [name, job] : classes[static_cast<int>(caller.work_class)].jobs)
      own += name == caller.job ? 0 : std::min(job.seconds, seconds);
  }
  double all = own;
  for (const auto& [name, tenant] : tenants_)
    all += name == caller.tenant ? 0 : std::min(tenant.seconds(), own);
  return all;
}

size_t FairQueue::remembered() const {
  size_t shares = tenants_.size();
  for (const auto& [name, tenant] : tenants_) {
    for (const Jobs& jobs : tenant.classes) shares += jobs.jobs.size();
  }
  return shares;
}

}  // namespace kiln
