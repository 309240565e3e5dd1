#include "server/listen/peer_acceptor.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr int kBacklog = 1024;
constexpr int kPauseMilliseconds = 50;  // when there are no descriptors left

absl::Status Failed(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerAcceptor>> PeerAcceptor::Start(const std::string& path, Taken taken) {
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
  if (chmod(path.c_str(), 0666) != 0) return Failed(absl::StrCat("open ", path, " to its tenants"));
  if (listen(listener, kBacklog) != 0) return Failed(absl::StrCat("listen on ", path));
  const int stop = eventfd(0, EFD_CLOEXEC);
  if (stop < 0) return Failed("make an eventfd");
  std::move(close_listener).Cancel();
  std::unique_ptr<PeerAcceptor> acceptor(new PeerAcceptor(listener, stop, std::move(taken)));
  KILN_ASSIGN_OR_RETURN(acceptor->thread_, StartThread([self = acceptor.get()] { self->Run(); }));
  return acceptor;
}

PeerAcceptor::~PeerAcceptor() {
  if (thread_.joinable()) {
    eventfd_write(stop_, 1);
    thread_.join();
  }
  close(listener_);
  close(stop_);
}

void PeerAcceptor::Run() {
  while (true) {
    pollfd waits[] = {{listener_, POLLIN, 0}, {stop_, POLLIN, 0}};
    if (poll(waits, 2, -1) < 0 && errno != EINTR) return;
    if ((waits[1].revents & POLLIN) != 0) return;
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (connection < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) poll(&waits[1], 1, kPauseMilliseconds);
      continue;
    }
    ucred peer{};
    socklen_t bytes = sizeof(peer);
    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
      close(connection);
      continue;
    }
    taken_(peer.uid, connection);
  }
}

}  // namespace kiln
