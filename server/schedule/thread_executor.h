// A fixed number of threads and one queue, first come first served. What is posted is bounded by who posts:
// the coordinator by its places, RPCs by the server's streams.
//
// Thread-safe. The destructor runs what was posted, then ends; nothing may be posted any more by then.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/schedule/executor.h"

namespace kiln {

class ThreadExecutor final : public Executor {
 public:
  // UNAVAILABLE where the system gives no thread.
  static absl::StatusOr<std::unique_ptr<ThreadExecutor>> Create(size_t threads);
  ~ThreadExecutor() override;

  void Post(std::function<void()> work) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  ThreadExecutor() = default;
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); }

  absl::Mutex mutex_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // const after Create
};

}  // namespace kiln
