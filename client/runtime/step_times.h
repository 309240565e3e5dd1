// Wall time of each step of a program, while timing is on.
//
// Timing is one switch a process, off at first: a call that starts while it is on is timed. When off, a step
// pays for one test of a local flag. Threads: any; a step that runs on several threads at once is counted for
// each.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace kiln::runtime {

class StepTimes {
 public:
  struct Entry {
    std::atomic<uint64_t> runs{0};
    std::atomic<uint64_t> total_ns{0};
    std::atomic<uint64_t> least_ns{0};  // of one run; 0 before the first
  };

  explicit StepTimes(size_t steps) : size_(steps), entries_(new Entry[steps]) {}

  static void Switch(bool on) { on_.store(on, std::memory_order_relaxed); }
  static bool On() { return on_.load(std::memory_order_relaxed); }

  size_t size() const { return size_; }
  const Entry& operator[](size_t step) const { return entries_[step]; }

  void Add(size_t step, uint64_t ns) {
    Entry& entry = entries_[step];
    entry.runs.fetch_add(1, std::memory_order_relaxed);
    entry.total_ns.fetch_add(ns, std::memory_order_relaxed);
    uint64_t least = entry.least_ns.load(std::memory_order_relaxed);
    while ((least == 0 || ns < least) &&
           !entry.least_ns.compare_exchange_weak(least, ns, std::memory_order_relaxed)) {
    }
  }

 private:
  inline static std::atomic<bool> on_{false};

  size_t size_;
  std::unique_ptr<Entry[]> entries_;
};

// Adds the time of its scope to a step; to none where `times` is null.
class StepTimer {
 public:
  StepTimer(StepTimes* times, size_t step) : times_(times), step_(step) {
    if (times_ != nullptr) begin_ = std::chrono::steady_clock::now();
  }
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;
  ~StepTimer() {
    if (times_ == nullptr) return;
    const auto spent = std::chrono::steady_clock::now() - begin_;
    times_->Add(step_, std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count());
  }

 private:
  StepTimes* times_;
  size_t step_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace kiln::runtime
