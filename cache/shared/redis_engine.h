// Where commands of the Redis protocol go: one server (redis_pool.h), found by sentinels or not, or the nodes
// of a cluster (redis_cluster.h). Thread-safe.
#pragma once

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
  // A reply a command, in their order; each command has one key. Never waits for a connection to be made:
  // UNAVAILABLE at once where none is free; else the errors of RedisConnection.
  virtual absl::StatusOr<std::vector<RedisReplyPtr>> Run(absl::Span<const RedisCommand> commands,
                                                         MonotonicTime deadline) = 0;
  // OK while it is connected, else why it is not.
  virtual absl::Status state() const = 0;
};

}  // namespace kiln
