// Cancels a call in which nothing has been heard for too long: a bundle takes as long as it is large, so that
// a deadline for all of it would say nothing. Thread-safe; one thread of its own. Lives within the call.
#pragma once

#include <chrono>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/grpcpp.h"

namespace kiln {

class StallWatch {
 public:
  StallWatch(grpc::ClientContext* call, double seconds);
  ~StallWatch();

  // From now on there is the time again, and `more_seconds`.
  void Heard(double more_seconds = 0) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether it has cancelled the call.
  bool stalled() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  bool Over() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return over_; }

  grpc::ClientContext* const call_;
  const double seconds_;
  mutable absl::Mutex mutex_;
  Clock::time_point until_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  bool stalled_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kiln
