// Undoes refusals where daemons share them: what is stored of a key here comes back from the shared tier as
// long as it is there. The caller takes it out of the store afterwards; other daemons that have it keep it
// until its end, or until it is removed there. Thread-safe; waits for the tier.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "cache/shared/shared_tier.h"
#include "cache/store.h"
#include "server/rpc/entry_choice.h"

namespace kiln {

// `tier` is null where there is none. Its error is told where it takes no writes: then nothing has gone here,
// and all can be asked for again.
absl::Status RemoveRefusals(Store& store, SharedTier* tier, const std::vector<CatalogEntry>& failures,
                            const CallerGone& gone);

}  // namespace kiln
