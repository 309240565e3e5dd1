// How much later than it asked a thread of this process goes on, on this machine and now: what a test that
// measures time may add to a limit, as far as the test bounds it.
// Threads: the owner's alone; a thread of its own naps.
#pragma once

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "compiler/support/monotonic_time.h"

namespace kiln {

class WorstLateness {
 public:
  WorstLateness() : thread_([this] { Run(); }) {}
  ~WorstLateness() { End(absl::ZeroDuration()); }
  // So far, `at_most` at most. Ends it.
  absl::Duration End(absl::Duration at_most) {
    ended_ = true;
    if (thread_.joinable()) thread_.join();
    return std::min(worst_, at_most);
  }

 private:
  void Run() {
    constexpr absl::Duration kNap = absl::Milliseconds(5);
    while (!ended_) {
      const MonotonicTime begin = MonotonicNow();
      absl::SleepFor(kNap);
      worst_ = std::max(worst_, absl::FromChrono(MonotonicNow() - begin) - kNap);
    }
  }
  std::atomic<bool> ended_{false};
  absl::Duration worst_ = absl::ZeroDuration();  // the thread's until it is joined
  std::thread thread_;                           // last: it uses all of the above
};

}  // namespace kiln
