// Who may call, by the configuration: users of this machine and SAN URIs of certificates → tenant → roles.
//
// Without tenants everybody who reaches the daemon is one: the user whose socket it is, or, where
// listen.dangerously_without_tls says so, whoever comes by TCP. With tenants kilnd's own user has ROLE_ADMIN
// beside what its tenant has, and that alone where it is no tenant.
//
// Immutable: any thread. What it points to lives as long as it does.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kiln/v1/config.pb.h"
#include "server/auth/role_table.h"

namespace kiln {

struct Identity {
  std::string tenant;  // empty: there are no tenants, and requests name their namespace; or it is none
  Roles roles;
  absl::flat_hash_set<std::string> speaks_for;  // with ROLE_FORWARD
  std::vector<std::string> reads;               // namespaces that its callers are served besides
};

class Identities {
 public:
  // `own`: the user whom the daemon belongs to.
  Identities(const v1::ListenConfig& listen, uid_t own);

  bool has_tenants() const { return has_tenants_; }
  uid_t own_user() const { return own_; }

  // Of a connection whose other side the kernel names. Null where that user is not served.
  const Identity* OfUser(uid_t uid) const;
  // Of a certificate that gRPC has verified, by its SAN URIs and nothing else. UNAUTHENTICATED unless exactly
  // one of them is a tenant's.
  absl::StatusOr<const Identity*> OfCertificate(const std::vector<std::string>& uris) const;
  // As the tenant's own callers, but without ROLE_ADMIN and ROLE_FORWARD. PERMISSION_DENIED unless `caller`
  // speaks for it.
  absl::StatusOr<const Identity*> SpokenFor(const Identity& caller, absl::string_view tenant) const;

 private:
  const Identity* Keep(Identity identity);

  const bool has_tenants_;
  const uid_t own_;
  std::vector<std::unique_ptr<const Identity>> all_;
  const Identity* everybody_ = nullptr;  // without tenants
  absl::flat_hash_map<uid_t, const Identity*> of_users_;
  absl::flat_hash_map<std::string, const Identity*> of_uris_;
  absl::flat_hash_map<std::string, const Identity*> spoken_for_;  // by tenant
};

}  // namespace kiln
