// A library to preload: the wall's clock runs as many seconds before or behind as the file KILN_TEST_CLOCK
// says (eight bytes, mapped, so that whoever writes them sets the clock of a running process). As when a
// person sets it, waits for a time of the wall's clock end earlier or later; the monotonic clock and relative
// waits do not change.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace {

constexpr int64_t kNanoseconds = 1'000'000'000;
constexpr int64_t kSlice = 20'000'000;  // how often a wait looks at the clock

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

std::atomic<int64_t>* MapShift() {
  const char* path = getenv("KILN_TEST_CLOCK");
  const int fd = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* at = mmap(nullptr, sizeof(std::atomic<int64_t>), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  return at == MAP_FAILED ? nullptr : static_cast<std::atomic<int64_t>*>(at);
}

int64_t ShiftSeconds() {
  static std::atomic<int64_t>* const shift = MapShift();
  return shift == nullptr ? 0 : shift->load(std::memory_order_relaxed);
}

int64_t Count(const timespec& time) { return time.tv_sec * kNanoseconds + time.tv_nsec; }
timespec After(int64_t nanoseconds) { return {nanoseconds / kNanoseconds, nanoseconds % kNanoseconds}; }

int RealClock(clockid_t clock, timespec* time) {
  static auto* const real = Next<int(clockid_t, timespec*)>("clock_gettime");
  return real(clock, time);
}

int64_t Now(clockid_t clock) {
  timespec time;
  RealClock(clock, &time);
  return Count(time) + (clock == CLOCK_REALTIME ? ShiftSeconds() * kNanoseconds : 0);
}

// A wait until a time of the wall's clock, in slices of the monotonic one.
long WaitForFutex(long address, long operation, long value, const timespec* until, long other, long bits) {
  static auto* const real = Next<long(long, ...)>("syscall");
  const long monotonic = operation & ~static_cast<long>(FUTEX_CLOCK_REALTIME);
  while (true) {
    const int64_t left = Count(*until) - Now(CLOCK_REALTIME);
    if (left <= 0) {
      errno = ETIMEDOUT;
      return -1;
    }
    const timespec slice = After(Now(CLOCK_MONOTONIC) + (left < kSlice ? left : kSlice));
    const long result = real(SYS_futex, address, monotonic, value, &slice, other, bits);
    if (result == 0 || errno != ETIMEDOUT) return result;
  }
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) {
  const int result = RealClock(clock, time);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    time->tv_sec += ShiftSeconds();
  return result;
}

int gettimeofday(timeval* time, void*) {
  const int64_t now = Now(CLOCK_REALTIME);
  *time = {now / kNanoseconds, now % kNanoseconds / 1000};
  return 0;
}

time_t time(time_t* to) {
  const time_t now = Now(CLOCK_REALTIME) / kNanoseconds;
  if (to != nullptr) *to = now;
  return now;
}

// RocksDB's waits. It may wake up for nothing, as any condition may.
int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until) {
  const int64_t left = Count(*until) - Now(CLOCK_REALTIME);
  if (left <= 0) return ETIMEDOUT;
  const timespec slice = After(Now(CLOCK_MONOTONIC) + (left < kSlice ? left : kSlice));
  const int result = pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &slice);
  return result == ETIMEDOUT && left > kSlice ? 0 : result;
}

// Abseil's waits.
long syscall(long number, ...) {
  static auto* const real = Next<long(long, ...)>("syscall");
  va_list list;
  va_start(list, number);
  long words[6];
  for (long& word : words) word = va_arg(list, long);
  va_end(list);
  const auto* until = reinterpret_cast<const timespec*>(words[3]);
  if (number == SYS_futex && (words[1] & FUTEX_CLOCK_REALTIME) != 0 && until != nullptr)
    return WaitForFutex(words[0], words[1], words[2], until, words[4], words[5]);
  return real(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

}  // extern "C"
