// Spreads retries: how many refused callers of each tenant are not due yet, so that the next retry delay is
// behind theirs. Otherwise all callers that a full queue refuses would return at once, and refusing them
// again would take the time of those that are served.
//
// No threads: whoever owns it locks it. Limits: an entry a tenant and second, as far ahead as one is told;
// kExpectedTenantsMax tenants, of whom one more is not counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "compiler/support/monotonic_time.h"

namespace kiln {

class ExpectedCallers {
 public:
  void Expect(const std::string& tenant, double in_seconds, MonotonicTime now);
  // Not due yet. Some of them may have given up.
  size_t Of(const std::string& tenant, MonotonicTime now);
  size_t tenants() const { return tenants_.size(); }

 private:
  struct Expected {
    std::map<int64_t, size_t> by_second;
    size_t count = 0;
  };
  void ForgetDue(Expected& expected, int64_t second);

  absl::flat_hash_map<std::string, Expected> tenants_;
};

}  // namespace kiln
