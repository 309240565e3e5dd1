// The gRPC servers: where kilnd listens, who may call, and how much a client may take.
//
// Without configured tenants: a unix socket (0600 in a directory that belongs to us and that nobody else may
// write) and TCP where the configuration says that it may be (config.h checks), and one server for all. With
// tenants: a unix socket that anybody may reach, whose peers the kernel names (peer_acceptor.h); each
// identity (server/auth) has a server of its own, made at its first connection, whose gate knows for whom it
// is. The user whom the daemon belongs to is another identity, whatever the tenant, and has connections
// beside the others'. Who is none is closed at once.
//
// By TCP, with tenants, it is mutual TLS (tls_credentials.h): one server for all, whose gate asks the
// certificate at each call. A connection counts as its host's, which is known before it has said anything.
//
// Services are callbacks and hold no thread. Bounded by the configuration: connections, of each tenant and in
// all, of the descriptors that the process may open at most half (connection_table.h), and how fast they
// come (connection_line.h); what a connection takes to say hello, how long it idles and lives, its streams,
// calls that are reset (reset_guard.h); memory, in equal parts for each server. Sizes of messages and
// headers, and pings, are bounded here. Each server answers gRPC's health service. Threads: one owner.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "compiler/support/monotonic_time.h"
#include "grpcpp/grpcpp.h"
#include "kiln/v1/config.pb.h"
#include "server/auth/gate.h"
#include "server/auth/identities.h"
#include "server/listen/connection_line.h"
#include "server/listen/connection_table.h"
#include "server/listen/peer_acceptor.h"
#include "server/listen/reset_guard.h"

namespace kiln {

class KilnServer {
 public:
  // The services behind a gate, which outlive the server; `address` as below. Asked once a server, one at a
  // time.
  using ServicesOf = std::function<std::vector<grpc::Service*>(const Gate& gate, const std::string& address)>;

  // `listen` has its defaults (config.h). Whoever calls holds the lock of the socket (runtime_dir.h), so a
  // socket that is there already is nobody's. UNAVAILABLE when an address cannot be bound;
  // FAILED_PRECONDITION, which names the field, where the files of listen.tls are not good.
  static absl::StatusOr<std::unique_ptr<KilnServer>> Start(const v1::ListenConfig& listen,
                                                           ServicesOf services);

  // "unix:/run/…/kilnd.sock, 127.0.0.1:7711"; the port is the bound one.
  const std::string& address() const { return address_; }

  // How many connections each tenant has now; those of kilnd's own user, where there are tenants, are under
  // "".
  std::map<std::string, size_t> Connections() ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the connection of `peer`, as gRPC names it, broke: that a call of it ended was nobody's will. Of
  // TCP alone.
  bool Lost(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Nobody new finds the unix socket, and the health service says so; calls go on.
  void Unlink() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends: calls that still run at the deadline are cancelled.
  void Shutdown(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;
  struct IdentityServer {
    std::unique_ptr<grpc::Server> server;  // null where it could not be started
    std::unique_ptr<Acceptor> acceptor;
    int64_t number = 0;  // gRPC's (call_counts.h)
  };
  KilnServer(const v1::ListenConfig& listen, ServicesOf services);
  absl::Status Listen();
  // Whose a connection is: an identity's, or, by TLS, a host's, which has none before its handshake.
  struct Owner {
    const Identity* identity;
    ConnectionTable* table;
    std::string name;  // the tenant's, "host 10.0.0.7", or "" where there are no tenants
  };
  void Arrive(uid_t uid, int descriptor) ABSL_LOCKS_EXCLUDED(mutex_);
  void Tick() ABSL_LOCKS_EXCLUDED(mutex_);
  // Nothing where it is nobody's who is served, or somebody's who is kept away; then it is closed.
  std::optional<Owner> Admit(uid_t uid, int descriptor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Owner> OwnerOf(uid_t uid, int descriptor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Hands the descriptor to gRPC, or closes it where its owner has as many connections as may be.
  void Take(const Owner& owner, int descriptor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null where it can't be started; valid until the next call. `identity` is null for those who come by TLS.
  const IdentityServer* ServerOf(const Identity* identity) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetLimits(grpc::ServerBuilder& builder, bool by_tls) const;
  void Warn(const std::string& words) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const v1::ListenConfig listen_;
  const ServicesOf services_;
  const Identities identities_;
  std::shared_ptr<grpc::ServerCredentials> tls_;  // null without listen.tls; const after Start
  // Const after Start.
  std::string unix_socket_;
  std::string address_;

  absl::Mutex mutex_;
  ConnectionTable connections_ ABSL_GUARDED_BY(mutex_);
  ConnectionTable own_connections_ ABSL_GUARDED_BY(mutex_);  // of the daemon's user, where there are tenants
  ConnectionLine line_ ABSL_GUARDED_BY(mutex_);
  ResetGuard resets_ ABSL_GUARDED_BY(mutex_);
  MonotonicTime next_warning_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<const Identity*, IdentityServer> servers_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<PeerAcceptor> peers_;  // last: its thread uses all of the above
};

}  // namespace kiln
