// Time that a simulation sets; the wall's is whatever somebody sets it to. Threads: one.
#pragma once

#include <chrono>

#include "absl/time/time.h"
#include "server/schedule/clock.h"

namespace kiln::sim {

class SimClock final : public Clock {
 public:
  MonotonicTime Now() const override {
    return limits_by_wall ? now + absl::ToChronoMicroseconds(wall - absl::UnixEpoch()) : now;
  }
  absl::Time WallNow() const override { return wall; }

  MonotonicTime now{std::chrono::hours(1)};
  absl::Time wall = absl::UnixEpoch();
  bool limits_by_wall = false;  // planted: what no clock may do
};

}  // namespace kiln::sim
