#include "server/listen/tcp_peer.h"

#include <netdb.h>
#include <sys/socket.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kiln {
namespace {

struct Address {
  std::string host, port;  // empty: none of TCP
};

Address AddressOf(int descriptor) {
  sockaddr_storage peer{};
  socklen_t bytes = sizeof(peer);
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0 ||
      (peer.ss_family != AF_INET && peer.ss_family != AF_INET6) ||
      getnameinfo(reinterpret_cast<const sockaddr*>(&peer), bytes, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {};
  }
  return {host, port};
}

}  // namespace

std::string TcpHostOf(int descriptor) { return AddressOf(descriptor).host; }

std::string TcpPeerOf(int descriptor) {
  const Address peer = AddressOf(descriptor);
  if (peer.host.empty()) return "";
  // Who comes by IPv4 to a socket of both is mapped into IPv6, and gRPC tells of him as of IPv4.
  absl::string_view host = peer.host;
  if (absl::StrContains(host, '.')) absl::ConsumePrefix(&host, "::ffff:");
  return absl::StrContains(host, ':') ? absl::StrCat("ipv6:%5B", host, "%5D:", peer.port)
                                      : absl::StrCat("ipv4:", host, ":", peer.port);
}

bool IsTcpPeer(absl::string_view peer) {
  return absl::StartsWith(peer, "ipv4:") || absl::StartsWith(peer, "ipv6:");
}

}  // namespace kiln
