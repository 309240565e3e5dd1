// Writes to the shared tier in the background, in the order of their arrival, by one thread.
//
// A write that the tier does not take for now (UNAVAILABLE, DEADLINE_EXCEEDED) is tried again, with pauses,
// for half a minute; one that it refuses, or that came when `bytes_max` wait already, is dropped and counted.
// What was dropped is compiled again by others, or written when somebody uses it.
//
// Threads: thread-safe. The destructor finishes what waits, for two seconds at most, and drops the rest.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "compiler/support/monotonic_cond_var.h"
#include "compiler/support/monotonic_time.h"

namespace kiln {

class TierWriter {
 public:
  // UNAVAILABLE where the system gives no thread.
  static absl::StatusOr<std::unique_ptr<TierWriter>> Create(uint64_t bytes_max);
  ~TierWriter();

  // `write` is called on the writer's thread until it says something else than "not now"; then `ended`, if
  // any, on whatever thread. `bytes`: what is held for it.
  void Post(uint64_t bytes, std::function<absl::Status()> write, std::function<void()> ended = nullptr)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls `ended` when what was posted before has been written or dropped.
  void After(std::function<void()> ended) { Post(0, nullptr, std::move(ended)); }

  uint64_t written() const { return written_.load(std::memory_order_relaxed); }
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  struct Job {
    uint64_t bytes = 0;
    std::function<absl::Status()> write;
    std::function<void()> ended;
  };
  explicit TierWriter(uint64_t bytes_max) : bytes_max_(bytes_max) {}
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Write(const Job& job) ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return closing_ || !queue_.empty(); }
  bool MayGoOn() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return !closing_ || MonotonicNow() < closing_at_latest_;
  }

  const uint64_t bytes_max_;
  std::atomic<uint64_t> written_{0};
  std::atomic<uint64_t> dropped_{0};
  absl::Mutex mutex_;
  MonotonicCondVar closed_;
  std::deque<Job> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of the one being written too
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  MonotonicTime closing_at_latest_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace kiln
