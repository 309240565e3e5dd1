#include "server/listen/kiln_server.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/support/status_macros.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr size_t kServerBytes = 512u << 20;
constexpr int kStreamsPerConnection = 256;
// A header with facts, notes and hints at their limits (rpc/request_limits.h); nothing else that comes in
// one message is larger.
constexpr int kMessageBytesMax = 6 << 20;

void SetLimits(grpc::ServerBuilder& builder) {
  grpc::ResourceQuota quota("kilnd");
  quota.Resize(kServerBytes);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  // Manifests and listings: bounded by what the store takes.
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnection);
  // Two daemons on one port would answer in turns.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

std::string Wanted(const v1::ListenConfig& listen) {
  const bool both = !listen.unix_socket().empty() && !listen.tcp().empty();
  return absl::StrCat(listen.unix_socket(), both ? " and " : "", listen.tcp());
}

}  // namespace

absl::StatusOr<std::unique_ptr<KilnServer>> KilnServer::Start(const v1::ListenConfig& listen,
                                                              ServicesOf services) {
  std::unique_ptr<KilnServer> server(new KilnServer(listen, std::move(services)));
  KILN_RETURN_IF_ERROR(listen.tenants().empty() ? server->ListenForAll() : server->ListenForTenants());
  return server;
}

absl::Status KilnServer::ListenForAll() {
  grpc::ServerBuilder builder;
  SetLimits(builder);
  int port = 0;
  if (!listen_.unix_socket().empty()) {
    builder.AddListeningPort(absl::StrCat("unix:", listen_.unix_socket()), grpc::InsecureServerCredentials());
  }
  if (!listen_.tcp().empty()) {
    builder.AddListeningPort(listen_.tcp(), grpc::InsecureServerCredentials(), &port);
  }
  for (grpc::Service* service : services_("", /*own=*/true)) builder.RegisterService(service);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", Wanted(listen_), " (in use?)"));
  }
  std::vector<std::string> addresses;
  if (!listen_.unix_socket().empty()) {
    unix_socket_ = listen_.unix_socket();
    if (chmod(unix_socket_.c_str(), 0600) != 0) {
      return absl::UnavailableError(absl::StrCat("restrict the socket: ", strerror(errno)));
    }
    addresses.push_back(absl::StrCat("unix:", unix_socket_));
  }
  if (!listen_.tcp().empty()) {
    addresses.push_back(absl::StrCat(listen_.tcp().substr(0, listen_.tcp().rfind(':')), ":", port));
  }
  address_ = absl::StrJoin(addresses, ", ");
  return absl::OkStatus();
}

absl::Status KilnServer::ListenForTenants() {
  for (const v1::TenantConfig& tenant : listen_.tenants()) {
    for (const uint32_t uid : tenant.uids()) tenants_[uid] = tenant.name();
  }
  KILN_ASSIGN_OR_RETURN(peers_, PeerAcceptor::Start(listen_.unix_socket(), [this](uid_t uid, int descriptor) {
                          Take(uid, descriptor);
                        }));
  unix_socket_ = listen_.unix_socket();
  address_ = absl::StrCat("unix:", unix_socket_);
  return absl::OkStatus();
}

void KilnServer::Take(uid_t uid, int descriptor) {
  absl::MutexLock lock(&mutex_);
  const auto tenant = tenants_.find(uid);
  Acceptor* const acceptor =
      tenant == tenants_.end() ? nullptr : AcceptorOf({tenant->second, uid == geteuid()});
  if (acceptor == nullptr) {
    if (tenant == tenants_.end()) spdlog::warn("user {} is no tenant (listen.tenants)", uid);
    close(descriptor);
    return;
  }
  Acceptor::NewConnectionParameters connection;
  connection.fd = descriptor;
  acceptor->HandleNewConnection(&connection);
}

KilnServer::Acceptor* KilnServer::AcceptorOf(const ServerKey& key) {
  const auto [found, first] = servers_.try_emplace(key);
  if (!first) return found->second.acceptor.get();
  grpc::ServerBuilder builder;
  SetLimits(builder);
  std::unique_ptr<Acceptor> acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
  for (grpc::Service* service : services_(key.first, key.second)) builder.RegisterService(service);
  found->second.server = builder.BuildAndStart();
  if (found->second.server == nullptr) {
    spdlog::error("no server for tenant {}", key.first);
    return nullptr;
  }
  found->second.acceptor = std::move(acceptor);
  return found->second.acceptor.get();
}

void KilnServer::Unlink() {
  if (!unix_socket_.empty()) unlink(unix_socket_.c_str());
}

void KilnServer::Shutdown(absl::Time deadline) {
  peers_ = nullptr;
  if (server_ != nullptr) server_->Shutdown(absl::ToChronoTime(deadline));
  absl::MutexLock lock(&mutex_);
  for (auto& [key, server] : servers_) {
    if (server.server != nullptr) server.server->Shutdown(absl::ToChronoTime(deadline));
  }
}

}  // namespace kiln
