// The wall's clock of processes that are started while an object of this lives (preloaded_clock.cc), until
// they end: it is set for all of them at once. Of two objects the later is the one that counts for who
// starts.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace kiln {

class ShiftedClock {
 public:
  ShiftedClock();
  ~ShiftedClock();
  ShiftedClock(const ShiftedClock&) = delete;
  ShiftedClock& operator=(const ShiftedClock&) = delete;

  // So many seconds before the machine's clock, or behind it.
  void Set(int64_t seconds) { *shift_ = seconds; }

 private:
  std::string path_;
  std::atomic<int64_t>* shift_;
};

}  // namespace kiln
