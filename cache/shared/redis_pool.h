// Connections to one server, made beside the callers and kept ready: a caller never waits for one to be made.
//
// Threads: thread-safe. A thread of its own finds the server and connects, and again where a connection
// broke or the server closed one that nobody used, after a pause that doubles up to 5 s. Limits:
// `connections` calls at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "cache/shared/redis_address.h"
#include "cache/shared/redis_connection.h"
#include "cache/shared/redis_engine.h"
#include "compiler/support/monotonic_cond_var.h"

namespace kiln {

class RedisPool final : public RedisEngine {
 public:
  struct Options {
    // Where it is, asked before each connection is made.
    std::function<absl::StatusOr<RedisAddress>(MonotonicTime deadline)> find;
    RedisLogin login;
    size_t connections = 1;
    // Masters change: who is none is not connected to, and left once it says that it is none any more.
    bool master_only = false;
  };
  // Waits for the first connection, for a second at most: that nobody answers is no error.
  static absl::StatusOr<std::unique_ptr<RedisPool>> Create(Options options);
  // After the last caller.
  ~RedisPool() override;

  absl::StatusOr<std::vector<RedisReplyPtr>> Run(absl::Span<const RedisCommand> commands,
                                                 MonotonicTime deadline) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status state() const override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit RedisPool(Options options) : options_(std::move(options)) {}
  absl::StatusOr<std::unique_ptr<RedisConnection>> Connect() const;
  void KeepConnected() ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return closing_ || idle_.size() + lent_ < options_.connections;
  }

  const Options options_;
  mutable absl::Mutex mutex_;
  MonotonicCondVar closed_;
  std::vector<std::unique_ptr<RedisConnection>> idle_ ABSL_GUARDED_BY(mutex_);  // the last used at the end
  size_t lent_ ABSL_GUARDED_BY(mutex_) = 0;
  bool tried_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status last_ ABSL_GUARDED_BY(mutex_);  // of the latest try to connect, or what broke since
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace kiln
