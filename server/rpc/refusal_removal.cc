#include "server/rpc/refusal_removal.h"

#include "absl/strings/str_cat.h"
#include "cache/signatures.h"
#include "compiler/support/status_macros.h"
#include "kiln/v1/record.pb.h"

namespace kiln {

absl::Status RemoveRefusals(Store& store, SharedTier* tier, const std::vector<CatalogEntry>& failures,
                            const CallerGone& gone) {
  for (const CatalogEntry& entry : failures) {
    if (tier == nullptr) return absl::OkStatus();
    if (gone()) return absl::CancelledError("the caller has gone");
    const absl::StatusOr<EntryValue> value = store.inspection().Get(entry.id);
    if (!value.ok()) continue;  // gone since, or damaged
    KILN_ASSIGN_OR_RETURN(const v1::SignedEnvelope envelope, OpenEnvelope(**value));
    const absl::Status removed = tier->RemoveRefusal(envelope.namespace_(), entry.id.key);
    if (!removed.ok())
      return absl::Status(removed.code(), absl::StrCat("the shared tier: ", removed.message()));
  }
  return absl::OkStatus();
}

}  // namespace kiln
