// Time that a simulation sets. Threads: one.
#pragma once

#include <chrono>

#include "absl/time/time.h"
#include "server/schedule/clock.h"

namespace kiln::sim {

class SimClock final : public Clock {
 public:
  MonotonicTime Now() const override { return now; }
  absl::Time WallNow() const override { return absl::UnixEpoch(); }
  MonotonicTime now{std::chrono::hours(1)};
};

}  // namespace kiln::sim
