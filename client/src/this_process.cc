#include "client/src/this_process.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

#include "absl/synchronization/mutex.h"

namespace kiln {
namespace {

std::atomic<uint32_t> forks{0};

[[maybe_unused]] const int counted = pthread_atfork(nullptr, nullptr, [] {
  forks.fetch_add(1, std::memory_order_relaxed);
  // Debian builds absl with its search for deadlocks on, which takes one lock of the process at every other:
  // a thread of the parent may have held it, and nobody gives it back here.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
});

}  // namespace

uint64_t ThisProcess() {
  return (uint64_t{forks.load(std::memory_order_relaxed)} << 32) | static_cast<uint32_t>(getpid());
}

}  // namespace kiln
