// What kilnd shows to who comes by TCP, and whom it believes: mutual TLS, where a caller's certificate is
// required and has to be the configured authority's. Who that is, the gate says (server/auth).
//
// The files may change while kilnd runs: at a handshake they are looked at, at most every reload_seconds, and
// what has changed is what new connections see. Files that do not belong together, half written or damaged,
// leave what was there, and the log says so. Connections that are there go on.
//
// gRPC's own way for that (FileWatcherCertificateProvider) is not used: it takes a pair that does not fit,
// and serves nobody until it does.
//
// Threads: gRPC calls it for one handshake at a time.
#pragma once

#include <sys/stat.h>

#include <array>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "compiler/support/monotonic_time.h"
#include "compiler/support/tls_files.h"
#include "grpc/grpc_security.h"
#include "grpcpp/security/server_credentials.h"
#include "kiln/v1/config.pb.h"

namespace kiln {

class TlsCredentials final : public grpc::ServerCredentials {
 public:
  // `config` has its defaults (config.h). FAILED_PRECONDITION, which names the field, where the files are not
  // good.
  static absl::StatusOr<std::shared_ptr<TlsCredentials>> Create(const v1::TlsConfig& config);
  ~TlsCredentials() override;

 private:
  // What says that a file is another one: inode, size, and times of its contents and of itself.
  struct Look {
    ino_t inode = 0;
    off_t size = -1;
    timespec modified = {};
    timespec changed = {};
    bool operator==(const Look& other) const;
  };
  using Looks = std::array<Look, 3>;

  TlsCredentials(const v1::TlsConfig& config, TlsPems pems);
  Looks LookAtFiles() const;
  grpc_ssl_server_certificate_config* Renewed();
  static grpc_ssl_certificate_config_reload_status Fetch(void* self,
                                                         grpc_ssl_server_certificate_config** config);
  // ServerCredentials. Calls say nothing more than their connection did.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}
  int AddPortToServer(const std::string& address, grpc_server* server) override;

  const TlsFiles files_;
  const MonotonicTime::duration pause_;
  grpc_server_credentials* credentials_ = nullptr;  // owned
  bool first_ = true;
  MonotonicTime next_look_;
  Looks seen_;  // the files that pems_ are of
  TlsPems pems_;
};

}  // namespace kiln
