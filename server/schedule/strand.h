// One thread that runs what is posted, in order, and one timer: whatever lives on a strand needs no lock.
//
// Post is thread-safe and returns at once. The destructor runs what was posted, without the timer, and ends.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "compiler/support/monotonic_cond_var.h"
#include "server/schedule/clock.h"
#include "server/schedule/executor.h"

namespace kiln {

class Strand final : public Executor {
 public:
  // Asked on the strand, after all else: when `tick` is to be called. Nothing: not until more is posted.
  using NextTick = std::function<std::optional<MonotonicTime>()>;
  // UNAVAILABLE where the system gives no thread. `clock` outlives the strand.
  static absl::StatusOr<std::unique_ptr<Strand>> Create(const Clock* clock, NextTick next_tick,
                                                        std::function<void()> tick);
  ~Strand() override;

  void Post(std::function<void()> work) override ABSL_LOCKS_EXCLUDED(mutex_);
  // Posts, and waits for it. Not from the strand itself.
  void Run(const std::function<void()>& work);

 private:
  Strand(const Clock* clock, NextTick next_tick, std::function<void()> tick)
      : clock_(clock), next_tick_(std::move(next_tick)), tick_(std::move(tick)) {}
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); }

  const Clock* const clock_;
  const NextTick next_tick_;
  const std::function<void()> tick_;

  absl::Mutex mutex_;
  MonotonicCondVar changed_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // const after Create
};

}  // namespace kiln
