// Protects against floods of stream resets: closes the connections of a peer that resets calls by the
// thousand, and refuses it for a minute. A reset costs the server many times what it costs the client, and
// gRPC reads all that has arrived before it serves others.
//
// Counted is who made the calls: another user, with all of its processes; of the daemon's own user, who is
// not to be locked out by one of its programs, a process; of TCP, which names nobody, a host. Anybody may
// give up kUnansweredAtOnce calls at once, and kUnansweredPerSecond on and on: a connection that ends
// with all its calls, a job that is interrupted, deadlines that pass. Connections come and go: what gone ones
// left unanswered counts where all that went between two looks are the same peer's.
//
// gRPC counts by connection (call_counts.h), and a connection's number is found when its descriptor has just
// been handed over: it is the one that its server did not have before. One by TLS has its number when its
// handshake is over, and is found by its address. Connections are looked at only where their server's count
// says that somebody may have exceeded the limit.
//
// Threads: one at a time. Limits: an entry a connection, and one for who has just exceeded the limit.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/support/monotonic_time.h"

namespace kiln {

class ResetGuard {
 public:
  static constexpr double kUnansweredAtOnce = 2000;
  static constexpr double kUnansweredPerSecond = 100;
  static constexpr std::chrono::seconds kAway{60};

  explicit ResetGuard(uid_t own_user) : own_user_(own_user) {}

  // Before a descriptor is handed on: false where it is somebody's who is kept away.
  bool Admits(int descriptor) const;
  // After it was handed to the server of that number: the connection that is new there is this one.
  void Watch(int64_t server, int descriptor);
  // Before one by TLS is handed to its server, which has no others.
  void WatchTls(int64_t server, int descriptor);
  // Several times a second.
  void Look();

 private:
  static constexpr int64_t kNoNumber = -1;
  struct Connection {
    int64_t number;  // kNoNumber: not yet known
    int descriptor;
    ino_t inode;  // a descriptor is this connection as long as it has it
    std::string peer;
    std::string address;  // by TLS: the other side, as gRPC names it
    int64_t unanswered = 0;
  };
  // Of calls that were not answered; leaks at kUnansweredPerSecond.
  struct Level {
    MonotonicTime at;
    double calls = 0;
    void Add(int64_t more, MonotonicTime now);
  };
  struct Server {
    std::vector<Connection> connections;
    int64_t next_number = 0;  // of a connection
    int64_t unanswered = 0;   // of all its connections, ever
    Level level;              // since they were looked at
    MonotonicTime looked_at;
    int64_t unanswered_then = 0;
  };
  struct Peer {
    Level level;
    MonotonicTime away_until;
  };
  using Calls = absl::flat_hash_map<std::string, int64_t>;  // by peer

  // "user 1001", "process 4711", "host 10.0.0.7"; "" where the kernel does not say.
  std::string PeerOf(int descriptor) const;
  Server& ServerOf(int64_t number);
  void LookAt(int64_t number, Server& server, MonotonicTime now);
  static void FindNumbers(int64_t number, Server& server);
  Calls TakeUnanswered(Server& server);
  static void CloseAll(const std::string& name, const Server& server);

  const uid_t own_user_;
  absl::flat_hash_map<int64_t, Server> servers_;
  absl::flat_hash_map<std::string, Peer> peers_;
};

}  // namespace kiln
