#include "cache/signatures.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

absl::StatusOr<v1::TrustedKey> KeyOf(const v1::TrustedKeyConfig& config) {
  v1::TrustedKey key;
  if (!absl::Base64Unescape(config.public_key(), key.mutable_public_key())) {
    return absl::InvalidArgumentError(
        absl::StrCat("signing.trusted.public_key: \"", config.public_key(), "\" is no base64"));
  }
  if (config.namespaces().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("signing.trusted.namespaces: key ", config.public_key(), " has none"));
  }
  *key.mutable_namespaces() = config.namespaces();
  return key;
}

}  // namespace

absl::StatusOr<v1::SignedEnvelope> OpenEnvelope(absl::string_view value) {
  v1::SignedEnvelope envelope;
  if (!ParseProto(value, "envelope", &envelope).ok()) return absl::DataLossError("it is no signed envelope");
  return envelope;
}

absl::StatusOr<std::string> OpenFor(const std::string& name_space, absl::string_view value) {
  KILN_ASSIGN_OR_RETURN(v1::SignedEnvelope envelope, OpenEnvelope(value));
  if (envelope.namespace_() != name_space) return absl::NotFoundError("it is another namespace's");
  return std::move(*envelope.mutable_value());
}

Signatures::Signatures(SigningKey key) : key_(std::move(key)) {
  trusted_.Add(key_.public_key()).IgnoreError();  // a key of ours is one
}

absl::StatusOr<Signatures> Signatures::Load(const v1::SigningConfig& config) {
  KILN_ASSIGN_OR_RETURN(SigningKey key, SigningKey::LoadOrMake(config.key_file()));
  Signatures signatures(std::move(key));
  signatures.config_ = config;
  for (const v1::TrustedKeyConfig& trusted : config.trusted()) {
    KILN_ASSIGN_OR_RETURN(v1::TrustedKey besides, KeyOf(trusted));
    const absl::Status added = signatures.trusted_.Add(
        besides.public_key(), {besides.namespaces().begin(), besides.namespaces().end()});
    if (!added.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("signing.trusted.public_key: ", trusted.public_key(), ": ", added.message()));
    }
    signatures.besides_.push_back(std::move(besides));
  }
  for (const std::string& id : config.revoked()) {
    if (id == signatures.key_id()) {
      return absl::InvalidArgumentError(absl::StrCat("signing.revoked: ", id, " is the daemon's own key, in ",
                                                     config.key_file(),
                                                     "; move that file away, and it has a "
                                                     "new one"));
    }
    signatures.trusted_.Revoke(id);
  }
  return signatures;
}

Signatures Signatures::OfThisProcess() { return Signatures(SigningKey::Make()); }

v1::SignedEnvelope Signatures::Sign(const EntryId& id, const std::string& name_space,
                                    std::string value) const {
  v1::SignedEnvelope envelope;
  envelope.set_key_id(key_.id());
  envelope.set_signature(key_.Sign({EntryKindName(id.kind), name_space, id.key, value}));
  envelope.set_namespace_(name_space);
  envelope.set_value(std::move(value));
  return envelope;
}

Entry Signatures::SignEntry(EntryId id, const std::string& name_space, std::string value) const {
  EntryValue sealed = MakeEntryValue(SerializeDeterministic(Sign(id, name_space, std::move(value))));
  return {std::move(id), std::move(sealed)};
}

absl::Status Signatures::Verify(const EntryId& id, absl::string_view value) const {
  KILN_ASSIGN_OR_RETURN(const v1::SignedEnvelope envelope, OpenEnvelope(value));
  return trusted_.Verify({EntryKindName(id.kind), envelope.namespace_(), id.key, envelope.value()},
                         envelope.key_id(), envelope.signature());
}

v1::SignedManifest Signatures::SignManifest(const v1::Manifest& manifest) const {
  const EntryId id = {EntryKind::kManifest, ManifestEntryKey(manifest.compile_key(), manifest.variant_id())};
  v1::SignedEnvelope envelope = Sign(id, manifest.namespace_(), SerializeDeterministic(manifest));
  v1::SignedManifest made;
  made.set_digest(Sha256(envelope.value()));
  made.set_manifest(std::move(*envelope.mutable_value()));
  made.set_key_id(std::move(*envelope.mutable_key_id()));
  made.set_signature(std::move(*envelope.mutable_signature()));
  made.set_namespace_(std::move(*envelope.mutable_namespace_()));
  return made;
}

std::vector<v1::TrustedKey> Signatures::Listed(const std::string& tenant,
                                               const std::vector<std::string>& reads) const {
  std::vector<std::string> wanted = reads;
  if (!tenant.empty()) wanted.push_back(tenant);
  std::vector<v1::TrustedKey> listed(1);
  listed[0].set_public_key(key_.public_key());
  for (const std::string& name : wanted) listed[0].add_namespaces(name);
  for (const v1::TrustedKey& besides : besides_) {
    const auto& names = besides.namespaces();
    const bool is_revoked =
        std::count(config_.revoked().begin(), config_.revoked().end(), KeyIdOf(besides.public_key())) > 0;
    if (is_revoked) continue;
    v1::TrustedKey key = besides;
    if (!tenant.empty()) {
      key.clear_namespaces();
      for (const std::string& name : wanted) {
        if (std::count(names.begin(), names.end(), name) > 0) key.add_namespaces(name);
      }
      if (key.namespaces().empty()) continue;  // it concerns others
    }
    listed.push_back(std::move(key));
  }
  return listed;
}

}  // namespace kiln
