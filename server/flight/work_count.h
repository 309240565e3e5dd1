// Counts work in flight, so that a shutdown can wait for its end.
//
// Thread-safe.
#pragma once

#include <cstddef>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace kiln {

class WorkCount {
 public:
  void Begin() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    ++at_work_;
  }
  void End() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    --at_work_;
  }
  void AwaitNone() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &WorkCount::NothingIsAtWork));
  }

 private:
  bool NothingIsAtWork() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return at_work_ == 0; }

  absl::Mutex mutex_;
  size_t at_work_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kiln
