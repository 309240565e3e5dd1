// A shared tier's options from its configuration. Threads: pure functions.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/shared/shared_tier.h"
#include "kiln/v1/config.pb.h"

namespace kiln {

inline constexpr uint32_t kTierLookupMsDefault = 50;
inline constexpr uint32_t kTierUnusedDaysDefault = 30;
inline constexpr uint64_t kTierWriteBytesDefault = uint64_t{256} << 20;

void TierDefaults(v1::TierConfig* config);

// INVALID_ARGUMENT, which names the field, for what can't be; looks at no file.
absl::Status CheckTierConfig(const v1::TierConfig& config);

// Reads the password. FAILED_PRECONDITION, which names the file, where it can't be read, is empty, or others
// may read it.
absl::StatusOr<SharedTier::Options> TierOptions(const v1::TierConfig& config);

}  // namespace kiln
