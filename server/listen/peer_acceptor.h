// Accepts the connections itself, to learn from the kernel who is on the other side of a unix socket
// (SO_PEERCRED) and to count them: gRPC takes a descriptor and tells its handlers no more than "unix:".
//
// One thread of its own, on which `taken` is called for each connection and becomes the descriptor's owner,
// and `tick` every kTickMilliseconds.
// The destructor stops it; connections that were taken go on. Limits: the kernel's backlog.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

namespace kiln {

class PeerAcceptor {
 public:
  static constexpr uid_t kNoUser = static_cast<uid_t>(-1);  // the other side is no unix socket's
  using Taken = std::function<void(uid_t uid, int descriptor)>;
  using Tick = std::function<void()>;
  static constexpr int kTickMilliseconds = 100;
  // Takes the listening sockets (listening_socket.h), whatever it returns. UNAVAILABLE where the system gives
  // no thread.
  static absl::StatusOr<std::unique_ptr<PeerAcceptor>> Start(std::vector<int> listeners, Taken taken,
                                                             Tick tick);
  ~PeerAcceptor();
  PeerAcceptor(const PeerAcceptor&) = delete;
  PeerAcceptor& operator=(const PeerAcceptor&) = delete;

 private:
  PeerAcceptor(std::vector<int> listeners, int stop, Taken taken, Tick tick)
      : listeners_(std::move(listeners)), stop_(stop), taken_(std::move(taken)), tick_(std::move(tick)) {}
  void Run();
  void Accept(int listener);

  const std::vector<int> listeners_;
  const int stop_;  // an eventfd; -1 where there could be none
  const Taken taken_;
  const Tick tick_;
  std::thread thread_;  // const after Start
};

}  // namespace kiln
