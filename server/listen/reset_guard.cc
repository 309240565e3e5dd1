#include "server/listen/reset_guard.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/listen/call_counts.h"
#include "server/listen/tcp_peer.h"
#include "server/server_limits.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

ino_t InodeOf(int descriptor) {
  struct stat facts;
  return fstat(descriptor, &facts) == 0 ? facts.st_ino : 0;
}

// gRPC may close it at any time, and its number may be another's by then: a copy is what it was looked at.
// By TCP the other side is told by a reset: who floods has more to send than its window takes, and would hear
// of an orderly end only when the kernel forgets the connection, a minute later.
void Abort(int descriptor, ino_t inode) {
  const int copy = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return;
  if (InodeOf(copy) == inode) {
    const linger reset = {1, 0};  // when gRPC closes it
    setsockopt(copy, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    shutdown(copy, SHUT_RDWR);
  }
  close(copy);
}

}  // namespace

// Over any time, so that it does not matter how often somebody looks.
void ResetGuard::Level::Add(int64_t more, MonotonicTime now) {
  calls = std::max(0.0, calls + static_cast<double>(more) - kUnansweredPerSecond * SecondsBetween(at, now));
  at = now;
}

std::string ResetGuard::PeerOf(int descriptor) const {
  ucred peer = {};
  socklen_t bytes = sizeof(peer);
  if (getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.pid == 0) {
    const std::string host = TcpHostOf(descriptor);
    return host.empty() ? "" : absl::StrCat("host ", host);
  }
  return peer.uid == own_user_ ? absl::StrCat("process ", peer.pid) : absl::StrCat("user ", peer.uid);
}

bool ResetGuard::Admits(int descriptor) const {
  if (peers_.empty()) return true;
  const auto found = peers_.find(PeerOf(descriptor));
  return found == peers_.end() || found->second.away_until <= MonotonicNow();
}

ResetGuard::Server& ResetGuard::ServerOf(int64_t number) {
  const auto [found, first] = servers_.try_emplace(number);
  if (first) found->second.looked_at = found->second.level.at = MonotonicNow();
  return found->second;
}

void ResetGuard::Watch(int64_t server, int descriptor) {
  Server& handed = ServerOf(server);
  const std::vector<int64_t> numbers = NumbersOfConnections(server, handed.next_number);
  if (numbers.empty()) return;
  handed.next_number = *std::max_element(numbers.begin(), numbers.end()) + 1;
  if (numbers.size() > 1) return;  // one of them had been handed over before
  std::string peer = PeerOf(descriptor);
  if (peer.empty()) peer = absl::StrCat("connection ", numbers[0]);
  handed.connections.push_back({numbers[0], descriptor, InodeOf(descriptor), std::move(peer), ""});
}

void ResetGuard::WatchTls(int64_t server, int descriptor) {
  const std::string peer = PeerOf(descriptor);
  if (peer.empty()) return;  // gone already
  ServerOf(server).connections.push_back(
      {kNoNumber, descriptor, InodeOf(descriptor), peer, TcpPeerOf(descriptor)});
}

void ResetGuard::Look() {
  const MonotonicTime now = MonotonicNow();
  for (auto& [number, server] : servers_) {
    const int64_t unanswered = UnansweredOfServer(number).value_or(server.unanswered);
    server.level.Add(unanswered - std::exchange(server.unanswered, unanswered), now);
    if (server.level.calls > kUnansweredAtOnce || server.connections.size() > kWatchedConnectionsMax)
      LookAt(number, server, now);
  }
}

void ResetGuard::LookAt(int64_t number, Server& server, MonotonicTime now) {
  server.level.calls = 0;
  FindNumbers(number, server);
  for (const auto& [name, calls] : TakeUnanswered(server)) {
    const auto [found, first] = peers_.try_emplace(name);
    Peer& peer = found->second;
    if (first) peer.level.at = server.looked_at;
    peer.level.Add(calls, now);
    if (peer.level.calls <= kUnansweredAtOnce) continue;
    peer.level.calls = 0;
    peer.away_until = now + kAway;
    CloseAll(name, server);
  }
  server.looked_at = now;
  absl::erase_if(peers_, [now](auto& peer) {
    peer.second.level.Add(0, now);
    return peer.second.level.calls == 0 && peer.second.away_until <= now;
  });
}

// Of the connections by TLS whose handshakes are over by now.
void ResetGuard::FindNumbers(int64_t number, Server& server) {
  absl::flat_hash_map<std::string, Connection*> waiting;  // the newest of an address
  std::set<int64_t> known;
  for (Connection& connection : server.connections) {
    if (connection.number == kNoNumber)
      waiting[connection.address] = &connection;
    else
      known.insert(connection.number);
  }
  if (waiting.empty()) return;
  for (const int64_t connection : NumbersOfConnections(number, 0)) {
    if (known.contains(connection)) continue;
    const auto found = waiting.find(PeerOfConnection(connection));
    if (found != waiting.end()) found->second->number = connection;
  }
}

// Since the last time, and forgets connections that are gone. What nobody who is there has left unanswered is
// of who is gone, or, by TLS, of who has not been found: where that is one peer, it counts.
ResetGuard::Calls ResetGuard::TakeUnanswered(Server& server) {
  Calls calls;
  int64_t of_gone = server.unanswered - std::exchange(server.unanswered_then, server.unanswered);
  std::set<std::string> gone;
  std::erase_if(server.connections, [&](Connection& connection) {
    if (connection.number == kNoNumber) {
      gone.insert(connection.peer);
      return InodeOf(connection.descriptor) != connection.inode;
    }
    const std::optional<int64_t> unanswered = UnansweredOfConnection(connection.number);
    if (!unanswered.has_value()) {
      gone.insert(connection.peer);
      return true;
    }
    const int64_t more = *unanswered - std::exchange(connection.unanswered, *unanswered);
    of_gone -= more;
    if (more > 0) calls[connection.peer] += more;
    return false;
  });
  if (gone.size() == 1 && of_gone > 0) calls[*gone.begin()] += of_gone;
  return calls;
}

void ResetGuard::CloseAll(const std::string& name, const Server& server) {
  spdlog::warn("{} resets calls by the thousand: its connections are closed, and it is kept away for {} s",
               name, kAway.count());
  for (const Connection& connection : server.connections) {
    if (connection.peer == name) Abort(connection.descriptor, connection.inode);
  }
}

}  // namespace kiln
