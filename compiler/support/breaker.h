// A circuit breaker: after a number of unanswered calls in a row, calls fail at once for a pause with
// exponential back-off; then they are tried again. Failures of calls that began before it opened don't count.
// What counts as an answer is the caller's matter. Threads: thread safe, in a process that was forked too: it
// meets none of the locks that absl::Mutex shares.
#pragma once

#include <algorithm>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "compiler/support/monotonic_time.h"

namespace kiln {

class Breaker {
 public:
  struct Options {
    int failures = 2;
    absl::Duration pause_min = absl::Seconds(5);
    absl::Duration pause_max = absl::Minutes(1);
  };
  Breaker() : Breaker(Options()) {}
  explicit Breaker(const Options& options) : options_(options), pause_(options.pause_min) {}

  bool Allows(MonotonicTime now) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return now >= open_until_;
  }
  void Succeeded() {
    const std::lock_guard<std::mutex> lock(mutex_);
    failures_ = 0;
    open_until_ = MonotonicTime::min();
    pause_ = options_.pause_min;
  }
  void Failed(MonotonicTime now) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (now < open_until_ || ++failures_ < options_.failures) return;
    open_until_ = now + absl::ToChronoNanoseconds(pause_);
    pause_ = std::min(pause_ * 2, options_.pause_max);
  }

 private:
  const Options options_;
  mutable std::mutex mutex_;
  int failures_ ABSL_GUARDED_BY(mutex_) = 0;
  MonotonicTime open_until_ ABSL_GUARDED_BY(mutex_) = MonotonicTime::min();
  absl::Duration pause_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kiln
