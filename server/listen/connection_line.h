// A rate limit for new connections, by owner: a client that opens hundreds costs no more than a few a second.
//
// A connection is expensive before it has said anything: gRPC makes a transport, and takes it down again when
// the handshake's time is over. An owner opens kAtOnce at once, and kPerSecond on and on; those beyond wait,
// accepted but not yet gRPC's, and the other side sees a server that has not answered yet. Who has waited as
// long as a handshake may take, or hangs up, is closed.
//
// Owns the descriptors that wait. Threads: one at a time. Limits: `waiting_max` descriptors, half of them for
// an owner; an entry an owner that opened something within kAtOnce / kPerSecond seconds.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/support/monotonic_time.h"

namespace kiln {

class ConnectionLine {
 public:
  static constexpr double kAtOnce = 256;
  static constexpr double kPerSecond = 128;
  enum class Turn { kNow, kLater, kNever };
  struct Connection {
    uid_t uid;
    int descriptor;
  };

  ConnectionLine(size_t waiting_max, std::chrono::seconds wait_max)
      : waiting_max_(waiting_max), wait_max_(wait_max) {}
  ~ConnectionLine();
  ConnectionLine(const ConnectionLine&) = delete;
  ConnectionLine& operator=(const ConnectionLine&) = delete;

  // kNow: whoever calls keeps the descriptor. kLater: the line has it. kNever: it was closed.
  Turn Arrive(const std::string& owner, Connection connection, MonotonicTime now);
  // Whose turn has come; whoever calls has their descriptors. Closes those that wait no longer.
  std::vector<Connection> Due(MonotonicTime now);

 private:
  struct Waiting {
    Connection connection;
    MonotonicTime since;
  };
  struct Owner {
    double turns = kAtOnce;
    MonotonicTime at;
    std::deque<Waiting> waiting;
    void Earn(MonotonicTime now);
  };
  void CloseOverdue(Owner& owner, MonotonicTime now);

  const size_t waiting_max_;
  const std::chrono::seconds wait_max_;
  size_t waiting_ = 0;
  absl::flat_hash_map<std::string, Owner> owners_;
};

}  // namespace kiln
