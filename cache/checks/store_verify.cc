#include "cache/checks/store_verify.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "cache/cache_limits.h"
#include "cache/checks/references.h"
#include "compiler/support/digest.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

void AddDetail(const EntryId& id, absl::string_view what, Store::VerifyResult* result) {
  if (result->details.size() < kVerifyDetailsMax) {
    result->details.push_back(absl::StrCat(EntryKindName(id.kind), " ", ToHex(id.key), ": ", what));
  }
}

absl::Status CheckReferences(const EntryId& id, VerifyingStore* store, Store::VerifyResult* result) {
  absl::StatusOr<EntryValue> value = store->Get(id);
  if (absl::IsNotFound(value.status())) return absl::OkStatus();
  KILN_RETURN_IF_ERROR(value.status());
  absl::StatusOr<References> references = ReferencesOf(id.kind, **value);
  if (!references.ok()) {
    ++result->corrupt;
    AddDetail(id, references.status().message(), result);
    return absl::OkStatus();
  }
  KILN_ASSIGN_OR_RETURN(std::vector<EntryId> missing, store->FindMissing(references->objects));
  result->missing += missing.size();
  if (!missing.empty()) AddDetail(id, absl::StrCat("names ", missing.size(), " missing objects"), result);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Store::VerifyResult> VerifyEntries(const Catalog& catalog, VerifyingStore* store, bool repair,
                                                  const std::function<bool()>& gone) {
  Store::VerifyResult result;
  for (size_t i = 0; i < kEntryKinds; ++i) {
    EntryKind kind = static_cast<EntryKind>(i);
    if (kind == EntryKind::kUses) continue;
    KILN_ASSIGN_OR_RETURN(std::vector<CatalogEntry> entries, catalog.Scan(kind, ""));
    for (const CatalogEntry& entry : entries) {
      if (gone()) return absl::CancelledError("the caller has gone");
      ++(kind == EntryKind::kObject ? result.objects : result.entries);
      absl::Status checked = store->Check(entry.id);
      if (absl::IsDataLoss(checked)) {
        ++result.corrupt;
        AddDetail(entry.id, repair ? "damaged, taken out" : "damaged", &result);
        if (!repair) continue;
        // Reading it is what takes it out.
        absl::Status taken_out = store->Get(entry.id).status();
        if (!taken_out.ok() && !absl::IsNotFound(taken_out)) return taken_out;
      } else if (absl::IsNotFound(checked)) {
        ++result.missing;
        AddDetail(entry.id, "listed, but gone", &result);
      } else {
        KILN_RETURN_IF_ERROR(checked);
        if (HasReferences(kind)) KILN_RETURN_IF_ERROR(CheckReferences(entry.id, store, &result));
      }
    }
  }
  return result;
}

}  // namespace kiln
