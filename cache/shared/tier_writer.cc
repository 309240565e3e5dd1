#include "cache/shared/tier_writer.h"

#include <algorithm>
#include <utility>

#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);  // with one write
constexpr absl::Duration kPauseMin = absl::Milliseconds(50);
constexpr absl::Duration kPauseMax = absl::Seconds(2);
constexpr absl::Duration kLastWrites = absl::Seconds(2);

bool IsForNow(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TierWriter>> TierWriter::Create(uint64_t bytes_max) {
  std::unique_ptr<TierWriter> made(new TierWriter(bytes_max));
  TierWriter* const writer = made.get();
  KILN_ASSIGN_OR_RETURN(made->thread_, StartThread([writer] { writer->Run(); }));
  return made;
}

TierWriter::~TierWriter() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    closed_.SignalAll();
    closing_at_latest_ = MonotonicAfter(kLastWrites);
  }
  if (thread_.joinable()) thread_.join();
}

void TierWriter::Post(uint64_t bytes, std::function<absl::Status()> write, std::function<void()> ended) {
  {
    absl::MutexLock lock(&mutex_);
    if (bytes_ + bytes <= bytes_max_) {
      bytes_ += bytes;
      queue_.push_back({bytes, std::move(write), std::move(ended)});
      return;
    }
  }
  dropped_.fetch_add(1, std::memory_order_relaxed);
  if (ended) ended();
}

void TierWriter::Run() {
  while (true) {
    Job job;
    bool in_time = true;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &TierWriter::HasWork));
      if (queue_.empty()) return;
      job = std::move(queue_.front());
      queue_.pop_front();
      in_time = MayGoOn();
    }
    if (job.write) {
      const absl::Status status = in_time ? Write(job) : absl::CancelledError("the daemon stops");
      (status.ok() ? written_ : dropped_).fetch_add(1, std::memory_order_relaxed);
      if (!status.ok()) spdlog::warn("a write to the shared tier is dropped: {}", status.ToString());
    }
    if (job.ended) job.ended();
    absl::MutexLock lock(&mutex_);
    bytes_ -= job.bytes;
  }
}

absl::Status TierWriter::Write(const Job& job) {
  const MonotonicTime patience = MonotonicAfter(kPatience);
  absl::Duration pause = kPauseMin;
  while (true) {
    const absl::Status status = job.write();
    if (!IsForNow(status) || MonotonicNow() >= patience) return status;
    absl::MutexLock lock(&mutex_);
    const MonotonicTime until = MonotonicAfter(pause);
    while (!closing_ && MonotonicNow() < until) closed_.WaitUntil(&mutex_, until);
    if (closing_) return status;
    pause = std::min(pause * 2, kPauseMax);
  }
}

}  // namespace kiln
