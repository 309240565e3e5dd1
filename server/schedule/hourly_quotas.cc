#include "server/schedule/hourly_quotas.h"

#include <chrono>

#include "server/server_limits.h"

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
  std::deque<Minute>& spent = TenantOf(tenant, now).minutes;
  while (!spent.empty() && EndOf(spent.front().number) <= now) spent.pop_front();
  const int64_t minute = MinuteOf(now);
  if (spent.empty() || spent.back().number != minute) spent.push_back({minute, 0});
  spent.back().seconds += seconds;
}

double HourlyQuotas::SecondsOf(const Tenant& tenant, MonotonicTime now) {
  double seconds = 0;
  for (const Minute& minute : tenant.minutes) seconds += EndOf(minute.number) > now ? minute.seconds : 0;
  return seconds;
}

HourlyQuotas::Tenant& HourlyQuotas::TenantOf(const std::string& name, MonotonicTime now) {
  const auto found = tenants_.find(name);
  if (found != tenants_.end()) return found->second;
  if (others_ < kQuotaOthersMax) {
    ++others_;
    return tenants_[name];
  }
  auto least = tenants_.end();
  double least_seconds = 0;
  for (auto other = tenants_.begin(); other != tenants_.end(); ++other) {
    if (other->second.quota.has_value()) continue;
    const double seconds = SecondsOf(other->second, now);
    if (least != tenants_.end() && seconds >= least_seconds) continue;
    least = other;
    least_seconds = seconds;
  }
  tenants_.erase(least);
  return tenants_[name];
}

std::map<std::string, double> HourlyQuotas::Taken(MonotonicTime now) const {
  std::map<std::string, double> taken;
  for (const auto& [name, tenant] : tenants_) {
    if (const double seconds = SecondsOf(tenant, now); seconds > 0) taken[name] = seconds;
  }
  return taken;
}

std::optional<double> HourlyQuotas::SecondsUntilLeft(const std::string& tenant, MonotonicTime now) const {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end() || !found->second.quota.has_value()) return std::nullopt;
  // From the latest back to the one that brings it to the quota: that has to be gone.
  const std::deque<Minute>& spent = found->second.minutes;
  double seconds = 0;
  for (auto minute = spent.rbegin(); minute != spent.rend() && EndOf(minute->number) > now; ++minute) {
    seconds += minute->seconds;
    if (seconds >= *found->second.quota) return SecondsBetween(now, EndOf(minute->number));
  }
  return std::nullopt;
}

}  // namespace kiln
