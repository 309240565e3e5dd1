#include "server/listen/tls_credentials.h"

#include <chrono>
#include <utility>

#include "compiler/support/status_macros.h"
#include "grpcpp/grpcpp.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

const TlsFiles& Names() {
  static const auto* names = new TlsFiles{"listen.tls.certificate", "listen.tls.key", "listen.tls.authority"};
  return *names;
}

TlsFiles FilesOf(const v1::TlsConfig& config) {
  return {config.certificate(), config.key(), config.authority()};
}

bool Same(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

grpc_ssl_server_certificate_config* ConfigOf(const TlsPems& pems) {
  const grpc_ssl_pem_key_cert_pair pair = {pems.key.c_str(), pems.certificate.c_str()};
  return grpc_ssl_server_certificate_config_create(pems.authority.c_str(), &pair, 1);
}

}  // namespace

bool TlsCredentials::Look::operator==(const Look& other) const {
  return inode == other.inode && size == other.size && Same(modified, other.modified) &&
         Same(changed, other.changed);
}

absl::StatusOr<std::shared_ptr<TlsCredentials>> TlsCredentials::Create(const v1::TlsConfig& config) {
  KILN_ASSIGN_OR_RETURN(TlsPems pems, ReadTlsPems(FilesOf(config), Names()));
  return std::shared_ptr<TlsCredentials>(new TlsCredentials(config, std::move(pems)));
}

TlsCredentials::TlsCredentials(const v1::TlsConfig& config, TlsPems pems)
    : files_(FilesOf(config)), pause_(std::chrono::seconds(config.reload_seconds())), pems_(std::move(pems)) {
  // It looks at no file before a handshake, and then sees whether they are still those that were read.
  credentials_ = grpc_ssl_server_credentials_create_with_options(
      grpc_ssl_server_credentials_create_options_using_config_fetcher(
          GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, &TlsCredentials::Fetch, this));
}

TlsCredentials::~TlsCredentials() { grpc_server_credentials_release(credentials_); }

TlsCredentials::Looks TlsCredentials::LookAtFiles() const {
  Looks looks;
  const std::string* const paths[] = {&files_.certificate, &files_.key, &files_.authority};
  for (size_t i = 0; i < looks.size(); ++i) {
    struct stat facts;
    if (stat(paths[i]->c_str(), &facts) == 0) {
      looks[i] = {facts.st_ino, facts.st_size, facts.st_mtim, facts.st_ctim};
    }
  }
  return looks;
}

// Null where nothing is new.
grpc_ssl_server_certificate_config* TlsCredentials::Renewed() {
  const MonotonicTime now = MonotonicNow();
  if (now < next_look_) return nullptr;
  next_look_ = now + pause_;
  // Before they are read: what changes meanwhile is seen the next time.
  const Looks looks = LookAtFiles();
  if (looks == seen_) return nullptr;
  absl::StatusOr<TlsPems> pems = ReadTlsPems(files_, Names());
  if (!pems.ok()) {
    spdlog::warn("the certificate before stays in use: {}", std::string(pems.status().message()));
    return nullptr;
  }
  seen_ = looks;
  if (*pems == pems_) return nullptr;
  pems_ = *std::move(pems);
  spdlog::info("new files of listen.tls are in use; the certificate ends {}",
               EndOfCertificate(pems_.certificate));
  return ConfigOf(pems_);
}

grpc_ssl_certificate_config_reload_status TlsCredentials::Fetch(void* self,
                                                                grpc_ssl_server_certificate_config** config) {
  auto* const credentials = static_cast<TlsCredentials*>(self);
  if (std::exchange(credentials->first_, false)) {
    *config = ConfigOf(credentials->pems_);
  } else {
    *config = credentials->Renewed();
  }
  return *config == nullptr ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED
                            : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

int TlsCredentials::AddPortToServer(const std::string& address, grpc_server* server) {
  return grpc_server_add_http2_port(server, address.c_str(), credentials_);
}

}  // namespace kiln
