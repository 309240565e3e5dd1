#include "cache/shared/tier_writer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);  // with one write
constexpr absl::Duration kPauseMin = absl::Milliseconds(50);
constexpr absl::Duration kPauseMax = absl::Seconds(2);
constexpr absl::Duration kLastWrites = absl::Seconds(2);
constexpr uint64_t kBytesOfJobMin = 1024;  // its own place, and its key's and command's

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
    closing_at_latest_ = MonotonicAfter(kLastWrites);
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void TierWriter::Post(const std::string& key, uint64_t bytes, std::function<absl::Status()> write,
                      std::function<void()> ended) {
  bytes = std::max(bytes, kBytesOfJobMin);
  {
    absl::MutexLock lock(&mutex_);
    if (bytes_ + bytes <= bytes_max_) {
      bytes_ += bytes;
      queue_.push_back({key, bytes, std::move(write), std::move(ended), kPauseMin});
      changed_.SignalAll();
      return;
    }
  }
  dropped_.fetch_add(1, std::memory_order_relaxed);
  if (ended) ended();
}

TierWriter::Jobs TierWriter::AwaitDue() {
  Jobs due;
  absl::MutexLock lock(&mutex_);
  while (true) {
    const MonotonicTime now = MonotonicNow();
    MonotonicTime soonest = MonotonicTime::max();
    absl::flat_hash_set<absl::string_view> waiting;  // keys of which an earlier one has its turn first
    for (auto job = queue_.begin(); job != queue_.end(); ++job) {
      if (!waiting.insert(job->key).second) continue;
      if (job->next <= now || closing_) {
        due.splice(due.end(), queue_, job);
        return due;
      }
      soonest = std::min(soonest, job->next);
    }
    if (closing_) return due;
    changed_.WaitUntil(&mutex_, soonest);
  }
}

void TierWriter::Run() {
  for (Jobs due = AwaitDue(); !due.empty(); due = AwaitDue()) {
    Job& job = due.front();
    if (!Try(&job)) {
      absl::MutexLock lock(&mutex_);
      queue_.splice(queue_.begin(), due);
      continue;
    }
    if (job.ended) job.ended();
    absl::MutexLock lock(&mutex_);
    bytes_ -= job.bytes;
  }
}

bool TierWriter::Try(Job* job) {
  if (!job->write) return true;
  const auto may_go_on = [this] {
    absl::MutexLock lock(&mutex_);
    return !closing_ || MonotonicNow() < closing_at_latest_;
  };
  if (job->patience == MonotonicTime::max()) job->patience = MonotonicAfter(kPatience);
  const absl::Status status = may_go_on() ? job->write() : absl::CancelledError("the daemon stops");
  if (IsForNow(status) && MonotonicNow() < job->patience && may_go_on()) {
    job->next = MonotonicAfter(job->pause);
    job->pause = std::min(job->pause * 2, kPauseMax);
    return false;
  }
  (status.ok() ? written_ : dropped_).fetch_add(1, std::memory_order_relaxed);
  if (!status.ok()) spdlog::warn("a write to the shared tier is dropped: {}", status.ToString());
  return true;
}

}  // namespace kiln
