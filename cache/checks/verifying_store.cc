#include "cache/checks/verifying_store.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "cache/checks/entry_envelope.h"
#include "cache/checks/object_check.h"
#include "compiler/support/digest.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr char kSignature[] = "kiln/signature";  // marks what is damaged by its signature alone

}  // namespace

absl::Status VerifyingStore::CheckSignature(const EntryId& id, absl::string_view value) const {
  if (signatures_ == nullptr || !IsSigned(id.kind)) return absl::OkStatus();
  return signatures_->Verify(id, value);
}

absl::StatusOr<EntryValue> VerifyingStore::Read(const EntryId& id, Checks checks) {
  KILN_ASSIGN_OR_RETURN(EntryValue sealed, base_->Get(id));
  absl::StatusOr<absl::string_view> payload =
      mode_ == Mode::kVerify ? OpenEntry(id, *sealed) : OpenEntryUnchecked(*sealed);
  KILN_RETURN_IF_ERROR(payload.status());
  const bool ask = mode_ == Mode::kVerify && checks == Checks::kAll;
  const absl::Status counts = ask ? CheckSignature(id, *payload) : absl::OkStatus();
  if (!counts.ok()) {
    absl::Status refused =
        absl::DataLossError(absl::StrCat("the signature of ", EntryKindName(id.kind), " ", ToHex(id.key),
                                         " does not count: ", counts.message()));
    refused.SetPayload(kSignature, absl::Cord());
    return refused;
  }
  return MakeEntryValue(std::string(*payload));
}

absl::StatusOr<EntryValue> VerifyingStore::Get(const EntryId& id) {
  absl::StatusOr<EntryValue> value = Read(id, Checks::kAll);
  return absl::IsDataLoss(value.status()) ? Quarantine(id, Checks::kAll) : value;
}

absl::StatusOr<EntryValue> VerifyingStore::GetWhole(const EntryId& id) {
  absl::StatusOr<EntryValue> value = Read(id, Checks::kDigest);
  return absl::IsDataLoss(value.status()) ? Quarantine(id, Checks::kDigest) : value;
}

absl::StatusOr<EntryValue> VerifyingStore::Quarantine(const EntryId& id, Checks checks) {
  absl::MutexLock lock(&writing_);
  absl::StatusOr<EntryValue> again = Read(id, checks);
  if (!absl::IsDataLoss(again.status())) return again;
  quarantined_.fetch_add(1, std::memory_order_relaxed);
  if (again.status().GetPayload(kSignature).has_value()) {
    refused_signatures_.fetch_add(1, std::memory_order_relaxed);
  }
  // Should it not go (a full disk), it is found damaged again at the next read: a miss either way.
  absl::Status deleted = base_->Delete({id});
  return absl::NotFoundError(
      absl::StrCat(again.status().message(), deleted.ok() ? "; taken out" : "; could not be taken out"));
}

absl::Status VerifyingStore::Put(absl::Span<const Entry> batch) {
  KILN_RETURN_IF_ERROR(CheckBatch(batch));
  std::vector<Entry> sealed;
  sealed.reserve(batch.size());
  for (const Entry& entry : batch) {
    if (entry.id.kind == EntryKind::kObject) KILN_RETURN_IF_ERROR(CheckObject(entry.id.key, *entry.value));
    if (const absl::Status counts = CheckSignature(entry.id, *entry.value); !counts.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(EntryKindName(entry.id.kind), " whose signature does not count: ", counts.message()));
    }
    sealed.push_back({entry.id, MakeEntryValue(SealEntry(entry.id, *entry.value)), entry.rebuild_ms});
  }
  absl::ReaderMutexLock lock(&writing_);
  return base_->Put(sealed);
}

absl::Status VerifyingStore::Delete(absl::Span<const EntryId> ids) {
  absl::ReaderMutexLock lock(&writing_);
  return base_->Delete(ids);
}

}  // namespace kiln
