// Writes to the shared tier in the background, by one thread: first in, first out, and strictly so for each
// key.
//
// A write that the tier does not take for now (UNAVAILABLE, DEADLINE_EXCEEDED) is tried again, with pauses,
// for half a minute, while those of other keys go on; one that it refuses, or that came when `bytes_max` wait
// already, is dropped and counted. What was dropped is compiled again by others, or written when somebody
// uses it.
//
// Threads: thread-safe. The destructor finishes what waits, for two seconds at most, and drops the rest.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "compiler/support/monotonic_cond_var.h"
#include "compiler/support/monotonic_time.h"

namespace kiln {

class TierWriter {
 public:
  // UNAVAILABLE where the system gives no thread.
  static absl::StatusOr<std::unique_ptr<TierWriter>> Create(uint64_t bytes_max);
  ~TierWriter();

  // `write` is called on the writer's thread until it says something else than "not now"; then `ended`, if
  // any, on whatever thread. `bytes`: what is held for it; of nothing, too, a kilobyte counts.
  void Post(const std::string& key, uint64_t bytes, std::function<absl::Status()> write,
            std::function<void()> ended = nullptr) ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls `ended` when what was posted before of the key has been written or dropped.
  void After(const std::string& key, std::function<void()> ended) { Post(key, 0, nullptr, std::move(ended)); }

  uint64_t written() const { return written_.load(std::memory_order_relaxed); }
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  struct Job {
    std::string key;
    uint64_t bytes = 0;
    std::function<absl::Status()> write;
    std::function<void()> ended;
    absl::Duration pause;
    MonotonicTime next = MonotonicTime::min();
    MonotonicTime patience = MonotonicTime::max();  // from the first try on
  };
  using Jobs = std::list<Job>;
  explicit TierWriter(uint64_t bytes_max) : bytes_max_(bytes_max) {}
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // The next to be tried, which leaves the queue; empty: all is done.
  Jobs AwaitDue() ABSL_LOCKS_EXCLUDED(mutex_);
  // False: it is to be tried again.
  bool Try(Job* job) ABSL_LOCKS_EXCLUDED(mutex_);

  const uint64_t bytes_max_;
  std::atomic<uint64_t> written_{0};
  std::atomic<uint64_t> dropped_{0};
  absl::Mutex mutex_;
  MonotonicCondVar changed_;
  Jobs queue_ ABSL_GUARDED_BY(mutex_);          // the earliest of a key first
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of the one being written too
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  MonotonicTime closing_at_latest_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace kiln
