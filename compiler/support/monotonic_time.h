// A point of time on the monotonic clock, for limits and waits. A type of its own, so that it never mixes
// with wall-clock time (absl::Time). Threads: pure functions.
#pragma once

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"

namespace kiln {

using MonotonicTime = std::chrono::steady_clock::time_point;

inline MonotonicTime MonotonicNow() { return std::chrono::steady_clock::now(); }

// From now; a year stands for ever.
inline MonotonicTime MonotonicAfter(absl::Duration duration) {
  return MonotonicNow() + absl::ToChronoNanoseconds(std::min(duration, absl::Hours(24 * 365)));
}

inline double SecondsBetween(MonotonicTime begin, MonotonicTime end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace kiln
