#include "tests/fault/shifted_clock.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "gtest/gtest.h"

namespace kiln {

ShiftedClock::ShiftedClock() {
  char path[] = "/tmp/kiln-test-clock-XXXXXX";
  const int fd = mkstemp(path);
  path_ = path;
  EXPECT_EQ(ftruncate(fd, sizeof(int64_t)), 0);
  void* at = mmap(nullptr, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  shift_ = new (at) std::atomic<int64_t>(0);
  setenv("KILN_TEST_CLOCK", path, 1);
  setenv("LD_PRELOAD", PRELOADED_CLOCK, 1);
}

ShiftedClock::~ShiftedClock() {
  unsetenv("LD_PRELOAD");
  unsetenv("KILN_TEST_CLOCK");
  munmap(static_cast<void*>(shift_), sizeof(int64_t));
  unlink(path_.c_str());
}

}  // namespace kiln
