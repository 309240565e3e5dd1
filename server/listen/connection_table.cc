#include "server/listen/connection_table.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace kiln {
namespace {

constexpr std::chrono::milliseconds kLookPause(20);
constexpr uint32_t kSilentMilliseconds = 3'000;  // who leaves has just said so

// 0 for what is no socket.
ino_t InodeOf(int descriptor) {
  struct stat facts;
  return fstat(descriptor, &facts) == 0 && S_ISSOCK(facts.st_mode) ? facts.st_ino : 0;
}

// Who comes by IPv4 to a socket of both is mapped into IPv6, and gRPC tells of him as of IPv4.
void UnmapV4(sockaddr_storage* peer) {
  const auto* six = reinterpret_cast<const sockaddr_in6*>(peer);
  if (peer->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) return;
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = six->sin6_port;
  memcpy(&four.sin_addr, six->sin6_addr.s6_addr + 12, sizeof(four.sin_addr));
  memcpy(peer, &four, sizeof(four));
}

}  // namespace

bool IsTcpPeer(absl::string_view peer) {
  return absl::StartsWith(peer, "ipv4:") || absl::StartsWith(peer, "ipv6:");
}

std::string TcpPeerOf(int descriptor) {
  sockaddr_storage peer{};
  socklen_t bytes = sizeof(peer);
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0 ||
      (peer.ss_family != AF_INET && peer.ss_family != AF_INET6)) {
    return "";
  }
  UnmapV4(&peer);
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&peer), bytes, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "";
  }
  return peer.ss_family == AF_INET ? absl::StrCat("ipv4:", host, ":", port)
                                   : absl::StrCat("ipv6:%5B", host, "%5D:", port);
}

bool ConnectionTable::Lives(const std::string& peer) const {
  return std::any_of(connections_.begin(), connections_.end(), [&](const Connection& connection) {
    if (connection.peer != peer || InodeOf(connection.descriptor) != connection.inode) return false;
    tcp_info info{};
    socklen_t bytes = sizeof(info);
    return getsockopt(connection.descriptor, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 &&
           info.tcpi_state == TCP_ESTABLISHED && info.tcpi_last_data_recv < kSilentMilliseconds;
  });
}

bool ConnectionTable::Take(const std::string& owner, int descriptor) {
  if (!HasRoom(owner)) ForgetClosed();
  if (!HasRoom(owner)) return false;
  connections_.push_back({owner, descriptor, InodeOf(descriptor), TcpPeerOf(descriptor)});
  ++of_owner_[owner];
  return true;
}

std::map<std::string, size_t> ConnectionTable::Counts() {
  ForgetClosed();
  std::map<std::string, size_t> counts;
  for (const Connection& connection : connections_) ++counts[connection.owner];
  return counts;
}

bool ConnectionTable::HasRoom(const std::string& owner) const {
  const auto own = of_owner_.find(owner);
  return connections_.size() < all_max_ && (own == of_owner_.end() || own->second < owner_max_);
}

void ConnectionTable::ForgetClosed() {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_look_ < kLookPause) return;
  last_look_ = now;
  const auto closed = [this](const Connection& connection) {
    if (InodeOf(connection.descriptor) == connection.inode) return false;
    --of_owner_[connection.owner];
    return true;
  };
  connections_.erase(std::remove_if(connections_.begin(), connections_.end(), closed), connections_.end());
}

}  // namespace kiln
