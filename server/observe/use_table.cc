#include "server/observe/use_table.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace kiln {
namespace {

uint64_t Sum(uint64_t a, uint64_t b) {
  return b > std::numeric_limits<uint64_t>::max() - a ? std::numeric_limits<uint64_t>::max() : a + b;
}

}  // namespace

void Use::Add(const Use& more) {
  hits = Sum(hits, more.hits);
  compiles = Sum(compiles, more.compiles);
  executed = Sum(executed, more.executed);
  saved_ms = Sum(saved_ms, more.saved_ms);
  spent_us = Sum(spent_us, more.spent_us);
}

void UseTable::Count(absl::string_view tenant_name, absl::string_view job_name, const Use& more) {
  absl::MutexLock lock(&mutex_);
  Tenant& tenant = TenantOf(tenant_name);
  tenant.used = ++calls_;
  const auto found = tenant.jobs.find(job_name);
  if (found != tenant.jobs.end()) {
    tenant.by_use.splice(tenant.by_use.begin(), tenant.by_use, found->second);
  } else {
    tenant.by_use.push_front({std::string(job_name), {}});
    tenant.jobs.emplace(job_name, tenant.by_use.begin());
    ++jobs_;
  }
  tenant.by_use.front().use.Add(more);
  if (jobs_ > jobs_max_) ForgetAJob();
}

void UseTable::CountSeconds(absl::string_view tenant, absl::string_view job, double seconds) {
  Use use;
  use.spent_us = static_cast<uint64_t>(std::max(0.0, 1e6 * seconds));
  Count(tenant, job, use);
}

UseTable::Tenant& UseTable::TenantOf(absl::string_view name) {
  const auto found = tenants_.find(name);
  if (found != tenants_.end()) return found->second;
  if (tenants_.size() >= tenants_max_) ForgetATenant();
  return tenants_[std::string(name)];
}

void UseTable::ForgetATenant() {
  const auto oldest = std::min_element(tenants_.begin(), tenants_.end(), [](const auto& a, const auto& b) {
    return a.second.used < b.second.used;
  });
  for (const Job& job : oldest->second.by_use) forgotten_.Add(job.use);
  forgotten_.Add(oldest->second.forgotten);
  forgot_ = true;
  jobs_ -= oldest->second.by_use.size();
  tenants_.erase(oldest);
}

void UseTable::ForgetAJob() {
  Tenant& tenant = std::max_element(tenants_.begin(), tenants_.end(), [](const auto& a, const auto& b) {
                     return a.second.by_use.size() < b.second.by_use.size();
                   })->second;
  tenant.forgotten.Add(tenant.by_use.back().use);
  tenant.forgot = true;
  tenant.jobs.erase(tenant.by_use.back().name);
  tenant.by_use.pop_back();
  --jobs_;
}

std::vector<UseTable::Row> UseTable::Rows() const {
  std::vector<Row> rows;
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, tenant] : tenants_) {
    const size_t first = rows.size();
    for (const Job& job : tenant.by_use) rows.push_back({name, job.name, false, job.use});
    std::sort(rows.begin() + static_cast<ptrdiff_t>(first), rows.end(),
              [](const Row& a, const Row& b) { return a.job < b.job; });
    if (tenant.forgot) rows.push_back({name, "", true, tenant.forgotten});
  }
  if (forgot_) rows.push_back({"", "", true, forgotten_});
  return rows;
}

std::map<std::string, Use> UseTable::ByTenant() const {
  std::map<std::string, Use> sums;
  for (const Row& row : Rows()) sums[row.tenant].Add(row.use);
  return sums;
}

}  // namespace kiln
