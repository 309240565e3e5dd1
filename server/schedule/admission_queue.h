// The bounded queue of flights: at most `runners` run, at most `queue_max` wait, in order of arrival.
// Beyond it a caller is told at once (RESOURCE_EXHAUSTED), before its graph is uploaded where possible.
//
// Thread-safe. `Drain` refuses new work and waits for what was admitted. The destructor waits for
// the running jobs and drops the waiting ones, so drain (or cancel) first.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace kiln {

class AdmissionQueue {
 public:
  AdmissionQueue(size_t runners, size_t queue_max);
  ~AdmissionQueue();

  // The number of jobs before this one. RESOURCE_EXHAUSTED when full, UNAVAILABLE when draining.
  absl::StatusOr<size_t> Enqueue(std::function<void()> job);
  absl::Status CheckRoom() const;  // as Enqueue would answer now

  // True when everything ended before the deadline.
  bool Drain(absl::Time deadline);

  size_t queued() const;
  size_t running() const;

 private:
  void Run();
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !jobs_.empty(); }
  bool Empty() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return running_ == 0 && jobs_.empty(); }
  absl::Status Room() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const size_t queue_max_;
  std::vector<std::thread> threads_;  // const after construction

  mutable absl::Mutex mutex_;
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mutex_);
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kiln
