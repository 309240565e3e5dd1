// Processes whose wall clock a test sets (shifted_clock.cc). SHIFTED_CLOCK is the library's file. Not with a
// sanitizer, which wants to be the first library.
// Threads: one at a time, as the environment is.
#pragma once

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <new>
#include <string>

#include "gtest/gtest.h"

namespace kiln {

// The clock of processes that are started while this object lives.
class ShiftedClock {
 public:
  ShiftedClock() {
    char path[] = "/tmp/kiln-test-clock-XXXXXX";
    const int fd = mkstemp(path);
    path_ = path;
    EXPECT_EQ(ftruncate(fd, sizeof(int64_t)), 0);
    void* at = mmap(nullptr, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    shift_ = new (at) std::atomic<int64_t>(0);
    setenv("KILN_TEST_CLOCK", path, 1);
    setenv("LD_PRELOAD", SHIFTED_CLOCK, 1);
  }
  ~ShiftedClock() {
    unsetenv("LD_PRELOAD");
    unsetenv("KILN_TEST_CLOCK");
    munmap(static_cast<void*>(shift_), sizeof(int64_t));
    unlink(path_.c_str());
  }
  ShiftedClock(const ShiftedClock&) = delete;
  ShiftedClock& operator=(const ShiftedClock&) = delete;

  void Set(int64_t seconds) { *shift_ = seconds; }

 private:
  std::string path_;
  std::atomic<int64_t>* shift_;
};

}  // namespace kiln
