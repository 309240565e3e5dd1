// Inactivity timeout: ends calls whose client is silent when it has to send the next message of an upload or
// read what is sent. Such a call holds no thread, but a stream and memory.
//
// Thread-safe; one thread of its own. Time is monotonic. Limits: one entry a call.
// One serves all services of the daemon.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "compiler/support/monotonic_cond_var.h"
#include "compiler/support/monotonic_time.h"
#include "grpcpp/grpcpp.h"

namespace kiln {

class SilenceWatch {
 public:
  // UNAVAILABLE where there can be no thread more.
  static absl::StatusOr<std::unique_ptr<SilenceWatch>> Create(std::chrono::seconds limit);
  ~SilenceWatch();  // after the last turn

  // Lives as long as one read or write. The call is cancelled, and the read or write returns false, where it
  // takes longer than the limit.
  class Turn {
   public:
    // Both outlive the turn.
    Turn(SilenceWatch& watch, grpc::ServerContextBase& call) : watch_(watch), key_(watch.Begin(call)) {}
    ~Turn() { watch_.End(key_); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    SilenceWatch& watch_;
    const std::pair<MonotonicTime, uint64_t> key_;
  };

 private:
  explicit SilenceWatch(std::chrono::seconds limit) : limit_(limit) {}
  using Key = std::pair<MonotonicTime, uint64_t>;  // its end, and a number
  Key Begin(grpc::ServerContextBase& call) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(const Key& key) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::chrono::seconds limit_;

  absl::Mutex mutex_;
  MonotonicCondVar changed_;
  std::map<Key, grpc::ServerContextBase*> turns_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // const after Create
};

}  // namespace kiln
