#include "cache/bundle/bundle_check.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "cache/bundle/bundle_file.h"
#include "cache/cache_limits.h"
#include "cache/checks/object_check.h"
#include "cache/checks/references.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/record.pb.h"

namespace kiln {
namespace {

// How whoever may change the configuration makes it count.
absl::Status Untrusted(absl::string_view what, absl::string_view key_id, absl::string_view name_space,
                       const absl::Status& why) {
  if (!absl::IsPermissionDenied(why)) return absl::DataLossError(absl::StrCat(what, ": ", why.message()));
  return absl::PermissionDeniedError(
      absl::StrCat(what, " is signed by key ", key_id, " for namespace \"", name_space, "\": ", why.message(),
                   ". To trust it, add signing { trusted { public_key: \"…\" namespaces: \"", name_space,
                   "\" } } to kilnd's configuration, with the public key that `kilnctl keys` prints where it "
                   "was exported"));
}

class Checker {
 public:
  Checker(const BundleCompiler& compiler, const Signatures& signatures, const v1::BundleHeader& header)
      : compiler_(compiler),
        signatures_(signatures),
        namespaces_(header.namespaces().begin(), header.namespaces().end()) {}

  absl::Status Check(const EntryId& id, const v1::BundleEntry& entry) {
    if (id.kind == EntryKind::kManifest) {
      record_bytes_ = 0;
    } else if (id.kind != EntryKind::kObject) {
      record_bytes_ += entry.value().size();
      if (record_bytes_ > kBundleRecordBytesMax) {
        return absl::InvalidArgumentError(absl::StrCat("the bundle has more than ", kBundleRecordBytesMax,
                                                       " bytes of records before one program"));
      }
    }
    switch (id.kind) {
      case EntryKind::kObject: return CheckOneObject(id, entry.value());
      case EntryKind::kMeta: return CheckRecord(id, entry.value());
      case EntryKind::kManifest: return CheckManifest(id, entry.value());
      case EntryKind::kKernel: return CheckKernel(id, entry.value());
      case EntryKind::kTuning: return OpenSigned(id, entry.value()).status();
      default: return Wrong(id, "has no place in a bundle");
    }
  }

 private:
  static absl::Status Wrong(const EntryId& id, absl::string_view what) {
    return absl::DataLossError(
        absl::StrCat("the bundle's ", EntryKindName(id.kind), " ", ToHex(id.key.substr(0, 6)), " ", what));
  }

  absl::Status CheckOneObject(const EntryId& id, const std::string& packed) {
    if (const absl::Status checked = CheckObject(id.key, packed); !checked.ok())
      return Wrong(id, checked.message());
    objects_.insert(id.key);
    return absl::OkStatus();
  }

  absl::StatusOr<v1::SignedEnvelope> OpenSigned(const EntryId& id, const std::string& value) const {
    KILN_ASSIGN_OR_RETURN(v1::SignedEnvelope envelope, OpenEnvelope(value));
    if (!namespaces_.contains(envelope.namespace_()))
      return Wrong(id, "is of a namespace that the header lacks");
    const absl::Status counts = signatures_.Verify(id, value);
    if (counts.ok()) return envelope;
    return Untrusted(absl::StrCat(EntryKindName(id.kind), " ", ToHex(id.key.substr(0, 6))), envelope.key_id(),
                     envelope.namespace_(), counts);
  }

  absl::Status CheckObjectsOf(const EntryId& id, const std::string& value) const {
    KILN_ASSIGN_OR_RETURN(const References references, ReferencesOf(id.kind, value));
    for (const EntryId& object : references.objects) {
      if (!objects_.contains(object.key)) return Wrong(id, "names an object that does not come before it");
    }
    return absl::OkStatus();
  }

  std::string KeyFor(absl::string_view name_space, absl::string_view request_key) const {
    return CompileKey(name_space, request_key, compiler_.program_format, compiler_.fingerprint);
  }

