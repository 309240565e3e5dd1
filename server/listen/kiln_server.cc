#include "server/listen/kiln_server.h"

#include <limits.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/support/status_macros.h"
#include "grpcpp/health_check_service_interface.h"
#include "server/config/config.h"
#include "server/listen/call_counts.h"
#include "server/listen/listening_socket.h"
#include "server/listen/tcp_peer.h"
#include "server/listen/tls_credentials.h"
#include "server/server_limits.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

// How long who comes by TLS may say nothing during a call before he is asked whether he is there, and then.
constexpr int kKeepAliveMilliseconds = 8'000;
constexpr int kKeepAliveAnswerMilliseconds = 5'000;
constexpr std::chrono::seconds kWarningPause(10);
constexpr char kTooMany[] =
    " is refused: as many as may be are open (listen.connections_max, listen.tenant_connections_max)";
constexpr char kServiceName[] = "kiln.v1.Compiler";  // whose health is told, beside the server's

int Milliseconds(uint32_t seconds) {
  return static_cast<int>(std::min<uint64_t>(uint64_t{seconds} * 1000, INT_MAX));
}

// A part of the files that may be open: half of them for connections, a quarter for those of kilnd's own user
// where there are tenants, an eighth for those that wait for their turn. The rest is the store's, the
// workers' and what has to open to refuse somebody.
size_t AtMostAPart(uint64_t configured, uint64_t part) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return configured;
  return std::min<uint64_t>(configured, limit.rlim_cur / part);
}

size_t ConnectionsMax(uint64_t configured) { return AtMostAPart(configured, 2); }

// As much of them as is configured, of fewer in proportion, lest one tenant has all.
size_t TenantConnectionsMax(const v1::ListenConfig& listen) {
  const size_t all = ConnectionsMax(listen.connections_max());
  if (listen.tenants().empty() || listen.connections_max() == 0) return all;
  return std::max<size_t>(all * listen.tenant_connections_max() / listen.connections_max(), 1);
}

std::string Of(absl::string_view owner) { return owner.empty() ? "" : absl::StrCat(" of ", owner); }

std::string Wanted(const v1::ListenConfig& listen) {
  const bool both = !listen.unix_socket().empty() && !listen.tcp().empty();
  return absl::StrCat(listen.unix_socket(), both ? " and " : "", listen.tcp());
}

}  // namespace

KilnServer::KilnServer(const v1::ListenConfig& listen, ServicesOf services)
    : listen_(listen),
      services_(std::move(services)),
      identities_(listen, geteuid()),
      connections_(ConnectionsMax(listen.connections_max()), TenantConnectionsMax(listen)),
      own_connections_(AtMostAPart(listen.tenant_connections_max(), 4),
                       AtMostAPart(listen.tenant_connections_max(), 4)),
      line_(AtMostAPart(2 * uint64_t{listen.connections_max()}, 8),
            std::chrono::seconds(listen.handshake_seconds_max())),
      resets_(geteuid()) {}

absl::StatusOr<std::unique_ptr<KilnServer>> KilnServer::Start(const v1::ListenConfig& listen,
                                                              ServicesOf services) {
  grpc::EnableDefaultHealthCheckService(true);
  std::unique_ptr<KilnServer> server(new KilnServer(listen, std::move(services)));
  if (listen.has_tls()) {
    KILN_ASSIGN_OR_RETURN(server->tls_, TlsCredentials::Create(listen.tls()));
  }
  KILN_RETURN_IF_ERROR(server->Listen());
  return server;
}

