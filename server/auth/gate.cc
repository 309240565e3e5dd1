#include "server/auth/gate.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/support/protocol.h"
#include "compiler/support/status_macros.h"
#include "grpc/grpc_security_constants.h"

namespace kiln {
namespace {

std::string NameOf(const Identity& identity) {
  return identity.tenant.empty() ? "the daemon's own user, who is no tenant,"
                                 : absl::StrCat("tenant \"", identity.tenant, "\"");
}

}  // namespace

absl::StatusOr<const Identity*> Gate::Admit(const grpc::ServerContextBase& call, Rpc rpc) const {
  KILN_ASSIGN_OR_RETURN(const Identity* who, CallerOf(call));
  const RpcRule& rule = RuleOf(rpc);
  const auto named = call.client_metadata().find(kOnBehalfOfMetadata);
  if (named != call.client_metadata().end() && rule.forwarded) {
    KILN_ASSIGN_OR_RETURN(
        who, identities_->SpokenFor(*who, absl::string_view(named->second.data(), named->second.size())));
  }
  if (who->roles.Meets(rule.allowed)) return who;
  return absl::PermissionDeniedError(absl::StrCat(rule.name, " needs role ", RoleNames(rule.allowed),
                                                  ", which ", NameOf(*who), " lacks (listen.tenants.roles)"));
}

absl::StatusOr<const Identity*> Gate::CallerOf(const grpc::ServerContextBase& call) const {
  if (connection_ != nullptr) return connection_;
  const std::shared_ptr<const grpc::AuthContext> peer = call.auth_context();
  std::vector<std::string> uris;
  if (peer != nullptr && peer->IsPeerAuthenticated()) {
    for (const grpc::string_ref& uri : peer->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
      uris.emplace_back(uri.data(), uri.size());
    }
  }
  return identities_->OfCertificate(uris);
}

}  // namespace kiln
