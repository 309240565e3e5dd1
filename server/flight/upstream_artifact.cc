#include "server/flight/upstream_artifact.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/graph/guards.h"
#include "compiler/graph/key.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "compiler/support/manifest_objects.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "compiler/support/zstd.h"
#include "kiln/v1/record.pb.h"

namespace kiln {
namespace {

absl::Status Lie(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the upstream answered with ", what));
}

EntryId IdOf(const v1::Manifest& manifest) {
  return {EntryKind::kManifest, ManifestEntryKey(manifest.compile_key(), manifest.variant_id())};
}

EntryValue RecordOf(const FlightRequest& request, const std::string& fingerprint) {
  v1::RequestRecord record;
  record.set_namespace_(request.ns);
  record.set_request_key(request.request_key);
  *record.mutable_sections() = request.sections;
  *record.mutable_notes() = request.notes;
  *record.mutable_hints() = request.hints;
  record.set_compiler_fingerprint(fingerprint);
  return MakeEntryValue(SerializeDeterministic(record));
}

}  // namespace

absl::StatusOr<v1::Manifest> OpenUpstreamManifest(const Signatures* signatures,
                                                  const v1::SignedManifest& signed_manifest,
                                                  const FlightRequest& request,
                                                  const std::string& fingerprint) {
  v1::Manifest manifest;
  if (!ParseProto(signed_manifest.manifest(), "manifest", &manifest).ok()) return Lie("what is no manifest");
  if (signatures != nullptr) {
    const absl::Status counts = signatures->Verify(IdOf(manifest), SerializeDeterministic(signed_manifest));
    if (!counts.ok()) {
      return Lie(
          absl::StrCat("a program whose signature does not count (signing.trusted): ", counts.message()));
    }
  }
  if (signed_manifest.namespace_() != request.ns || manifest.namespace_() != request.ns)
    return Lie("another tenant's program");
  if (manifest.request_key() != request.request_key) return Lie("the program of another graph");
  if (manifest.format_version() != kProgramFormatVersion ||
      manifest.compile_key() !=
          CompileKey(request.ns, request.request_key, kProgramFormatVersion, fingerprint)) {
    return Lie("the program of another compiler than it says it has");
  }
  if (!CheckGuards(manifest.guards()).ok() || !GuardsHold(manifest.guards(), request.hints))
    return Lie("a program for other sizes");
  return manifest;
}

absl::StatusOr<Artifact> UpstreamArtifact(const v1::SignedManifest& signed_manifest,
                                          const v1::Manifest& manifest, Upstream::Objects objects,
                                          const FlightRequest& request, const std::string& fingerprint,
                                          double seconds) {
  Artifact artifact;
  artifact.ns = request.ns;
  artifact.compile_key = manifest.compile_key();
  artifact.variant_id = manifest.variant_id();
  artifact.guards = manifest.guards();
  artifact.signed_manifest = signed_manifest;
  for (const v1::ObjectRef* ref : ObjectsOf(manifest)) {
    const auto found = objects.find(ref->digest());
    if (found == objects.end() || artifact.objects.contains(ref->digest())) continue;
    const absl::StatusOr<std::string> raw = ZstdDecompress(found->second, ref->raw_size());
    if (!raw.ok() || Sha256(*raw) != ref->digest()) return Lie("an object that is not its digest's");
    EntryValue packed = MakeEntryValue(std::move(found->second));
    artifact.entries.push_back({{EntryKind::kObject, ref->digest()}, packed});
    artifact.objects.emplace(ref->digest(), std::move(packed));
  }
  // A look-up comes without sections: there is nothing to keep a record of.
  if (request.sections.ByteSizeLong() > 0)
    artifact.entries.push_back({RequestRecordId(artifact.compile_key), RecordOf(request, fingerprint)});
  artifact.entries.push_back({IdOf(manifest), MakeEntryValue(SerializeDeterministic(signed_manifest)),
                              static_cast<uint32_t>(1e3 * seconds)});
  return artifact;
}

}  // namespace kiln
