// A program that is not stored here, as the shared tier has it: for people who compare keys (kilnctl why and
// diff). Nothing is kept, and what the tier says is verified as ever.
//
// Threads: any; they block, for kTierLookLimit a namespace and as long as objects take. Errors: NOT_FOUND
// where no namespace has it, FAILED_PRECONDITION where the tier could not be asked, or says no more than that
// there is such a key.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/shared/shared_tier.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/config.pb.h"
#include "kiln/v1/record.pb.h"

namespace kiln {

struct TierProgram {
  std::string ns;
  v1::RequestRecord record;
  std::vector<v1::Manifest> variants;  // none: it is refused there
};

// In the namespaces of the configured tenants, one after the other. `compile_key`: whole.
absl::StatusOr<TierProgram> ReadTierProgram(SharedTier& tier, const v1::ListenConfig& listen,
                                            const std::string& compile_key);

// What keys were made of, in the namespaces of the configured tenants: of each those that were put there
// last, the last first, until `visit` says false.
absl::Status VisitTierRecords(SharedTier& tier, const v1::ListenConfig& listen,
                              absl::FunctionRef<bool(const TierRecords::Record&)> visit);

// The loops of a variant's kernels, unpacked, by digest.
absl::StatusOr<absl::flat_hash_map<std::string, std::string>> ReadTierLoops(SharedTier& tier,
                                                                            const std::string& ns,
                                                                            const v1::Manifest& manifest);

}  // namespace kiln
