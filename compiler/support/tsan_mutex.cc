// Only in ThreadSanitizer builds: tells it what absl's locks order.
//
// Debian's Abseil is built without ThreadSanitizer, which therefore sees no order between two critical
// sections of an absl::Mutex and would report every guarded field. This shared library defines the locking
// members of absl::Mutex, CondVar and Notification once more. It stands before Abseil in the order in which
// the dynamic linker looks symbols up, so that every caller, also inside Abseil and gRPC, gets these; they
// tell ThreadSanitizer what happens and call Abseil's own.
//
// A condition is evaluated by the thread that waits, in a loop. In Abseil the thread that unlocks evaluates
// it for the others, which would read the guarded fields when it has already said that it let go.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <typeinfo>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(1);

enum class Share { kWrite, kRead };

unsigned Flags(Share share) { return share == Share::kRead ? __tsan_mutex_read_lock : 0; }

// A member function of Abseil's `Class`, as a function of the object: the next after this library's own.
template <typename Class, typename Result, typename... Args>
class Real {
 public:
  // `member`: its name and argument types as they are mangled.
  explicit Real(const char* member) {
    std::string scope = typeid(Class).name();  // N…E
    scope = scope.substr(1, scope.size() - 2);
    const std::string symbol = (std::is_const_v<Class> ? "_ZNK" : "_ZN") + scope + member;
    function_ = reinterpret_cast<Result (*)(Class*, Args...)>(dlsym(RTLD_NEXT, symbol.c_str()));
    if (function_ == nullptr) {
      std::fprintf(stderr, "tsan_mutex: Abseil has no %s\n", symbol.c_str());
      std::abort();
    }
  }
  Result operator()(Class* object, Args... args) const { return function_(object, args...); }

 private:
  Result (*function_)(Class*, Args...);
};

using Lock = Real<absl::Mutex, void>;
using TryLock = Real<absl::Mutex, bool>;

void Acquire(absl::Mutex* mutex, Share share, const Lock& lock) {
  __tsan_mutex_pre_lock(mutex, Flags(share));
  lock(mutex);
  __tsan_mutex_post_lock(mutex, Flags(share), 0);
}

bool TryAcquire(absl::Mutex* mutex, Share share, const TryLock& lock) {
  const unsigned flags = Flags(share) | __tsan_mutex_try_lock;
  __tsan_mutex_pre_lock(mutex, flags);
  const bool locked = lock(mutex);
  __tsan_mutex_post_lock(mutex, locked ? flags : flags | __tsan_mutex_try_lock_failed, 0);
  return locked;
}

void Release(absl::Mutex* mutex, Share share, const Lock& unlock) {
  __tsan_mutex_pre_unlock(mutex, Flags(share));
  unlock(mutex);
  __tsan_mutex_post_unlock(mutex, Flags(share));
}

// Waits for the condition with the mutex held in either way, as AwaitWithDeadline says.
bool Poll(absl::Mutex* mutex, Share share, const absl::Condition& condition, absl::Time deadline) {
  while (!condition.Eval()) {
    if (absl::Now() >= deadline) return false;
    share == Share::kRead ? mutex->ReaderUnlock() : mutex->Unlock();
    absl::SleepFor(kPoll);
    share == Share::kRead ? mutex->ReaderLock() : mutex->Lock();
  }
  return true;
}

// CondVar's waits let go of the mutex, which is held for writing, and take it again.
template <typename Wait>
auto WaitAsUnlocked(absl::Mutex* mutex, Wait wait) {
  struct Unlocked {
    explicit Unlocked(absl::Mutex* held) : mutex(held) {
      __tsan_mutex_pre_unlock(mutex, 0);
      __tsan_mutex_post_unlock(mutex, 0);
      __tsan_mutex_pre_lock(mutex, 0);
    }
    ~Unlocked() { __tsan_mutex_post_lock(mutex, 0, 0); }
    absl::Mutex* mutex;
  } unlocked(mutex);
  return wait();
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

// ThreadSanitizer is not told of its end: of what gRPC allocates, counts and frees in its own library it sees
// neither that the last one comes after all locks, nor that the memory is another's afterwards.
Mutex::~Mutex() {
  static const Real<Mutex, void> real("D1Ev");
  real(this);
}

void Mutex::Lock() {
  static const ::Lock real("4LockEv");
  Acquire(this, Share::kWrite, real);
}

void Mutex::Unlock() {
  static const ::Lock real("6UnlockEv");
  Release(this, Share::kWrite, real);
}

bool Mutex::TryLock() {
  static const ::TryLock real("7TryLockEv");
  return TryAcquire(this, Share::kWrite, real);
}

void Mutex::ReaderLock() {
  static const ::Lock real("10ReaderLockEv");
  Acquire(this, Share::kRead, real);
}

void Mutex::ReaderUnlock() {
  static const ::Lock real("12ReaderUnlockEv");
  Release(this, Share::kRead, real);
}

bool Mutex::ReaderTryLock() {
  static const ::TryLock real("13ReaderTryLockEv");
  return TryAcquire(this, Share::kRead, real);
}

// Nobody here awaits under a reader's lock.
void Mutex::Await(const Condition& condition) { Poll(this, Share::kWrite, condition, InfiniteFuture()); }

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  return Poll(this, Share::kWrite, condition, Now() + timeout);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  return Poll(this, Share::kWrite, condition, deadline);
}

void Mutex::LockWhen(const Condition& condition) { LockWhenWithDeadline(condition, InfiniteFuture()); }

bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  return LockWhenWithDeadline(condition, Now() + timeout);
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  Lock();
  return Poll(this, Share::kWrite, condition, deadline);
}

void Mutex::ReaderLockWhen(const Condition& condition) {
  ReaderLockWhenWithDeadline(condition, InfiniteFuture());
}

bool Mutex::ReaderLockWhenWithTimeout(const Condition& condition, Duration timeout) {
  return ReaderLockWhenWithDeadline(condition, Now() + timeout);
}

bool Mutex::ReaderLockWhenWithDeadline(const Condition& condition, Time deadline) {
  ReaderLock();
  return Poll(this, Share::kRead, condition, deadline);
}

void CondVar::Wait(Mutex* mutex) {
  static const Real<CondVar, void, Mutex*> real("4WaitEPNS0_5MutexE");
  WaitAsUnlocked(mutex, [&] { real(this, mutex); });
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  return WaitWithDeadline(mutex, Now() + timeout);
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static const Real<CondVar, bool, Mutex*, Time> real("16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  return WaitAsUnlocked(mutex, [&] { return real(this, mutex, deadline); });
}

// A notification that has already come is seen by an atomic alone, without its mutex.
void Notification::Notify() {
  static const Real<Notification, void> real("6NotifyEv");
  __tsan_release(this);
  real(this);
}

void Notification::WaitForNotification() const {
  static const Real<const Notification, void> real("19WaitForNotificationEv");
  real(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  return WaitForNotificationWithDeadline(Now() + timeout);
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  static const Real<const Notification, bool, Time> real("31WaitForNotificationWithDeadlineENS0_4TimeE");
  const bool notified = real(this, deadline);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

ABSL_NAMESPACE_END
}  // namespace absl
