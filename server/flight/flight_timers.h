// The table's timers of calls and flights: one ordered set, the earliest first, at equal times the call.
//
// No threads, no clock: whoever owns it locks it. Limits: who sets bounds what is set.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>

#include "absl/container/btree_set.h"
#include "compiler/support/monotonic_time.h"

namespace kiln {

class FlightTimers {
 public:
  enum class Of { kCall, kFlight };
  struct Timer {
    MonotonicTime at;
    Of of = Of::kCall;
    uint64_t id = 0;
    auto operator<=>(const Timer&) const = default;
  };

  void Set(MonotonicTime at, Of of, uint64_t id) { timers_.insert({at, of, id}); }
  void Clear(MonotonicTime at, Of of, uint64_t id) { timers_.erase({at, of, id}); }
  std::optional<Timer> TakeDue(MonotonicTime now) {
    if (timers_.empty() || timers_.begin()->at > now) return std::nullopt;
    const Timer due = *timers_.begin();
    timers_.erase(timers_.begin());
    return due;
  }
  std::optional<MonotonicTime> next() const {
    if (timers_.empty()) return std::nullopt;
    return timers_.begin()->at;
  }

 private:
  absl::btree_set<Timer> timers_;
};

}  // namespace kiln
