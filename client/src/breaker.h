// A circuit breaker: after `kFailures` calls in a row that the service did not answer, calls fail at once
// for a pause that doubles up to a minute; then calls try again. What the service itself says of a compile,
// be it that a worker was too slow, is an answer.
// Threads: thread safe.
#pragma once

#include <algorithm>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "compiler/support/monotonic_time.h"

namespace kiln {

class Breaker {
 public:
  static constexpr int kFailures = 2;

  bool Allows(MonotonicTime now) {
    absl::MutexLock lock(&mutex_);
    return now >= open_until_;
  }
  void Succeeded() {
    absl::MutexLock lock(&mutex_);
    failures_ = 0;
    open_until_ = MonotonicTime::min();
    pause_ = absl::Seconds(5);
  }
  void Failed(MonotonicTime now) {
    absl::MutexLock lock(&mutex_);
    if (++failures_ < kFailures) return;
    open_until_ = now + absl::ToChronoNanoseconds(pause_);
    pause_ = std::min(pause_ * 2, absl::Minutes(1));
  }

 private:
  absl::Mutex mutex_;
  int failures_ ABSL_GUARDED_BY(mutex_) = 0;
  MonotonicTime open_until_ ABSL_GUARDED_BY(mutex_) = MonotonicTime::min();
  absl::Duration pause_ ABSL_GUARDED_BY(mutex_) = absl::Seconds(5);
};

}  // namespace kiln
