// Asks Redis sentinels where the master of a name is. Threads: pure functions, which connect and wait.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cache/shared/redis_address.h"
#include "cache/shared/redis_connection.h"
#include "compiler/support/monotonic_time.h"

namespace kiln {

// By the first sentinel that answers and knows it; each has a share of the time. UNAVAILABLE, with what the
// last one said, where none does. What it says may be out of date: ask the server itself (`ROLE`).
// `login`: the sentinels', not the server's.
absl::StatusOr<RedisAddress> FindMaster(absl::Span<const RedisAddress> sentinels, const RedisLogin& login,
                                        const std::string& master, MonotonicTime deadline);

}  // namespace kiln
