// Where a server of the Redis protocol listens: "HOST:PORT", "[::1]:6379" or "unix:/absolute/path".
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln {

struct RedisAddress {
  std::string unix_path;  // empty: TCP
  std::string host;       // a name or a number, without brackets
  uint16_t port = 0;

  // INVALID_ARGUMENT, which says what is wrong with it.
  static absl::StatusOr<RedisAddress> Parse(absl::string_view text);
};

}  // namespace kiln