  absl::Status CheckManifest(const EntryId& id, const std::string& value) const {
    KILN_ASSIGN_OR_RETURN(const v1::SignedEnvelope envelope, OpenSigned(id, value));
    v1::Manifest manifest;
    KILN_RETURN_IF_ERROR(ParseProto(envelope.value(), "manifest", &manifest));
    const std::string tuning =
        manifest.has_tuning() ? Sha256(SerializeDeterministic(manifest.tuning())) : std::string();
    const std::string key = KeyFor(envelope.namespace_(), manifest.request_key());
    const bool same = manifest.format_version() == compiler_.program_format &&
                      manifest.namespace_() == envelope.namespace_() && manifest.compile_key() == key &&
                      manifest.variant_id() == VariantId(key, manifest.guards(), tuning) &&
                      id.key == ManifestEntryKey(key, manifest.variant_id());
    if (!same) return Wrong(id, "is not what its key says");
    return CheckObjectsOf(id, value);
  }

  absl::Status CheckKernel(const EntryId& id, const std::string& value) const {
    KILN_ASSIGN_OR_RETURN(const v1::SignedEnvelope envelope, OpenSigned(id, value));
    v1::ManifestKernel kernel;
    KILN_RETURN_IF_ERROR(ParseProto(envelope.value(), "kernel record", &kernel));
    if (kernel.kernel_key() != id.key) return Wrong(id, "is not what its key says");
    return CheckObjectsOf(id, value);
  }

  absl::Status CheckRecord(const EntryId& id, const std::string& value) const {
    v1::RequestRecord record;
    KILN_RETURN_IF_ERROR(ParseProto(value, "request record", &record));
    const bool same = namespaces_.contains(record.namespace_()) &&
                      record.request_key() == RequestKey(record.sections()) &&
                      id == RequestRecordId(KeyFor(record.namespace_(), record.request_key()));
    return same ? absl::OkStatus() : Wrong(id, "is not what its key says");
  }

  const BundleCompiler& compiler_;
  const Signatures& signatures_;
  const absl::flat_hash_set<std::string> namespaces_;
  absl::flat_hash_set<std::string> objects_;
  size_t record_bytes_ = 0;  // since the last manifest
};

absl::Status CheckCompiler(const v1::BundleHeader& header, const BundleCompiler& compiler) {
  if (header.compiler_fingerprint() == compiler.fingerprint &&
      header.program_format() == compiler.program_format) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the bundle is of compiler ", header.compiler_fingerprint(), " (kiln ", header.kiln_version(),
      "), and this daemon's is ", compiler.fingerprint, " (kiln ", compiler.kiln_version,
      "): nobody here would find its programs. Export it from a daemon of this build"));
}

}  // namespace

absl::StatusOr<v1::BundleHeader> CheckBundle(FILE* file, const BundleCompiler& compiler,
                                             const Signatures& signatures,
                                             const std::function<bool()>& gone) {
  KILN_ASSIGN_OR_RETURN(const std::unique_ptr<BundleReader> reader,
                        BundleReader::Open(file, BundleReader::Mode::kVerify));
  const v1::BundleHeader& header = reader->header();
  Checker checker(compiler, signatures, header);
  // What is wrong with an entry is told only of a bundle that is whole: a flipped bit is no untrusted key.
  absl::Status wrong = CheckCompiler(header, compiler);
  for (;;) {
    if (gone()) return absl::CancelledError("the caller has gone");
    KILN_ASSIGN_OR_RETURN(const std::optional<v1::BundleEntry> entry, reader->Next());
    if (!entry.has_value()) break;
    if (wrong.ok()) wrong = checker.Check({static_cast<EntryKind>(entry->kind()), entry->key()}, *entry);
  }
  const v1::BundleTrailer& trailer = reader->trailer();
  if (header.namespaces().empty() || trailer.signatures_size() != header.namespaces_size())
    return absl::DataLossError("the bundle is not signed for each of its namespaces");
  for (int i = 0; i < trailer.signatures_size(); ++i) {
    const v1::BundleSignature& signature = trailer.signatures(i);
    const absl::Status counts = signatures.VerifySubject(
        BundleSubject(header.namespaces(i), trailer.digest()), signature.key_id(), signature.signature());
    if (!counts.ok()) return Untrusted("the bundle", signature.key_id(), header.namespaces(i), counts);
  }
  KILN_RETURN_IF_ERROR(wrong);
  return header;
}

}  // namespace kiln
