// A pool of connections to one server, made in the background: a caller waits for one to be made only where
// the master has become a replica (`master_only`). A command that it rejected is retried once on the next
// master.
//
// Threads: thread-safe. A thread of its own finds the server and connects, and again where a connection
// broke or the server closed one that nobody used, after a pause that doubles up to 5 s. Limits:
// `connections` calls at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache/shared/redis_address.h"
#include "cache/shared/redis_connection.h"
#include "cache/shared/redis_engine.h"
#include "compiler/support/breaker.h"
#include "compiler/support/monotonic_cond_var.h"
#include "compiler/support/monotonic_time.h"

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
    // A timeout that was shorter does not count the server as slow.
    absl::Duration slow_after = absl::ZeroDuration();
  };
  // UNAVAILABLE where the system gives no thread; that nobody answers is no error.
  static absl::StatusOr<std::unique_ptr<RedisPool>> Create(Options options);
  // After the last caller.
  ~RedisPool() override;

  // Waits until it is known whether the server answers.
  void AwaitFirst(MonotonicTime deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  std::vector<Answer> RunEach(absl::Span<const RedisCommand> commands, MonotonicTime deadline,
                              Asker asker) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status state() const override ABSL_LOCKS_EXCLUDED(mutex_);
  std::string slow() const override;

  struct Lent {
    std::unique_ptr<RedisConnection> connection;
    uint64_t master = 0;  // counts the masters: which one it leads to
    MonotonicTime since = {};
  };
  // For one exchange, whose outcome is told with the connection. UNAVAILABLE where nobody is kept waiting, or
  // none is free, at once or until `patience`.
  absl::StatusOr<Lent> Borrow(Asker asker, MonotonicTime patience = MonotonicTime::min())
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Return(Lent lent, const RedisExchange& exchange, Asker asker) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit RedisPool(Options options) : options_(std::move(options)) {}
  absl::StatusOr<std::unique_ptr<RedisConnection>> Connect() const;
  std::vector<Answer> RunOn(absl::StatusOr<Lent> lent, absl::Span<const RedisCommand> commands,
                            MonotonicTime deadline, Asker asker) ABSL_LOCKS_EXCLUDED(mutex_);
  void KeepConnected() ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return closing_ || idle_.size() + lent_ < options_.connections;
  }

  const Options options_;
  Breaker breaker_{{3, absl::Milliseconds(100), absl::Seconds(10)}};
  mutable absl::Mutex mutex_;
  MonotonicCondVar changed_;
  std::vector<Lent> idle_ ABSL_GUARDED_BY(mutex_);  // the last used at the end
  uint64_t master_ ABSL_GUARDED_BY(mutex_) = 0;     // connections of earlier ones are closed
  size_t lent_ ABSL_GUARDED_BY(mutex_) = 0;
  bool tried_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status last_ ABSL_GUARDED_BY(mutex_);  // of the latest try to connect, or what broke since
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace kiln
