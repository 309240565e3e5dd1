#include "cache/bundle/bundle_import.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache/bundle/bundle_check.h"
#include "cache/bundle/bundle_counts.h"
#include "cache/bundle/bundle_file.h"
#include "cache/bundle/bundle_rekey.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"

namespace kiln {

absl::StatusOr<v1::ImportReply> BundleImport::Run(FILE* file) {
  KILN_ASSIGN_OR_RETURN(const v1::BundleHeader header, Check(file));
  reply_.set_job(header.job());
  // Both are told, whatever they count.
  reply_.mutable_fresh();
  reply_.mutable_there();
  if (options_.into.empty()) {
    *reply_.mutable_namespaces() = header.namespaces();
  } else {
    reply_.add_namespaces(options_.into);
  }
  for (const std::string& name : reply_.namespaces()) KILN_RETURN_IF_ERROR(options_.check_namespace(name));
  KILN_RETURN_IF_ERROR(PutAll(file));
  return reply_;
}

absl::StatusOr<v1::BundleHeader> BundleImport::Check(FILE* file) {
  if (!options_.dangerously_believe) return CheckBundle(file, compiler_, *signatures_, options_.gone);
  KILN_ASSIGN_OR_RETURN(const std::unique_ptr<BundleReader> reader,
                        BundleReader::Open(file, BundleReader::Mode::kDangerouslyBelieve));
  return reader->header();
}

absl::Status BundleImport::PutAll(FILE* file) {
  // Checked before; a file that somebody else changes meanwhile is none of ours.
  KILN_ASSIGN_OR_RETURN(const std::unique_ptr<BundleReader> reader,
                        BundleReader::Open(file, BundleReader::Mode::kDangerouslyBelieve));
  std::vector<Entry> program;
  size_t bytes = 0;
  for (;;) {
    if (options_.gone()) return absl::CancelledError("the caller has gone");
    KILN_ASSIGN_OR_RETURN(std::optional<v1::BundleEntry> read, reader->Next());
    if (!read.has_value()) return absl::OkStatus();
    Entry entry = {{static_cast<EntryKind>(read->kind()), std::move(*read->mutable_key())},
                   MakeEntryValue(std::move(*read->mutable_value())),
                   read->rebuild_ms()};
    bytes += entry.value->size();
    program.push_back(std::move(entry));
    if (program.back().id.kind == EntryKind::kManifest) {
      KILN_RETURN_IF_ERROR(PutProgram(std::exchange(program, {})));
      bytes = 0;
    } else if (bytes > kProgramBytes) {
      KILN_RETURN_IF_ERROR(PutObjects(&program));
      bytes = 0;
    }
  }
}

absl::Status BundleImport::PutObjects(std::vector<Entry>* program) {
  std::vector<Entry> objects, others;
  for (Entry& entry : *program) {
    (entry.id.kind == EntryKind::kObject ? objects : others).push_back(std::move(entry));
  }
  *program = std::move(others);
  return PutWhatIsMissing(objects);
}

absl::Status BundleImport::PutProgram(std::vector<Entry> program) {
  if (!options_.into.empty()) {
    const BundleRekey rekey(options_.into, compiler_, signatures_,
                            [this](const EntryId& id) { return store_->inspection().Get(id); });
    KILN_ASSIGN_OR_RETURN(program, rekey.Rekey(program));
  }
  const EntryId manifest = program.back().id;
  KILN_ASSIGN_OR_RETURN(const v1::SignedEnvelope envelope, OpenEnvelope(*program.back().value));
  const std::string compile_key = manifest.key.substr(0, kDigestBytes);
  options_.make_room(envelope.namespace_(), compile_key, manifest.key.substr(compile_key.size()));
  const absl::Status put = PutWhatIsMissing(program);
  options_.changed(compile_key);
  if (!put.ok()) {
    return absl::Status(put.code(),
                        absl::StrCat("after ", reply_.fresh().programs() + reply_.there().programs(),
                                     " programs, which are whole and stay: ", put.message()));
  }
  return options_.pin ? Pin(manifest) : absl::OkStatus();
}

absl::Status BundleImport::PutWhatIsMissing(const std::vector<Entry>& entries) {
  std::vector<Entry> missing;
  v1::BundleCounts fresh;
  for (const Entry& entry : entries) {
    KILN_ASSIGN_OR_RETURN(const bool there, IsThere(entry.id));
    if (there) {
      CountEntry(entry.id.kind, reply_.mutable_there());
      continue;
    }
    CountEntry(entry.id.kind, &fresh);
    missing.push_back(entry);
  }
  KILN_RETURN_IF_ERROR(store_->artifacts().Put(missing));
  reply_.mutable_fresh()->set_programs(reply_.fresh().programs() + fresh.programs());
  reply_.mutable_fresh()->set_objects(reply_.fresh().objects() + fresh.objects());
  reply_.mutable_fresh()->set_kernels(reply_.fresh().kernels() + fresh.kernels());
  reply_.mutable_fresh()->set_tuning_records(reply_.fresh().tuning_records() + fresh.tuning_records());
  return absl::OkStatus();
}

// Of what is signed a reader decides: one whose key no longer counts is as good as missing.
absl::StatusOr<bool> BundleImport::IsThere(const EntryId& id) {
  KILN_ASSIGN_OR_RETURN(const std::vector<EntryId> missing, store_->artifacts().FindMissing({id}));
  // What memory alone has is to be kept now.
  if (!missing.empty() || !store_->catalog().Find(id).ok()) return false;
  if (!IsSigned(id.kind)) return true;
  const absl::Status read = store_->inspection().Get(id).status();
  if (!read.ok() && !absl::IsNotFound(read)) return read;
  return read.ok();
}

absl::Status BundleImport::Pin(const EntryId& manifest) {
  const Holds::Hold hold = store_->Keep({manifest});
  KILN_RETURN_IF_ERROR(hold.late() ? absl::AbortedError("a program is being evicted; import again")
                                   : store_->catalog().SetPinned(manifest, true));
  reply_.set_pinned(reply_.pinned() + 1);
  return absl::OkStatus();
}

}  // namespace kiln
