// Where commands of the Redis protocol go: one server (redis_pool.h), found by sentinels or not, or the nodes
// of a cluster (redis_cluster.h). Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cache/shared/redis_connection.h"
#include "compiler/support/monotonic_time.h"

namespace kiln {

class RedisEngine {
 public:
  virtual ~RedisEngine() = default;

  // A circuit breaker for callers that wait: after three timeouts in a row, commands to that server fail with
  // UNAVAILABLE at once for 0.1 to 10 s. Background work is sent in any case, with limits of its own, and its
  // timeouts don't count.
  enum class Asker { kWaits, kBackground };
  using Answer = absl::StatusOr<RedisReplyPtr>;

  // An answer a command, in their order; each command has one key. A server that is away or slow is so for
  // its own commands alone. UNAVAILABLE at once where no connection is free; else the errors of
  // RedisConnection, and UNAVAILABLE where a master has become a replica and the next one is not found within
  // the deadline.
  virtual std::vector<Answer> RunEach(absl::Span<const RedisCommand> commands, MonotonicTime deadline,
                                      Asker asker) = 0;
  // All replies, or the first error.
  absl::StatusOr<std::vector<RedisReplyPtr>> Run(absl::Span<const RedisCommand> commands,
                                                 MonotonicTime deadline, Asker asker) {
    std::vector<RedisReplyPtr> replies;
    for (Answer& answer : RunEach(commands, deadline, asker)) {
      if (!answer.ok()) return answer.status();
      replies.push_back(*std::move(answer));
    }
    return replies;
  }

  // OK while it is connected, else why it is not.
  virtual absl::Status state() const = 0;
  // The server whose breaker is open, for people; empty: none.
  virtual std::string slow() const = 0;
};

}  // namespace kiln
