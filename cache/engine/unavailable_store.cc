#include "cache/engine/unavailable_store.h"

#include "compiler/support/status_macros.h"

namespace kiln {

absl::StatusOr<EntryValue> UnavailableStore::Get(const EntryId& id) {
  KILN_RETURN_IF_ERROR(CheckEntryId(id));
  return absl::NotFoundError("the store holds nothing");
}

absl::Status UnavailableStore::Put(absl::Span<const Entry> batch) {
  KILN_RETURN_IF_ERROR(CheckBatch(batch));
  return batch.empty() ? absl::OkStatus() : reason_;
}

absl::Status UnavailableStore::Delete(absl::Span<const EntryId> ids) {
  for (const EntryId& id : ids) KILN_RETURN_IF_ERROR(CheckEntryId(id));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<EntryId>> UnavailableStore::FindMissing(absl::Span<const EntryId> ids) {
  for (const EntryId& id : ids) KILN_RETURN_IF_ERROR(CheckEntryId(id));
  return std::vector<EntryId>(ids.begin(), ids.end());
}

}  // namespace kiln
