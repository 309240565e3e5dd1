// The two clocks: limits and waits use the monotonic clock, which nobody sets; what people read and what is
// stored uses the wall clock. The types keep the two apart.
//
// Thread-safe.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "compiler/support/monotonic_time.h"

namespace kiln {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual MonotonicTime Now() const = 0;
  virtual absl::Time WallNow() const = 0;
};

class SystemClock final : public Clock {
 public:
  MonotonicTime Now() const override { return MonotonicNow(); }
  absl::Time WallNow() const override { return absl::Now(); }
};

}  // namespace kiln
