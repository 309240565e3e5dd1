#include "server/rpc/daemon_facts.h"

#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "compiler/support/signature.h"
#include "compiler/support/tls_files.h"
#include "server/auth/role_table.h"

namespace kiln {
namespace {

void AddCertificate(const std::string& name, const std::string& path, v1::StatusReply* reply) {
  v1::CertificateStatus& certificate = *reply->add_certificates();
  certificate.set_name(name);
  const absl::StatusOr<int64_t> end = CertificateFileEnd(path, name);
  if (end.ok()) {
    certificate.set_ends_unix_seconds(*end);
  } else {
    certificate.set_message(std::string(end.status().message()));
  }
}

void AddFiles(const std::string& field, const v1::TlsConfig& tls, v1::StatusReply* reply) {
  AddCertificate(absl::StrCat(field, ".certificate"), tls.certificate(), reply);
  AddCertificate(absl::StrCat(field, ".authority"), tls.authority(), reply);
}

}  // namespace

void AddCaller(const Identity& caller, const v1::ListenConfig& listen, v1::StatusReply* reply) {
  v1::CallerStatus& told = *reply->mutable_caller();
  told.set_tenant(caller.tenant);
  told.set_has_tenants(!listen.tenants().empty());
  for (int number = v1::Role_MIN; number <= v1::Role_MAX; ++number) {
    const v1::Role role = static_cast<v1::Role>(number);
    if (v1::Role_IsValid(number) && caller.roles.Has(role)) told.add_roles(RoleName(role));
  }
}

void AddKeys(const Signatures& signatures, v1::StatusReply* reply) {
  for (const v1::TrustedKey& key : signatures.Listed("")) {
    const std::string id = KeyIdOf(key.public_key());
    if (id != signatures.key_id()) reply->add_trusted_keys(id);
  }
  reply->set_revoked_keys(signatures.config().revoked_size());
}

void AddClock(v1::StatusReply* reply) {
  // Not absl's clock, which follows the system's with some delay where somebody sets it.
  using std::chrono::milliseconds, std::chrono::system_clock;
  reply->set_unix_millis(
      std::chrono::duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count());
}

void AddCertificates(const v1::Config& config, v1::StatusReply* reply) {
  if (config.listen().has_tls()) AddFiles("listen.tls", config.listen().tls(), reply);
  if (config.upstream().has_tls()) AddFiles("upstream.tls", config.upstream().tls(), reply);
}

}  // namespace kiln
