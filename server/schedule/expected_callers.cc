#include "server/schedule/expected_callers.h"

#include <cmath>

#include "server/server_limits.h"

namespace kiln {
namespace {

int64_t SecondOf(MonotonicTime time) {
  return std::chrono::floor<std::chrono::seconds>(time.time_since_epoch()).count();
}

}  // namespace

void ExpectedCallers::Expect(const std::string& tenant, double in_seconds, MonotonicTime now) {
  // A tenant is whatever a client says where none are configured.
  if (tenants_.size() >= kExpectedTenantsMax && !tenants_.contains(tenant)) {
    absl::erase_if(tenants_, [&](auto& other) {
      ForgetDue(other.second, SecondOf(now));
      return other.second.count == 0;
    });
    if (tenants_.size() >= kExpectedTenantsMax) return;
  }
  Expected& expected = tenants_[tenant];
  ForgetDue(expected, SecondOf(now));
  ++expected.by_second[SecondOf(now) + static_cast<int64_t>(std::ceil(in_seconds))];
  ++expected.count;
}

size_t ExpectedCallers::Of(const std::string& tenant, MonotonicTime now) {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return 0;
  ForgetDue(found->second, SecondOf(now));
  const size_t count = found->second.count;
  if (count == 0) tenants_.erase(found);
  return count;
}

void ExpectedCallers::ForgetDue(Expected& expected, int64_t second) {
  while (!expected.by_second.empty() && expected.by_second.begin()->first <= second) {
    expected.count -= expected.by_second.begin()->second;
    expected.by_second.erase(expected.by_second.begin());
  }
}

}  // namespace kiln
