// The bounded queue of flights: at most `runners` run, at most `queue_max` wait, in order of arrival.
// Beyond it a caller is told at once (RESOURCE_EXHAUSTED), before its graph is uploaded where possible.
//
// Thread-safe. `Drain` refuses new work and waits for what was admitted. The destructor waits for
// the running jobs and drops the waiting ones, so drain (or cancel) first.
#pragma once

#include <cstdint>
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

  struct Place {
    uint64_t ticket = 0;
    size_t before = 0;  // jobs
  };
  // RESOURCE_EXHAUSTED when full, UNAVAILABLE when draining.
  absl::StatusOr<Place> Enqueue(std::function<void()> job);
  // Drops a job that still waits, and its place is free for another. False where it runs or has run.
  bool Withdraw(uint64_t ticket);
  absl::Status CheckRoom() const;  // as Enqueue would answer now

  // True when everything ended before the deadline.
  bool Drain(absl::Time deadline);

  size_t queued() const;
  size_t running() const;

 private:
  struct Job {
    uint64_t ticket = 0;
    std::function<void()> run;
  };
  void Run();
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !jobs_.empty(); }
  bool Empty() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return running_ == 0 && jobs_.empty(); }
  absl::Status Room() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const size_t queue_max_;
  std::vector<std::thread> threads_;  // const after construction

  mutable absl::Mutex mutex_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);  // by ticket
  uint64_t last_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kiln
