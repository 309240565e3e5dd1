// Accepts the connections of a unix socket itself, to learn from the kernel who is on the other side
// (SO_PEERCRED): gRPC takes a descriptor and tells its handlers no more than "unix:".
//
// One thread of its own, on which `taken` is called for each connection and becomes the descriptor's owner.
// The destructor stops it; connections that were taken go on. Limits: the kernel's backlog.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace kiln {

class PeerAcceptor {
 public:
  using Taken = std::function<void(uid_t uid, int descriptor)>;
  // Binds `path` for everybody who can reach it; nobody else may hold it. UNAVAILABLE where it can't be bound
  // or the system gives no thread.
  static absl::StatusOr<std::unique_ptr<PeerAcceptor>> Start(const std::string& path, Taken taken);
  ~PeerAcceptor();
  PeerAcceptor(const PeerAcceptor&) = delete;
  PeerAcceptor& operator=(const PeerAcceptor&) = delete;

 private:
  PeerAcceptor(int listener, int stop, Taken taken)
      : listener_(listener), stop_(stop), taken_(std::move(taken)) {}
  void Run();

  const int listener_;
  const int stop_;  // an eventfd
  const Taken taken_;
  std::thread thread_;  // const after Start
};

}  // namespace kiln
