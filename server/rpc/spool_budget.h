// Bounds the bytes that all imports together spool to files before they are put into the store.
//
// Threads: thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace kiln {

class SpoolBudget {
 public:
  explicit SpoolBudget(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // Released with its end; the budget outlives it.
  using Share = std::unique_ptr<SpoolBudget, std::function<void(SpoolBudget*)>>;
  // RESOURCE_EXHAUSTED, with when to come again where others have what is missing (`PushbackOf`).
  absl::StatusOr<Share> Take(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const uint64_t bytes_max_;
  absl::Mutex mutex_;
  uint64_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kiln
