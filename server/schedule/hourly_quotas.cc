#include "server/schedule/hourly_quotas.h"

#include <chrono>

namespace kiln {
namespace {

using std::chrono::minutes;

int64_t MinuteOf(MonotonicTime time) { return std::chrono::floor<minutes>(time.time_since_epoch()).count(); }

// When the last of a minute is an hour old.
MonotonicTime EndOf(int64_t minute) { return MonotonicTime(minutes(minute + 1 + 60)); }

}  // namespace

HourlyQuotas::HourlyQuotas(const Seconds& quotas) {
  for (const auto& [tenant, quota] : quotas) tenants_[tenant].quota = quota;
}

void HourlyQuotas::Spend(const std::string& tenant, double seconds, MonotonicTime now) {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return;
  std::deque<Minute>& spent = found->second.minutes;
  while (!spent.empty() && EndOf(spent.front().number) <= now) spent.pop_front();
  const int64_t minute = MinuteOf(now);
  if (spent.empty() || spent.back().number != minute) spent.push_back({minute, 0});
  spent.back().seconds += seconds;
}

std::optional<double> HourlyQuotas::SecondsUntilLeft(const std::string& tenant, MonotonicTime now) const {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return std::nullopt;
  // From the latest back to the one that brings it to the quota: that has to be gone.
  const std::deque<Minute>& spent = found->second.minutes;
  double seconds = 0;
  for (auto minute = spent.rbegin(); minute != spent.rend() && EndOf(minute->number) > now; ++minute) {
    seconds += minute->seconds;
    if (seconds >= found->second.quota) return SecondsBetween(now, EndOf(minute->number));
  }
  return std::nullopt;
}

}  // namespace kiln
