// Who has how many of the daemon's connections, so that nobody takes all of its descriptors.
//
// gRPC takes a descriptor and does not say when it closes it: a connection is its descriptor and the socket's
// inode, and is over when that number stands for something else or nothing. It is looked for when there is no
// room, and then not more often than every 20 ms, so that who is refused costs little.
//
// Threads: one at a time. Limits: one entry a connection.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace kiln {

class ConnectionTable {
 public:
  // How many there may be, of all owners and of each.
  ConnectionTable(size_t all_max, size_t owner_max) : all_max_(all_max), owner_max_(owner_max) {}

  // Before the descriptor is handed on. False where there is no room: whoever calls closes it.
  bool Take(const std::string& owner, int descriptor);
  // Whether the peer's connection is there, and something came by it a moment ago: one that is silent for
  // long may be of a host that is gone. Of TCP alone.
  bool Lives(const std::string& peer) const;
  // How many each has, as of now.
  std::map<std::string, size_t> Counts();

 private:
  struct Connection {
    std::string owner;
    int descriptor;
    ino_t inode;
    std::string peer;  // as gRPC names it (tcp_peer.h)
  };
  bool HasRoom(const std::string& owner) const;
  void ForgetClosed();

  const size_t all_max_;
  const size_t owner_max_;
  std::vector<Connection> connections_;
  absl::flat_hash_map<std::string, size_t> of_owner_;
  std::chrono::steady_clock::time_point last_look_;
};

}  // namespace kiln
