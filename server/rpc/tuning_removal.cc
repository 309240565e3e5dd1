#include "server/rpc/tuning_removal.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache/signatures.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "kiln/v1/artifact.pb.h"
#include "server/tune/tuner.h"

namespace kiln {
namespace {

absl::Status OfTier(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("the shared tier: ", status.message()));
}

}  // namespace

absl::StatusOr<uint64_t> RemoveTuning(Store& store, TuningRecords& records, SharedTier* tier,
                                      const std::vector<CatalogEntry>& manifests, const CallerGone& gone) {
  uint64_t removed = 0;
  for (const CatalogEntry& entry : manifests) {
    if (gone()) return absl::CancelledError("the caller has gone");
    const absl::StatusOr<EntryValue> value = store.inspection().Get(entry.id);
    if (!value.ok()) continue;  // gone since, or damaged
    KILN_ASSIGN_OR_RETURN(const v1::SignedEnvelope envelope, OpenEnvelope(**value));
    v1::Manifest manifest;
    KILN_RETURN_IF_ERROR(ParseProto(envelope.value(), "manifest", &manifest));
    const std::vector<std::string> keys = Tuner::KeysOf(envelope.namespace_(), manifest.tuning());
    // A program that came from the tier came without its records.
    KILN_RETURN_IF_ERROR(OfTier(records.Consult(envelope.namespace_(), keys)));
    for (const std::string& key : keys) {
      absl::StatusOr<bool> was_here = records.Remove(key);
      if (!was_here.ok()) return OfTier(was_here.status());
      removed += *was_here ? 1 : 0;
    }
    if (tier != nullptr) KILN_RETURN_IF_ERROR(OfTier(tier->RemoveManifest(envelope.namespace_(), entry.id)));
  }
  return removed;
}

}  // namespace kiln
