#include "client/src/daemon_keys.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiler/support/digest.h"
#include "compiler/support/protocol.h"

namespace kiln {

DaemonKeys::DaemonKeys(const v1::HelloReply& hello, absl::string_view address, const std::string& name_space,
                       const std::vector<std::string>& only)
    : signs_(hello.protocol() >= kSigningProtocol),
      on_unix_socket_(absl::StartsWith(address, "unix:")),
      narrowed_(!only.empty()) {
  const std::string& own = hello.tenant().empty() ? name_space : hello.tenant();
  for (const v1::TrustedKey& key : hello.trusted_keys()) {
    if (narrowed_ && std::count(only.begin(), only.end(), key.public_key()) == 0) continue;
    std::vector<std::string> namespaces(key.namespaces().begin(), key.namespaces().end());
    if (namespaces.empty()) namespaces.push_back(own);
    // What is no key vouches for nothing.
    trusted_.Add(key.public_key(), std::move(namespaces)).IgnoreError();
  }
}

absl::Status DaemonKeys::Check(const v1::SignedManifest& signed_manifest,
                               const v1::Manifest& manifest) const {
  if (!signs_) {
    if (narrowed_ || !on_unix_socket_) {
      return absl::FailedPreconditionError(
          absl::StrCat("this kilnd is of an older build and signs nothing; ",
                       narrowed_ ? "KILN_TRUSTED_KEYS asks for signatures" : "over TCP that is not enough",
                       ": update kilnd"));
    }
    const bool same =
        signed_manifest.digest().empty() || Sha256(signed_manifest.manifest()) == signed_manifest.digest();
    return same ? absl::OkStatus() : absl::DataLossError("the manifest does not match its digest");
  }
  const absl::Status counts = trusted_.Verify(
      {"manifest", manifest.namespace_(), absl::StrCat(manifest.compile_key(), manifest.variant_id()),
       signed_manifest.manifest()},
      signed_manifest.key_id(), signed_manifest.signature());
  if (counts.ok()) return counts;
  return absl::DataLossError(
      absl::StrCat("the signature of the service's answer does not count: ", counts.message()));
}

}  // namespace kiln
