#include "server/config/signing.h"

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "compiler/support/status_macros.h"

namespace kiln {

absl::StatusOr<Signing> LoadSigning(const v1::SigningConfig& config) {
  KILN_ASSIGN_OR_RETURN(SigningKey own, SigningKey::LoadOrMake(config.key_file()));
  Signing signing{std::move(own), {}};
  KILN_RETURN_IF_ERROR(signing.trusted.Add(signing.own.public_key()));
  for (const v1::TrustedKeyConfig& trusted : config.trusted()) {
    std::string key;
    std::vector<std::string> namespaces(trusted.namespaces().begin(), trusted.namespaces().end());
    // To TrustedKeys none means all.
    if (namespaces.empty())
      return absl::InvalidArgumentError("signing.trusted.namespaces: a key without one counts for nothing");
    absl::Status added = absl::Base64Unescape(trusted.public_key(), &key)
                             ? signing.trusted.Add(key, std::move(namespaces))
                             : absl::InvalidArgumentError("it is no base64");
    if (!added.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("signing.trusted.public_key: \"", trusted.public_key(), "\": ", added.message()));
    }
  }
  for (const std::string& id : config.revoked()) signing.trusted.Revoke(id);
  return signing;
}

}  // namespace kiln
