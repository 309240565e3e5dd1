#include "cache/checks/completeness_store.h"

#include "absl/strings/str_cat.h"
#include "cache/checks/references.h"
#include "compiler/support/status_macros.h"

namespace kiln {

absl::StatusOr<EntryValue> CompletenessStore::Get(const EntryId& id) {
  KILN_ASSIGN_OR_RETURN(EntryValue value, base_->Get(id));
  if (!HasReferences(id.kind)) return value;
  absl::StatusOr<References> references = ReferencesOf(id.kind, *value);
  if (!references.ok()) {
    incomplete_.fetch_add(1, std::memory_order_relaxed);
    return absl::NotFoundError(references.status().message());
  }
  KILN_ASSIGN_OR_RETURN(std::vector<EntryId> missing, base_->FindMissing(references->objects));
  if (missing.empty()) return value;
  incomplete_.fetch_add(1, std::memory_order_relaxed);
  return absl::NotFoundError(
      absl::StrCat(EntryKindName(id.kind), " names ", missing.size(), " objects that are gone"));
}

}  // namespace kiln
