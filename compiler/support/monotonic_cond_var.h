// A condition variable for absl::Mutex with deadlines on the monotonic clock. Abseil's own use the wall
// clock: when that is set back by a day, they wait a day longer.
//
// Thread-safe. Waits may end for no reason.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "compiler/support/monotonic_time.h"

namespace kiln {

class MonotonicCondVar {
 public:
  // Ends at a signal that comes after this thread held `mutex`, or at the deadline.
  void WaitUntil(absl::Mutex* mutex, MonotonicTime deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock lock(signalling_);
    const uint64_t seen = signals_;
    mutex->Unlock();
    const auto signalled = [&] { return signals_ != seen; };
    if (deadline == MonotonicTime::max()) {
      changed_.wait(lock, signalled);
    } else {
      changed_.wait_until(lock, deadline, signalled);
    }
    lock.unlock();  // who signals may hold `mutex`
    mutex->Lock();
  }

  void SignalAll() {
    std::lock_guard lock(signalling_);
    ++signals_;
    changed_.notify_all();
  }

 private:
  std::mutex signalling_;
  std::condition_variable changed_;
  uint64_t signals_ = 0;
};

}  // namespace kiln
