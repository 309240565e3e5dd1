#include "server/auth/identities.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kiln {
namespace {

Roles RolesOf(const v1::TenantConfig& tenant) {
  if (tenant.roles().empty()) return {v1::ROLE_COMPILE};
  Roles roles;
  for (const int role : tenant.roles()) roles.Add(static_cast<v1::Role>(role));
  return roles;
}

}  // namespace

Identities::Identities(const v1::ListenConfig& listen, uid_t own)
    : has_tenants_(!listen.tenants().empty()), own_(own) {
  if (!has_tenants_) {
    everybody_ = Keep({"", {v1::ROLE_READ, v1::ROLE_COMPILE, v1::ROLE_ADMIN}, {}});
    return;
  }
  of_users_[own] = Keep({"", {v1::ROLE_ADMIN}, {}});
  for (const v1::TenantConfig& tenant : listen.tenants()) {
    Identity identity = {tenant.name(), RolesOf(tenant), {}};
    identity.speaks_for.insert(tenant.speaks_for().begin(), tenant.speaks_for().end());
    identity.reads.assign(tenant.reads().begin(), tenant.reads().end());
    const Identity* const kept = Keep(identity);
    for (const std::string& uri : tenant.identities()) of_uris_[uri] = kept;
    for (const uint32_t uid : tenant.uids()) {
      of_users_[uid] = kept;
      if (uid != own) continue;
      Identity with_admin = identity;
      with_admin.roles.Add(v1::ROLE_ADMIN);
      of_users_[uid] = Keep(std::move(with_admin));
    }
    identity.roles.Remove(v1::ROLE_ADMIN);
    identity.roles.Remove(v1::ROLE_FORWARD);
    identity.speaks_for.clear();
    spoken_for_[tenant.name()] = Keep(std::move(identity));
  }
}

const Identity* Identities::Keep(Identity identity) {
  all_.push_back(std::make_unique<const Identity>(std::move(identity)));
  return all_.back().get();
}

const Identity* Identities::OfUser(uid_t uid) const {
  if (!has_tenants_) return everybody_;
  const auto found = of_users_.find(uid);
  return found == of_users_.end() ? nullptr : found->second;
}

absl::StatusOr<const Identity*> Identities::OfCertificate(const std::vector<std::string>& uris) const {
  const Identity* found = nullptr;
  for (const std::string& uri : uris) {
    const auto known = of_uris_.find(uri);
    if (known == of_uris_.end()) continue;
    if (found != nullptr) {
      return absl::UnauthenticatedError(
          absl::StrCat("the certificate's SAN URIs (", absl::StrJoin(uris, ", "),
                       ") are of more than one identity; a caller's certificate has one"));
    }
    found = known->second;
  }
  if (found != nullptr) return found;
  return absl::UnauthenticatedError(
      uris.empty() ? "the certificate has no SAN URI, which says who calls; its common name does not count"
                   : absl::StrCat("the certificate's SAN URI ", absl::StrJoin(uris, ", "),
                                  " is no tenant's (listen.tenants.identities)"));
}

absl::StatusOr<const Identity*> Identities::SpokenFor(const Identity& caller,
                                                      absl::string_view tenant) const {
  const auto found = spoken_for_.find(tenant);
  if (caller.roles.Has(v1::ROLE_FORWARD) && caller.speaks_for.contains(tenant) &&
      found != spoken_for_.end()) {
    return found->second;
  }
  return absl::PermissionDeniedError(
      absl::StrCat("tenant \"", caller.tenant, "\" does not speak for \"", tenant, "\": it ",
                   caller.roles.Has(v1::ROLE_FORWARD) ? "is not among its listen.tenants.speaks_for"
                                                      : "lacks role forward (listen.tenants.roles)"));
}

}  // namespace kiln
