// Sockets that a daemon accepts connections from. Threads: pure functions.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace kiln {

// The caller closes what it gets; nothing blocks. UNAVAILABLE where an address cannot be bound,
// ALREADY_EXISTS where somebody else listens.

// A socket there already goes: whoever calls holds its lock (runtime_dir.h).
absl::StatusOr<int> ListenOnUnixSocket(const std::string& path, mode_t mode);

struct TcpSockets {
  std::vector<int> descriptors;  // "localhost" may be two addresses
  int port = 0;                  // the bound one
};
// "127.0.0.1:7711"; port 0 picks one. Two daemons on one port are refused.
absl::StatusOr<TcpSockets> ListenOnTcp(const std::string& address);

}  // namespace kiln
