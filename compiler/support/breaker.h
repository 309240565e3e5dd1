// A circuit breaker: after a number of unanswered calls in a row, calls fail at once for a pause with
// exponential back-off; then they are tried again. Failures of calls that began before it opened don't count.
// What counts as an answer is the caller's matter. Threads: thread safe.
#pragma once

#include <algorithm>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
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
    absl::MutexLock lock(&mutex_);
    return now >= open_until_;
  }
  void Succeeded() {
    absl::MutexLock lock(&mutex_);
    failures_ = 0;
    open_until_ = MonotonicTime::min();
    pause_ = options_.pause_min;
  }
  void Failed(MonotonicTime now) {
    absl::MutexLock lock(&mutex_);
    if (now < open_until_ || ++failures_ < options_.failures) return;
    open_until_ = now + absl::ToChronoNanoseconds(pause_);
    pause_ = std::min(pause_ * 2, options_.pause_max);
  }

 private:
  const Options options_;
  mutable absl::Mutex mutex_;
  int failures_ ABSL_GUARDED_BY(mutex_) = 0;
  MonotonicTime open_until_ ABSL_GUARDED_BY(mutex_) = MonotonicTime::min();
  absl::Duration pause_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kiln
