#include "server/schedule/admission_queue.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "compiler/support/status_macros.h"

namespace kiln {

AdmissionQueue::AdmissionQueue(size_t runners, size_t queue_max) : queue_max_(queue_max) {
  // Nobody can enqueue before the constructor returns, so the runners never see a growing vector.
  for (size_t i = 0; i < runners; ++i) threads_.emplace_back(&AdmissionQueue::Run, this);
}

AdmissionQueue::~AdmissionQueue() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    jobs_.clear();
  }
  for (std::thread& thread : threads_) thread.join();
}

absl::Status AdmissionQueue::Room() const {
  if (draining_ || stopping_) return absl::UnavailableError("the daemon is stopping");
  if (jobs_.size() + running_ < threads_.size() + queue_max_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the queue is full (", jobs_.size(), " waiting); try again later"));
}

absl::Status AdmissionQueue::CheckRoom() const {
  absl::ReaderMutexLock lock(&mutex_);
  return Room();
}

absl::StatusOr<AdmissionQueue::Place> AdmissionQueue::Enqueue(std::function<void()> job) {
  absl::MutexLock lock(&mutex_);
  KILN_RETURN_IF_ERROR(Room());
  jobs_.push_back({++last_ticket_, std::move(job)});
  return Place{last_ticket_, jobs_.size() - 1 + running_};
}

bool AdmissionQueue::Withdraw(uint64_t ticket) {
  std::function<void()> dropped;  // ends without the lock
  absl::MutexLock lock(&mutex_);
  const auto found =
      absl::c_lower_bound(jobs_, ticket, [](const Job& job, uint64_t t) { return job.ticket < t; });
  if (found == jobs_.end() || found->ticket != ticket) return false;
  dropped = std::move(found->run);
  jobs_.erase(found);
  return true;
}

void AdmissionQueue::Run() {
  while (true) {
    std::function<void()> job;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &AdmissionQueue::HasWork));
      if (stopping_) return;
      job = std::move(jobs_.front().run);
      jobs_.pop_front();
      ++running_;
    }
    job();
    job = nullptr;
    absl::MutexLock lock(&mutex_);
    --running_;
  }
}

bool AdmissionQueue::Drain(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
  return mutex_.AwaitWithDeadline(absl::Condition(this, &AdmissionQueue::Empty), deadline);
}

size_t AdmissionQueue::queued() const {
  absl::ReaderMutexLock lock(&mutex_);
  return jobs_.size();
}

size_t AdmissionQueue::running() const {
  absl::ReaderMutexLock lock(&mutex_);
  return running_;
}

}  // namespace kiln