absl::Status KilnServer::Listen() {
  std::vector<int> listeners;
  std::vector<std::string> addresses;
  absl::Status status;
  if (!listen_.unix_socket().empty()) {
    absl::StatusOr<int> socket =
        ListenOnUnixSocket(listen_.unix_socket(), identities_.has_tenants() ? 0666 : 0600);
    status = socket.status();
    if (socket.ok()) {
      listeners.push_back(*socket);
      addresses.push_back(absl::StrCat("unix:", listen_.unix_socket()));
    }
  }
  if (status.ok() && !listen_.tcp().empty()) {
    absl::StatusOr<TcpSockets> sockets = ListenOnTcp(listen_.tcp());
    status = sockets.status();
    if (sockets.ok()) {
      listeners.insert(listeners.end(), sockets->descriptors.begin(), sockets->descriptors.end());
      if (!listen_.has_tls()) {
        spdlog::warn(
            "listen.dangerously_without_tls: whoever reaches {} may call, and sees and makes what others run",
            listen_.tcp());
      }
      addresses.push_back(
          absl::StrCat(listen_.tcp().substr(0, listen_.tcp().rfind(':')), ":", sockets->port));
    }
  }
  if (!status.ok()) {
    for (const int listener : listeners) close(listener);
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", Wanted(listen_), " (in use?): ", status.message()));
  }
  unix_socket_ = listen_.unix_socket();
  address_ = absl::StrJoin(addresses, ", ");
  if (!identities_.has_tenants()) {
    absl::MutexLock lock(&mutex_);
    if (ServerOf(identities_.OfUser(geteuid())) == nullptr) {
      for (const int listener : listeners) close(listener);
      return absl::UnavailableError("no server could be started");
    }
  }
  const auto taken = [this](uid_t uid, int descriptor) { Arrive(uid, descriptor); };
  KILN_ASSIGN_OR_RETURN(peers_, PeerAcceptor::Start(std::move(listeners), taken, [this] { Tick(); }));
  return absl::OkStatus();
}

void KilnServer::SetLimits(grpc::ServerBuilder& builder, bool by_tls) const {
  grpc::ResourceQuota quota("kilnd");
  quota.Resize(listen_.memory_bytes() / MemoryPartsOf(listen_) * (by_tls ? listen_.tenants_size() : 1));
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kRequestBytesMax);
  // Manifests and listings: bounded by what the store takes.
  builder.SetMaxSendMessageSize(-1);
  const std::pair<const char*, int> limits[] = {
      {GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax},
      {GRPC_ARG_MAX_CONCURRENT_STREAMS, static_cast<int>(listen_.streams_max())},
      // To the end of HTTP/2's preface and the peer's first settings.
      {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, Milliseconds(listen_.handshake_seconds_max())},
      {GRPC_ARG_MAX_CONNECTION_IDLE_MS, Milliseconds(listen_.idle_seconds_max())},
      {GRPC_ARG_MAX_CONNECTION_AGE_MS, Milliseconds(listen_.age_seconds_max())},
      {GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, Milliseconds(listen_.age_grace_seconds_max())},
      {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingMillisecondsMin},
      {GRPC_ARG_HTTP2_MAX_PING_STRIKES, kPingStrikesMax},
  };
  for (const auto& [name, value] : limits) builder.AddChannelArgument(name, value);
  if (!by_tls) return;
  // A host that is gone says nothing; what is compiled for it would go on.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepAliveMilliseconds);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepAliveAnswerMilliseconds);
}

void KilnServer::Arrive(uid_t uid, int descriptor) {
  absl::MutexLock lock(&mutex_);
  const std::optional<Owner> owner = Admit(uid, descriptor);
  if (!owner.has_value()) return;
  // kilnd's own user does not wait behind others of its tenant.
  const bool own = owner->table == &own_connections_;
  switch (line_.Arrive(absl::StrCat(own ? "own " : "", owner->name), {uid, descriptor}, MonotonicNow())) {
    case ConnectionLine::Turn::kNow: Take(*owner, descriptor); break;
    case ConnectionLine::Turn::kLater: break;
    case ConnectionLine::Turn::kNever:
      Warn(absl::StrCat("a connection", Of(owner->name), " is refused: too many wait for their turn"));
      break;
  }
}

void KilnServer::Tick() {
  absl::MutexLock lock(&mutex_);
  resets_.Look();
  for (const auto& [uid, descriptor] : line_.Due(MonotonicNow())) {
    if (const std::optional<Owner> owner = Admit(uid, descriptor); owner.has_value())
      Take(*owner, descriptor);
  }
}

