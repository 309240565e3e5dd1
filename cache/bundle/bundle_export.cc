#include "cache/bundle/bundle_export.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache/bundle/bundle_counts.h"
#include "cache/checks/references.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

absl::Status Gone(const EntryId& id) {
  return absl::AbortedError(absl::StrCat(EntryKindName(id.kind), " ", ToHex(id.key.substr(0, 6)),
                                         " was evicted or removed during the export; export again"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<BundleExport>> BundleExport::Collect(
    absl::Span<const EntryId> manifests, const std::string& job, BundleCompiler compiler,
    const Signatures* signatures, Store* store, const std::function<bool()>& gone) {
  std::unique_ptr<BundleExport> made(new BundleExport(std::move(compiler), signatures, store));
  for (const EntryId& manifest : manifests) {
    if (gone()) return absl::CancelledError("the caller has gone");
    KILN_RETURN_IF_ERROR(made->AddProgram(manifest));
  }
  KILN_RETURN_IF_ERROR(made->Hold());
  made->writer_.emplace(signatures, made->HeaderFor(job));
  return made;
}

absl::Status BundleExport::AddProgram(const EntryId& id) {
  const absl::StatusOr<EntryValue> value = store_->inspection().Get(id);
  if (absl::IsNotFound(value.status())) return Gone(id);
  KILN_RETURN_IF_ERROR(value.status());
  KILN_ASSIGN_OR_RETURN(const References references, ReferencesOf(EntryKind::kManifest, **value));
  KILN_ASSIGN_OR_RETURN(const v1::SignedEnvelope envelope, OpenEnvelope(**value));
  v1::Manifest manifest;
  KILN_RETURN_IF_ERROR(ParseProto(envelope.value(), "manifest", &manifest));
  const std::string& ns = manifest.namespace_();
  if (manifest.compile_key() !=
      CompileKey(ns, manifest.request_key(), compiler_.program_format, compiler_.fingerprint)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "program ", ToHex(manifest.compile_key()).substr(0, 16),
        " is another compiler's, as of an earlier build or an upstream, and no daemon would take "
        "it with this one's: export the job where that compiler runs"));
  }
  if (!absl::c_linear_search(namespaces_, ns)) namespaces_.push_back(ns);
  for (const EntryId& object : references.objects) Add(object);
  for (const std::string& key : references.kernel_keys) AddRecord({EntryKind::kKernel, key}, ns);
  for (const v1::Measurement& measured : manifest.tuning().measurements()) {
    AddRecord({EntryKind::kTuning,
               TuningKey(ns, measured.tunable(), manifest.tuning().gpu(), compiler_.tuning_policy)},
              ns);
  }
  const EntryId record = RequestRecordId(manifest.compile_key());
  if (store_->inspection().Get(record).ok()) Add(record);
  const absl::StatusOr<CatalogEntry> known = store_->catalog().Find(id);
  Add(id, known.ok() ? known->rebuild_ms : 0);
  return absl::OkStatus();
}

void BundleExport::AddRecord(const EntryId& id, const std::string& ns) {
  if (known_.contains(id)) return;
  const absl::StatusOr<EntryValue> value = store_->inspection().Get(id);
  if (!value.ok() || !OpenFor(ns, **value).ok()) return;
  // A record of a kernel names objects that the manifest need not name.
  if (id.kind == EntryKind::kKernel) {
    const absl::StatusOr<References> references = ReferencesOf(id.kind, **value);
    if (!references.ok()) return;
    for (const EntryId& object : references->objects) Add(object);
  }
  Add(id);
}

void BundleExport::Add(const EntryId& id, uint32_t rebuild_ms) {
  if (!known_.insert(id).second) return;
  items_.push_back({id, rebuild_ms});
  CountEntry(id.kind, summary_.mutable_counts());
}

// Held first, then asked for: what is there now stays.
absl::Status BundleExport::Hold() {
  std::vector<EntryId> ids;
  ids.reserve(items_.size());
  for (const Item& item : items_) ids.push_back(item.id);
  hold_ = store_->Keep(ids);
  KILN_ASSIGN_OR_RETURN(const std::vector<EntryId> missing, store_->artifacts().FindMissing(ids));
  if (!missing.empty()) return Gone(missing.front());
  return hold_.late() ? Gone(ids.front()) : absl::OkStatus();
}

v1::BundleHeader BundleExport::HeaderFor(const std::string& job) const {
  v1::BundleHeader header;
  for (const std::string& name : namespaces_) header.add_namespaces(name);
  header.set_compiler_fingerprint(compiler_.fingerprint);
  header.set_program_format(compiler_.program_format);
  header.set_job(job);
  header.set_created_unix_seconds(absl::ToUnixSeconds(absl::Now()));
  header.set_kiln_version(compiler_.kiln_version);
  return header;
}

absl::StatusOr<std::string> BundleExport::Next() {
  std::string piece;
  if (!begun_) {
    begun_ = true;
    for (const std::string& name : namespaces_) summary_.add_namespaces(name);
    piece = writer_->Begin();
  } else if (next_ < items_.size()) {
    const Item& item = items_[next_++];
    absl::StatusOr<EntryValue> value = store_->inspection().Get(item.id);
    if (absl::IsNotFound(value.status())) return Gone(item.id);
    KILN_RETURN_IF_ERROR(value.status());
    piece = writer_->Add({item.id, *std::move(value), item.rebuild_ms});
  } else if (!ended_) {
    ended_ = true;
    piece = writer_->End();
  }
  summary_.set_bytes(summary_.bytes() + piece.size());
  return piece;
}

}  // namespace kiln
