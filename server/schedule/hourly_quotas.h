// Worker and GPU seconds that each tenant used in the last hour, against its quota where it has one.
//
// What was taken counts from its end, by minutes: for an hour at least, and less than a minute longer. Who
// has any left may begin; so what is taken in an hour exceeds a quota by what had begun by then at most.
//
// No threads, no clock: whoever owns it locks it. Limits: 62 numbers a tenant; of those without a quota,
// whose names may be anybody's words, kQuotaOthersMax, and one more takes the place of the one that took
// least.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "compiler/support/monotonic_time.h"

namespace kiln {

class HourlyQuotas {
 public:
  using Seconds = absl::flat_hash_map<std::string, double>;  // by tenant; who is not there has no limit

  explicit HourlyQuotas(const Seconds& quotas);

  void Spend(const std::string& tenant, double seconds, MonotonicTime now);
  // Nothing where the tenant may begin something now; else the seconds until it may, if it takes no more.
  std::optional<double> SecondsUntilLeft(const std::string& tenant, MonotonicTime now) const;
  // What each took in the last hour; who took nothing is not there.
  std::map<std::string, double> Taken(MonotonicTime now) const;

 private:
  struct Minute {
    int64_t number = 0;  // of the clock's
    double seconds = 0;
  };
  struct Tenant {
    std::optional<double> quota;
    std::deque<Minute> minutes;  // of the last hour, the oldest first
  };

  static double SecondsOf(const Tenant& tenant, MonotonicTime now);
  Tenant& TenantOf(const std::string& name, MonotonicTime now);

  absl::flat_hash_map<std::string, Tenant> tenants_;
  size_t others_ = 0;  // without a quota
};

}  // namespace kiln
