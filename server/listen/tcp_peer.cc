#include "server/listen/tcp_peer.h"

#include <arpa/inet.h>
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

// Who comes by IPv4 to a socket of both is mapped into IPv6, and gRPC tells of him as of IPv4.
std::string NameOf(absl::string_view host, absl::string_view port) {
  if (host.empty()) return "";
  if (absl::StrContains(host, '.')) absl::ConsumePrefix(&host, "::ffff:");
  return absl::StrContains(host, ':') ? absl::StrCat("ipv6:%5B", host, "%5D:", port)
                                      : absl::StrCat("ipv4:", host, ":", port);
}

}  // namespace

std::string TcpHostOf(int descriptor) { return AddressOf(descriptor).host; }

std::string TcpPeerOf(int descriptor) {
  const Address peer = AddressOf(descriptor);
  return NameOf(peer.host, peer.port);
}

std::string TcpPeerOf(absl::string_view address, int port) {
  char host[INET6_ADDRSTRLEN] = "";
  const bool by_six = address.size() == sizeof(in6_addr);
  if (!by_six && address.size() != sizeof(in_addr)) return "";
  if (inet_ntop(by_six ? AF_INET6 : AF_INET, address.data(), host, sizeof(host)) == nullptr) return "";
  return NameOf(host, absl::StrCat(port));
}

bool IsTcpPeer(absl::string_view peer) {
  return absl::StartsWith(peer, "ipv4:") || absl::StartsWith(peer, "ipv6:");
}

}  // namespace kiln
