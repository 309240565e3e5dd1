#include "server/listen/peer_acceptor.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/support/monotonic_time.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr int kPauseMilliseconds = 50;  // when there are no descriptors left

}  // namespace

absl::StatusOr<std::unique_ptr<PeerAcceptor>> PeerAcceptor::Start(std::vector<int> listeners, Taken taken,
                                                                  Tick tick) {
  const int stop = eventfd(0, EFD_CLOEXEC);
  std::unique_ptr<PeerAcceptor> acceptor(
      new PeerAcceptor(std::move(listeners), stop, std::move(taken), std::move(tick)));
  if (stop < 0) return absl::UnavailableError(absl::StrCat("make an eventfd: ", strerror(errno)));
  KILN_ASSIGN_OR_RETURN(acceptor->thread_, StartThread([self = acceptor.get()] { self->Run(); }));
  return acceptor;
}

PeerAcceptor::~PeerAcceptor() {
  if (thread_.joinable()) {
    eventfd_write(stop_, 1);
    thread_.join();
  }
  for (const int listener : listeners_) close(listener);
  if (stop_ >= 0) close(stop_);
}

void PeerAcceptor::Run() {
  std::vector<pollfd> waits = {{stop_, POLLIN, 0}};
  for (const int listener : listeners_) waits.push_back({listener, POLLIN, 0});
  MonotonicTime next_tick = MonotonicNow();
  while (true) {
    if (poll(waits.data(), waits.size(), kTickMilliseconds) < 0 && errno != EINTR) return;
    if ((waits[0].revents & POLLIN) != 0) return;
    if (const MonotonicTime now = MonotonicNow(); now >= next_tick) {
      next_tick = now + std::chrono::milliseconds(kTickMilliseconds);
      tick_();
    }
    for (size_t i = 1; i < waits.size(); ++i) {
      if (waits[i].revents != 0) Accept(waits[i].fd);
    }
  }
}

void PeerAcceptor::Accept(int listener) {
  const int connection = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (connection < 0) {
    pollfd stop = {stop_, POLLIN, 0};
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) poll(&stop, 1, kPauseMilliseconds);
    return;
  }
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    close(connection);
    return;
  }
  taken_(peer.uid, connection);
}

}  // namespace kiln
