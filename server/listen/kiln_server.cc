#include "server/listen/kiln_server.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kiln {
namespace {

constexpr size_t kServerBytes = 512u << 20;
constexpr int kStreamsPerConnection = 256;
// A header with facts, notes and hints at their limits (rpc/compile_service.h); nothing else that comes in
// one message is larger.
constexpr int kMessageBytesMax = 6 << 20;

std::string Wanted(const v1::ListenConfig& listen) {
  const bool both = !listen.unix_socket().empty() && !listen.tcp().empty();
  return absl::StrCat(listen.unix_socket(), both ? " and " : "", listen.tcp());
}

}  // namespace

absl::StatusOr<std::unique_ptr<KilnServer>> KilnServer::Start(const v1::ListenConfig& listen,
                                                              grpc::Service* compiler, grpc::Service* admin) {
  grpc::ServerBuilder builder;
  grpc::ResourceQuota quota("kilnd");
  quota.Resize(kServerBytes);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  // Manifests and listings: bounded by what the store takes.
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnection);
  // Two daemons on one port would answer in turns.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  int port = 0;
  if (!listen.unix_socket().empty()) {
    builder.AddListeningPort(absl::StrCat("unix:", listen.unix_socket()), grpc::InsecureServerCredentials());
  }
  if (!listen.tcp().empty()) builder.AddListeningPort(listen.tcp(), grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(compiler);
  builder.RegisterService(admin);

  std::unique_ptr<KilnServer> server(new KilnServer);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", Wanted(listen), " (in use?)"));
  }
  std::vector<std::string> addresses;
  if (!listen.unix_socket().empty()) {
    server->unix_socket_ = listen.unix_socket();
    if (chmod(listen.unix_socket().c_str(), 0600) != 0) {
      return absl::UnavailableError(absl::StrCat("restrict the socket: ", strerror(errno)));
    }
    addresses.push_back(absl::StrCat("unix:", listen.unix_socket()));
  }
  if (!listen.tcp().empty()) {
    addresses.push_back(absl::StrCat(listen.tcp().substr(0, listen.tcp().rfind(':')), ":", port));
  }
  server->address_ = absl::StrJoin(addresses, ", ");
  return server;
}

void KilnServer::Unlink() {
  if (!unix_socket_.empty()) unlink(unix_socket_.c_str());
}

void KilnServer::Shutdown(absl::Time deadline) {
  server_->Shutdown(absl::ToChronoTime(deadline));
  server_->Wait();
}

}  // namespace kiln
