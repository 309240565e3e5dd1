#include "server/observe/miss_table.h"

#include <algorithm>
#include <utility>

#include "server/server_limits.h"

namespace kiln {
namespace {

uint64_t BytesOf(const MissTable::Miss& miss) {
  return sizeof(MissTable::Miss) + miss.tenant.size() + miss.job.size() + miss.compile_key.size() +
         miss.record.SpaceUsedLong();
}

}  // namespace

void MissTable::Add(Miss miss) {
  const uint64_t bytes = BytesOf(miss);
  absl::MutexLock lock(&mutex_);
  Tenant& tenant = tenants_[miss.tenant];
  const auto of_job = [&](const Kept& kept) { return kept.miss->job == miss.job; };
  const auto count = std::count_if(tenant.misses.begin(), tenant.misses.end(), of_job);
  if (static_cast<size_t>(count) >= kMissesOfJobMax)
    Drop(tenant, std::find_if(tenant.misses.begin(), tenant.misses.end(), of_job));
  tenant.misses.push_back({++last_, bytes, std::make_shared<const Miss>(std::move(miss))});
  tenant.bytes += bytes;
  bytes_ += bytes;
  ++misses_;
  while (misses_ > misses_max_ || bytes_ > bytes_max_) DropFromLargest();
}

void MissTable::Drop(Tenant& tenant, std::deque<Kept>::iterator kept) {
  tenant.bytes -= kept->bytes;
  bytes_ -= kept->bytes;
  --misses_;
  tenant.misses.erase(kept);
}

void MissTable::DropFromLargest() {
  const auto largest = std::max_element(tenants_.begin(), tenants_.end(), [](const auto& a, const auto& b) {
    return a.second.bytes < b.second.bytes;
  });
  Drop(largest->second, largest->second.misses.begin());
  if (largest->second.misses.empty()) tenants_.erase(largest);
}

std::vector<MissTable::MissPtr> MissTable::Last() const {
  std::vector<Kept> kept;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [name, tenant] : tenants_)
      kept.insert(kept.end(), tenant.misses.begin(), tenant.misses.end());
  }
  std::sort(kept.begin(), kept.end(), [](const Kept& a, const Kept& b) { return a.number > b.number; });
  std::vector<MissPtr> misses;
  for (Kept& each : kept) misses.push_back(std::move(each.miss));
  return misses;
}

}  // namespace kiln
