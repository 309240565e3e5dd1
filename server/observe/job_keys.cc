#include "server/observe/job_keys.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"

namespace kiln {
namespace {

size_t HashOf(absl::string_view tenant, absl::string_view job) { return absl::HashOf(tenant, job); }

}  // namespace

void JobKeys::Add(absl::string_view tenant_name, absl::string_view job_name, absl::string_view compile_key) {
  absl::MutexLock lock(&mutex_);
  auto of_tenant = tenants_.find(tenant_name);
  if (of_tenant == tenants_.end()) of_tenant = tenants_.emplace(std::string(tenant_name), Tenant()).first;
  Tenant& tenant = of_tenant->second;
  if (const auto found = tenant.jobs.find(job_name); found != tenant.jobs.end()) {
    tenant.by_use.splice(tenant.by_use.begin(), tenant.by_use, found->second);
  } else {
    tenant.by_use.push_front({std::string(job_name), {}, WasForgotten(tenant_name, job_name)});
    tenant.jobs.emplace(job_name, tenant.by_use.begin());
    ++jobs_;
  }
  Job& job = tenant.by_use.front();
  if (!job.keys.contains(compile_key)) {
    if (job.keys.size() >= limits_.job_keys) {
      job.more = true;
    } else {
      job.keys.emplace(compile_key);
      ++tenant.keys;
      ++keys_;
    }
  }
  while (jobs_ > limits_.jobs || keys_ > limits_.keys) ForgetAJob();
}

bool JobKeys::WasForgotten(absl::string_view tenant, absl::string_view job) const {
  return forgotten_.size() > limits_.forgotten || forgotten_.contains(HashOf(tenant, job));
}

void JobKeys::ForgetAJob() {
  const auto largest = std::max_element(tenants_.begin(), tenants_.end(), [](const auto& a, const auto& b) {
    return a.second.keys < b.second.keys;
  });
  Tenant& tenant = largest->second;
  const Job& oldest = tenant.by_use.back();
  tenant.keys -= oldest.keys.size();
  keys_ -= oldest.keys.size();
  --jobs_;
  if (forgotten_.size() <= limits_.forgotten) forgotten_.insert(HashOf(largest->first, oldest.name));
  tenant.jobs.erase(oldest.name);
  tenant.by_use.pop_back();
  if (tenant.by_use.empty()) tenants_.erase(largest);
}

std::vector<JobKeys::Row> JobKeys::Find(absl::string_view job) const {
  std::vector<Row> rows;
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, tenant] : tenants_) {
    const auto found = tenant.jobs.find(job);
    if (found == tenant.jobs.end()) continue;
    Row row = {name, {found->second->keys.begin(), found->second->keys.end()}, found->second->more};
    std::sort(row.keys.begin(), row.keys.end());
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace kiln
