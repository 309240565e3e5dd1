// Undoes a winner of max-autotune that turned out bad: the records by which programs were made go, here and
// in the shared tier, where they are barred, so that other daemons drop them too; and the programs go from
// the tier. The caller takes them out of the store afterwards. Thread-safe; waits for the tier.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "cache/shared/shared_tier.h"
#include "cache/store.h"
#include "server/rpc/entry_choice.h"
#include "server/tune/tuning_records.h"

namespace kiln {

// How many records went. `tier` is null where there is none. Where the tier takes no writes its error is
// told; what has been done by then stays done, and the rest can be asked for again.
absl::StatusOr<uint64_t> RemoveTuning(Store& store, TuningRecords& records, SharedTier* tier,
                                      const std::vector<CatalogEntry>& manifests, const CallerGone& gone);

}  // namespace kiln
