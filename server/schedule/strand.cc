#include "server/schedule/strand.h"

#include <utility>

#include "absl/synchronization/notification.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"

namespace kiln {

absl::StatusOr<std::unique_ptr<Strand>> Strand::Create(const Clock* clock, NextTick next_tick,
                                                       std::function<void()> tick) {
  std::unique_ptr<Strand> strand(new Strand(clock, std::move(next_tick), std::move(tick)));
  KILN_ASSIGN_OR_RETURN(strand->thread_, StartThread([self = strand.get()] { self->Loop(); }));
  return strand;
}

Strand::~Strand() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Strand::Post(std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  queue_.push_back(std::move(work));
  changed_.SignalAll();
}

void Strand::Run(const std::function<void()>& work) {
  absl::Notification done;
  Post([&] {
    work();
    done.Notify();
  });
  done.WaitForNotification();
}

void Strand::Loop() {
  while (true) {
    const std::optional<MonotonicTime> next = next_tick_();
    const MonotonicTime until = next.value_or(MonotonicTime::max());
    std::deque<std::function<void()>> work;
    {
      absl::MutexLock lock(&mutex_);
      while (!HasWork() && clock_->Now() < until) changed_.WaitUntil(&mutex_, until);
      if (stopping_ && queue_.empty()) return;
      work.swap(queue_);
    }
    for (std::function<void()>& one : work) one();
    if (next.has_value() && clock_->Now() >= *next) tick_();
  }
}

}  // namespace kiln
