// The gRPC server: where kilnd listens and how much a client may take.
//
// A unix socket is 0600 in a directory that belongs to us and that nobody else may write; TCP is
// loopback only (config.h checks). Services are callbacks and hold no thread; memory, streams and message
// sizes are bounded. Threads: one owner.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "kiln/v1/config.pb.h"

namespace kiln {

class KilnServer {
 public:
  // The services outlive the server. Whoever calls holds the lock of the socket (runtime_dir.h), so
  // a socket that is there already is nobody's. UNAVAILABLE when an address cannot be bound.
  static absl::StatusOr<std::unique_ptr<KilnServer>> Start(const v1::ListenConfig& listen,
                                                           grpc::Service* compiler, grpc::Service* admin);

  // "unix:/run/…/kilnd.sock, 127.0.0.1:7711"; the port is the bound one.
  const std::string& address() const { return address_; }

  // Nobody new finds the unix socket; calls go on.
  void Unlink();
  // Ends: calls that still run at the deadline are cancelled.
  void Shutdown(absl::Time deadline);

 private:
  KilnServer() = default;
  std::unique_ptr<grpc::Server> server_;
  std::string unix_socket_;
  std::string address_;
};

}  // namespace kiln
