#include "server/rpc/silence_watch.h"

#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"

namespace kiln {

absl::StatusOr<std::unique_ptr<SilenceWatch>> SilenceWatch::Create(std::chrono::seconds limit) {
  std::unique_ptr<SilenceWatch> watch(new SilenceWatch(limit));
  KILN_ASSIGN_OR_RETURN(watch->thread_, StartThread([self = watch.get()] { self->Run(); }));
  return watch;
}

SilenceWatch::~SilenceWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

SilenceWatch::Key SilenceWatch::Begin(grpc::ServerContextBase& call) {
  absl::MutexLock lock(&mutex_);
  const Key key = {MonotonicNow() + limit_, ++last_number_};
  // Ends come in order, so only the first turn after none has to wake the thread.
  if (turns_.empty()) changed_.SignalAll();
  turns_.emplace(key, &call);
  return key;
}

void SilenceWatch::End(const Key& key) {
  absl::MutexLock lock(&mutex_);
  turns_.erase(key);
}

void SilenceWatch::Run() {
  absl::MutexLock lock(&mutex_);
  while (!stopping_) {
    const MonotonicTime end = turns_.empty() ? MonotonicTime::max() : turns_.begin()->first.first;
    if (MonotonicNow() < end) {
      changed_.WaitUntil(&mutex_, end);
      continue;
    }
    // Under the lock: the call lives until its turn has ended.
    turns_.begin()->second->TryCancel();
    turns_.erase(turns_.begin());
  }
}

}  // namespace kiln