std::optional<KilnServer::Owner> KilnServer::Admit(uid_t uid, int descriptor) {
  std::optional<Owner> owner = OwnerOf(uid, descriptor);
  if (owner.has_value() && resets_.Admits(descriptor)) return owner;
  close(descriptor);
  return std::nullopt;
}

std::optional<KilnServer::Owner> KilnServer::OwnerOf(uid_t uid, int descriptor) {
  if (uid == PeerAcceptor::kNoUser && tls_ != nullptr)
    return Owner{nullptr, &connections_, absl::StrCat("host ", TcpHostOf(descriptor))};
  const Identity* const identity = identities_.OfUser(uid);
  if (identity == nullptr) {
    Warn(absl::StrCat("user ", uid, " is no tenant (listen.tenants)"));
    return std::nullopt;
  }
  const bool own = identities_.has_tenants() && uid == identities_.own_user();
  return Owner{identity, own ? &own_connections_ : &connections_, identity->tenant};
}

void KilnServer::Take(const Owner& owner, int descriptor) {
  const IdentityServer* server = nullptr;
  if (owner.table->Take(owner.name, descriptor)) {
    server = ServerOf(owner.identity);
  } else {
    Warn(absl::StrCat("a connection", Of(owner.name), kTooMany));
  }
  if (server == nullptr) {
    close(descriptor);
    return;
  }
  if (owner.identity == nullptr) resets_.WatchTls(server->number, descriptor);
  Acceptor::NewConnectionParameters connection;
  connection.fd = descriptor;
  server->acceptor->HandleNewConnection(&connection);
  if (owner.identity != nullptr) resets_.Watch(server->number, descriptor);
}

std::map<std::string, size_t> KilnServer::Connections() {
  absl::MutexLock lock(&mutex_);
  std::map<std::string, size_t> counts = connections_.Counts();
  for (const auto& [tenant, count] : own_connections_.Counts()) counts[""] += count;
  return counts;
}

bool KilnServer::Lost(const std::string& peer) {
  if (!IsTcpPeer(peer)) return false;
  absl::MutexLock lock(&mutex_);
  return !connections_.Lives(peer) && !own_connections_.Lives(peer);
}

// Who is refused comes again at once: a line for each would be an attack on the log.
void KilnServer::Warn(const std::string& words) {
  const MonotonicTime now = MonotonicNow();
  if (now < next_warning_) return;
  next_warning_ = now + kWarningPause;
  spdlog::warn("{}", words);
}

const KilnServer::IdentityServer* KilnServer::ServerOf(const Identity* identity) {
  const auto [found, first] = servers_.try_emplace(identity);
  IdentityServer& made = found->second;
  if (!first) return made.acceptor == nullptr ? nullptr : &made;
  grpc::ServerBuilder builder;
  SetLimits(builder, identity == nullptr);
  std::unique_ptr<Acceptor> acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      identity == nullptr ? tls_ : grpc::InsecureServerCredentials());
  for (grpc::Service* service : services_(Gate(&identities_, identity), address_)) {
    builder.RegisterService(service);
  }
  made.server = builder.BuildAndStart();
  if (made.server == nullptr) {
    spdlog::error("no server for {}", identity == nullptr ? "listen.tls" : identity->tenant);
    return nullptr;
  }
  made.server->GetHealthCheckService()->SetServingStatus(kServiceName, true);
  made.acceptor = std::move(acceptor);
  made.number = NumberOfNewestServer().value_or(0);
  return &made;
}

void KilnServer::Unlink() {
  if (!unix_socket_.empty()) unlink(unix_socket_.c_str());
  absl::MutexLock lock(&mutex_);
  for (auto& [key, server] : servers_) {
    if (server.server != nullptr) server.server->GetHealthCheckService()->SetServingStatus(false);
  }
}

void KilnServer::Shutdown(absl::Time deadline) {
  peers_ = nullptr;
  std::vector<grpc::Server*> servers;
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [key, server] : servers_) {
      if (server.server != nullptr) servers.push_back(server.server.get());
    }
  }
  // Not under the lock: the calls that it waits for may ask for Connections.
  for (grpc::Server* server : servers) server->Shutdown(absl::ToChronoTime(deadline));
}

}  // namespace kiln
