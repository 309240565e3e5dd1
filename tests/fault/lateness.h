// How much later than it asked a thread of this process goes on, on this machine and now: what a test that
// measures time may add to a limit, as far as the test bounds it.
// Threads: the owner's alone; a thread of its own naps.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "compiler/support/monotonic_time.h"

namespace kiln {

class Lateness {
 public:
  Lateness() : thread_([this] { Run(); }) {}
  ~Lateness() { End(); }
  // Of each nap, in no order. Ends it.
  const std::vector<absl::Duration>& End() {
    ended_ = true;
    if (thread_.joinable()) thread_.join();
    return times_;
  }

 private:
  void Run() {
    constexpr absl::Duration kNap = absl::Milliseconds(5);
    while (!ended_) {
      const MonotonicTime begin = MonotonicNow();
      absl::SleepFor(kNap);
      times_.push_back(absl::FromChrono(MonotonicNow() - begin) - kNap);
    }
  }
  std::atomic<bool> ended_{false};
  std::vector<absl::Duration> times_;  // the thread's until it is joined
  std::thread thread_;                 // last: it uses all of the above
};

}  // namespace kiln
