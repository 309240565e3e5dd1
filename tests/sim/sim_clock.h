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

// The clock of one machine, whose wall is set apart from the others'.
class SkewedClock final : public Clock {
 public:
  // `clock` outlives it.
  SkewedClock(const SimClock* clock, absl::Duration skew) : clock_(clock), skew_(skew) {}
  MonotonicTime Now() const override { return clock_->Now(); }
  absl::Time WallNow() const override { return clock_->WallNow() + skew_; }

 private:
  const SimClock* const clock_;
  const absl::Duration skew_;
};

}  // namespace kiln::sim
