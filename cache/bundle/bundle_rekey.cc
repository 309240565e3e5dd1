#include "cache/bundle/bundle_rekey.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "compiler/support/zstd.h"
#include "kiln/v1/record.pb.h"

namespace kiln {

absl::StatusOr<std::string> BundleRekey::KernelKeyOf(const v1::ManifestKernel& kernel,
                                                     const v1::Target& target,
                                                     const std::vector<Entry>& program) const {
  const EntryId id = {EntryKind::kObject, kernel.loop_ir().digest()};
  const auto found = absl::c_find_if(program, [&](const Entry& entry) { return entry.id == id; });
  EntryValue packed = found == program.end() ? nullptr : found->value;
  if (packed == nullptr) {
    KILN_ASSIGN_OR_RETURN(packed, read_(id));
  }
  KILN_ASSIGN_OR_RETURN(const std::string loops, ZstdDecompress(*packed, kernel.loop_ir().raw_size()));
  return KernelKey(into_, loops, target, compiler_.kernel_abi, compiler_.fingerprint);
}

absl::StatusOr<BundleRekey::Names> BundleRekey::Rename(const std::vector<Entry>& program,
                                                       v1::Manifest* manifest) const {
  Names names;
  for (const v1::Measurement& measured : manifest->tuning().measurements()) {
    const auto key = [&](const std::string& ns) {
      return TuningKey(ns, measured.tunable(), manifest->tuning().gpu(), compiler_.tuning_policy);
    };
    names.tunings[key(manifest->namespace_())] = key(into_);
  }
  for (v1::ManifestKernel& kernel : *manifest->mutable_kernels()) {
    if (kernel.kernel_key().empty()) continue;
    std::string& key = names.kernels[kernel.kernel_key()];
    if (key.empty()) {
      KILN_ASSIGN_OR_RETURN(key, KernelKeyOf(kernel, manifest->target(), program));
    }
    kernel.set_kernel_key(key);
  }
  const std::string tuning =
      manifest->has_tuning() ? Sha256(SerializeDeterministic(manifest->tuning())) : std::string();
  manifest->set_namespace_(into_);
  manifest->set_compile_key(
      CompileKey(into_, manifest->request_key(), compiler_.program_format, compiler_.fingerprint));
  manifest->set_variant_id(VariantId(manifest->compile_key(), manifest->guards(), tuning));
  return names;
}

absl::Status BundleRekey::AddKernel(const Entry& entry, const Names& names,
                                    std::vector<Entry>* rekeyed) const {
  const auto key = names.kernels.find(entry.id.key);
  if (key == names.kernels.end()) return absl::OkStatus();
  KILN_ASSIGN_OR_RETURN(const v1::SignedEnvelope old, OpenEnvelope(*entry.value));
  v1::ManifestKernel record;
  KILN_RETURN_IF_ERROR(ParseProto(old.value(), "kernel record", &record));
  record.set_kernel_key(key->second);
  rekeyed->push_back(
      signatures_->SignEntry({EntryKind::kKernel, key->second}, into_, SerializeDeterministic(record)));
  return absl::OkStatus();
}

absl::Status BundleRekey::AddTuning(const Entry& entry, const Names& names,
                                    std::vector<Entry>* rekeyed) const {
  const auto key = names.tunings.find(entry.id.key);
  if (key == names.tunings.end()) return absl::OkStatus();
  KILN_ASSIGN_OR_RETURN(v1::SignedEnvelope old, OpenEnvelope(*entry.value));
  rekeyed->push_back(
      signatures_->SignEntry({EntryKind::kTuning, key->second}, into_, std::move(*old.mutable_value())));
  return absl::OkStatus();
}

absl::Status BundleRekey::AddRecord(const Entry& entry, const v1::Manifest& manifest,
                                    std::vector<Entry>* rekeyed) const {
  v1::RequestRecord record;
  KILN_RETURN_IF_ERROR(ParseProto(*entry.value, "request record", &record));
  if (record.request_key() != manifest.request_key()) return absl::OkStatus();
  record.set_namespace_(into_);
  rekeyed->push_back(
      {RequestRecordId(manifest.compile_key()), MakeEntryValue(SerializeDeterministic(record))});
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Entry>> BundleRekey::Rekey(const std::vector<Entry>& program) const {
  KILN_ASSIGN_OR_RETURN(const v1::SignedEnvelope envelope, OpenEnvelope(*program.back().value));
  v1::Manifest manifest;
  KILN_RETURN_IF_ERROR(ParseProto(envelope.value(), "manifest", &manifest));
  KILN_ASSIGN_OR_RETURN(const Names names, Rename(program, &manifest));
  std::vector<Entry> rekeyed;
  for (const Entry& entry : program) {
    switch (entry.id.kind) {
      case EntryKind::kObject: rekeyed.push_back(entry); break;
      case EntryKind::kKernel: KILN_RETURN_IF_ERROR(AddKernel(entry, names, &rekeyed)); break;
      case EntryKind::kTuning: KILN_RETURN_IF_ERROR(AddTuning(entry, names, &rekeyed)); break;
      case EntryKind::kMeta: KILN_RETURN_IF_ERROR(AddRecord(entry, manifest, &rekeyed)); break;
      default: break;
    }
  }
  rekeyed.push_back({{EntryKind::kManifest, ManifestEntryKey(manifest.compile_key(), manifest.variant_id())},
                     MakeEntryValue(SerializeDeterministic(signatures_->SignManifest(manifest))),
                     program.back().rebuild_ms});
  return rekeyed;
}

}  // namespace kiln
