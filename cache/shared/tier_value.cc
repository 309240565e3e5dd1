#include "cache/shared/tier_value.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "compiler/support/digest.h"
#include "compiler/support/manifest_objects.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/record.pb.h"

namespace kiln {

std::string TierName(absl::string_view ns, absl::string_view key, TierKind kind, absl::string_view rest) {
  return TierNameOfTag(ns, ToHex(key), kind, rest);
}

std::string TierNameOfTag(absl::string_view ns, absl::string_view tag, TierKind kind,
                          absl::string_view rest) {
  return absl::StrCat("kiln:1:", ns, ":{", tag, "}:", kind.text(), rest.empty() ? "" : ":", rest);
}

std::string TierChunkName(absl::string_view ns, absl::string_view digest, uint64_t size, uint64_t index) {
  return TierName(ns, digest, "o", absl::StrCat(size, ":", index));
}

std::string TierChunkKey(absl::string_view digest, uint64_t size, uint64_t index) {
  return absl::StrCat(digest, ":", size, ":", index);
}

namespace {

// A manifest's envelope has a digest that no signature covers, and might have fields that nobody knows.
absl::Status CheckManifest(absl::string_view sealed) {
  v1::SignedManifest manifest;
  KILN_RETURN_IF_ERROR(ParseProto(sealed, "manifest", &manifest));
  manifest.DiscardUnknownFields();
  const bool digest = manifest.digest().empty() || manifest.digest() == Sha256(manifest.manifest());
  if (digest && SerializeDeterministic(manifest) == sealed) return absl::OkStatus();
  return absl::DataLossError("beside what is signed it is damaged");
}

}  // namespace

absl::StatusOr<v1::Manifest> ManifestIn(absl::string_view sealed) {
  v1::SignedManifest signed_manifest;
  v1::Manifest manifest;
  if (!ParseProto(sealed, "manifest", &signed_manifest).ok() ||
      !ParseProto(signed_manifest.manifest(), "manifest", &manifest).ok()) {
    return absl::DataLossError("it is no manifest");
  }
  return manifest;
}

std::vector<v1::ObjectRef> DistinctObjects(const v1::Manifest& manifest) {
  std::vector<v1::ObjectRef> distinct;
  absl::flat_hash_set<std::string> seen;
  for (const v1::ObjectRef* object : ObjectsOf(manifest)) {
    if (seen.insert(object->digest()).second) distinct.push_back(*object);
  }
  return distinct;
}

std::string SealTierValue(const Signatures& signatures, const EntryId& id, const std::string& ns,
                          absl::string_view bytes) {
  if (IsSigned(id.kind)) return std::string(bytes);
  return SerializeDeterministic(signatures.Sign(id, ns, std::string(bytes)));
}

absl::StatusOr<std::string> OpenTierValue(const Signatures& signatures, const EntryId& id,
                                          const std::string& ns, absl::string_view sealed) {
  KILN_RETURN_IF_ERROR(signatures.Verify(id, sealed));
  KILN_ASSIGN_OR_RETURN(v1::SignedEnvelope envelope, OpenEnvelope(sealed));
  if (envelope.namespace_() != ns) return absl::DataLossError("it is another namespace's");
  if (id.kind == EntryKind::kManifest) KILN_RETURN_IF_ERROR(CheckManifest(sealed));
  if (IsSigned(id.kind)) return std::string(sealed);
  return std::move(*envelope.mutable_value());
}

absl::StatusOr<std::string> OpenTierValueUnchecked(const EntryId& id, absl::string_view sealed) {
  if (IsSigned(id.kind)) return std::string(sealed);
  KILN_ASSIGN_OR_RETURN(v1::SignedEnvelope envelope, OpenEnvelope(sealed));
  return std::move(*envelope.mutable_value());
}

}  // namespace kiln
