#include "client/admin/stall_watch.h"

#include "absl/time/time.h"

namespace kiln {

StallWatch::StallWatch(grpc::ClientContext* call, double seconds) : call_(call), seconds_(seconds) {
  Heard();
  thread_ = std::thread([this] { Run(); });
}

StallWatch::~StallWatch() {
  {
    absl::MutexLock lock(&mutex_);
    over_ = true;
  }
  thread_.join();
}

void StallWatch::Heard(double more_seconds) {
  absl::MutexLock lock(&mutex_);
  until_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                              std::chrono::duration<double>(seconds_ + more_seconds));
}

bool StallWatch::stalled() const {
  absl::MutexLock lock(&mutex_);
  return stalled_;
}

void StallWatch::Run() {
  absl::MutexLock lock(&mutex_);
  while (!over_) {
    const Clock::duration left = until_ - Clock::now();
    if (left <= Clock::duration::zero()) {
      stalled_ = true;
      call_->TryCancel();
      return;
    }
    mutex_.AwaitWithTimeout(absl::Condition(this, &StallWatch::Over), absl::FromChrono(left));
  }
}

}  // namespace kiln
