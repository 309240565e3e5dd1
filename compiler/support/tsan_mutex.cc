// Only in ThreadSanitizer builds: tells it what absl's locks order.
//
// Debian's Abseil is built without ThreadSanitizer, which therefore sees no order between two critical
// sections of an absl::Mutex and reports every guarded field. The linker routes the calls of all our
// code through these wrappers (--wrap, see CMakeLists.txt); they add the acquire and the release. A
// condition is evaluated by the thread that waits, not, as in Abseil, by the one that unlocks.
#include <sanitizer/tsan_interface.h>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

// Symbols of one function: what callers now reach, and what they reached before.
#define KILN_WRAP(result, symbol, ...)            \
  extern "C" result __real_##symbol(__VA_ARGS__); \
  extern "C" result __wrap_##symbol(__VA_ARGS__)

namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(1);

void Acquired(const absl::Mutex* mutex) { __tsan_acquire(const_cast<absl::Mutex*>(mutex)); }
void Releasing(const absl::Mutex* mutex) { __tsan_release(const_cast<absl::Mutex*>(mutex)); }

}  // namespace

KILN_WRAP(void, _ZN4absl7debian35Mutex4LockEv, absl::Mutex* mutex) {
  __real__ZN4absl7debian35Mutex4LockEv(mutex);
  Acquired(mutex);
}

KILN_WRAP(void, _ZN4absl7debian35Mutex6UnlockEv, absl::Mutex* mutex) {
  Releasing(mutex);
  __real__ZN4absl7debian35Mutex6UnlockEv(mutex);
}

KILN_WRAP(void, _ZN4absl7debian35Mutex10ReaderLockEv, absl::Mutex* mutex) {
  __real__ZN4absl7debian35Mutex10ReaderLockEv(mutex);
  Acquired(mutex);
}

KILN_WRAP(void, _ZN4absl7debian35Mutex12ReaderUnlockEv, absl::Mutex* mutex) {
  Releasing(mutex);
  __real__ZN4absl7debian35Mutex12ReaderUnlockEv(mutex);
}

KILN_WRAP(bool, _ZN4absl7debian35Mutex7TryLockEv, absl::Mutex* mutex) {
  const bool locked = __real__ZN4absl7debian35Mutex7TryLockEv(mutex);
  if (locked) Acquired(mutex);
  return locked;
}

KILN_WRAP(bool, _ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE, absl::Mutex* mutex,
          const absl::Condition* condition, absl::Time deadline) {
  while (!condition->Eval()) {
    if (absl::Now() >= deadline) return false;
    mutex->Unlock();
    absl::SleepFor(kPoll);
    mutex->Lock();
  }
  return true;
}

KILN_WRAP(bool, _ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE, absl::Mutex* mutex,
          const absl::Condition* condition, absl::Duration timeout) {
  return mutex->AwaitWithDeadline(*condition, absl::Now() + timeout);
}

KILN_WRAP(void, _ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE, absl::Mutex* mutex,
          const absl::Condition* condition) {
  mutex->AwaitWithDeadline(*condition, absl::InfiniteFuture());
}

KILN_WRAP(void, _ZN4absl7debian37CondVar4WaitEPNS0_5MutexE, absl::CondVar* variable, absl::Mutex* mutex) {
  Releasing(mutex);
  __real__ZN4absl7debian37CondVar4WaitEPNS0_5MutexE(variable, mutex);
  Acquired(mutex);
}

KILN_WRAP(bool, _ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE, absl::CondVar* variable,
          absl::Mutex* mutex, absl::Duration timeout) {
  Releasing(mutex);
  const bool timed_out =
      __real__ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE(variable, mutex, timeout);
  Acquired(mutex);
  return timed_out;
}

KILN_WRAP(bool, _ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE, absl::CondVar* variable,
          absl::Mutex* mutex, absl::Time deadline) {
  Releasing(mutex);
  const bool timed_out =
      __real__ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE(variable, mutex, deadline);
  Acquired(mutex);
  return timed_out;
}
