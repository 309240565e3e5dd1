#include "server/listen/listening_socket.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr int kBacklog = 1024;

absl::Status Failed(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

// Its port is set to the bound one.
absl::StatusOr<int> ListenOnAddress(const addrinfo& address, int* port) {
  const int listener = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (listener < 0) return Failed("make a socket");
  absl::Cleanup close_listener = [listener] { close(listener); };
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // its connections inherit it
  sockaddr_storage bound{};
  memcpy(&bound, address.ai_addr, address.ai_addrlen);
  in_port_t* const number = address.ai_family == AF_INET6
                                ? &reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                : &reinterpret_cast<sockaddr_in*>(&bound)->sin_port;
  *number = htons(static_cast<uint16_t>(*port));
  socklen_t bytes = address.ai_addrlen;
  sockaddr* const name = reinterpret_cast<sockaddr*>(&bound);
  if (bind(listener, name, bytes) != 0) {
    if (errno == EADDRINUSE) return absl::AlreadyExistsError("another process listens there");
    return Failed("bind");
  }
  if (listen(listener, kBacklog) != 0) return Failed("listen");
  if (getsockname(listener, name, &bytes) != 0) return Failed("read the bound port");
  *port = ntohs(*number);
  std::move(close_listener).Cancel();
  return listener;
}

}  // namespace

absl::StatusOr<int> ListenOnUnixSocket(const std::string& path, mode_t mode) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path))
    return absl::InvalidArgumentError("the socket's path is too long");
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (listener < 0) return Failed("make a socket");
  absl::Cleanup close_listener = [listener] { close(listener); };
  unlink(path.c_str());
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return Failed(absl::StrCat("bind ", path));
  }
  if (chmod(path.c_str(), mode) != 0) return Failed(absl::StrCat("set the mode of ", path));
  if (listen(listener, kBacklog) != 0) return Failed(absl::StrCat("listen on ", path));
  std::move(close_listener).Cancel();
  return listener;
}

absl::StatusOr<TcpSockets> ListenOnTcp(const std::string& address) {
  TcpSockets sockets;
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &sockets.port)) {
    return absl::InvalidArgumentError(absl::StrCat(address, " is no HOST:PORT"));
  }
  const std::string host(absl::StripSuffix(absl::StripPrefix(address.substr(0, colon), "["), "]"));
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &wanted, &found); error != 0) {
    return absl::UnavailableError(absl::StrCat("resolve ", host, ": ", gai_strerror(error)));
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  absl::Status failure;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    absl::StatusOr<int> listener = ListenOnAddress(*each, &sockets.port);
    if (listener.ok()) {
      sockets.descriptors.push_back(*listener);
    } else {
      failure = listener.status();
      if (absl::IsAlreadyExists(failure)) break;  // its clients would reach whoever that is
    }
  }
  if (absl::IsAlreadyExists(failure)) {
    for (const int descriptor : sockets.descriptors) close(descriptor);
    return failure;
  }
  // A machine may know a name by an address that it does not have.
  if (sockets.descriptors.empty()) return failure;
  return sockets;
}

}  // namespace kiln
