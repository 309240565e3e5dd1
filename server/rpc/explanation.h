// Why programs were compiled (kilnctl why). A compile is explained by what the daemon remembers of it
// (observe/miss_table.h) or, where only the store knows the program, by its record there: by the variants of
// its key that do not hold at its sizes, else by the stored program of another key with most equal
// ingredients; of several by one of the same title, then by the one that was compiled last, and never by one
// that was compiled later.
//
// A whole CompileKey that is not stored here is asked of the shared tier, and what is near is sought there as
// well: where the tier does not answer, the reply says so and tells what the store knows.
//
// Limits: the catalogue is gone through by pages; at most kComparedMax records and kComparedBytesMax of them
// are read, those that were made or used last, and as many of the tier's. Errors: NOT_FOUND where no such job
// or program is known, FAILED_PRECONDITION where several keys start so, CANCELLED once `gone` says so.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/shared/tier_records.h"
#include "cache/store.h"
#include "kiln/v1/admin.pb.h"
#include "server/observe/miss_table.h"
#include "server/rpc/entry_choice.h"

namespace kiln {

// What the shared tier knows. Empty functions: there is none.
struct ProgramsInTier {
  // Of one CompileKey; NOT_FOUND where it has none.
  std::function<absl::StatusOr<v1::RequestRecord>(const std::string& compile_key)> find;
  // Those that were put there last, the last first, until `visit` says false.
  using Visit = std::function<bool(const TierRecords::Record&)>;
  std::function<absl::Status(const Visit& visit)> each_latest;
};

// `misses`: the last first.
absl::Status Explain(Store& store, const std::vector<MissTable::MissPtr>& misses,
                     const v1::WhyRequest& request, const CallerGone& gone, const ProgramsInTier& tier,
                     v1::WhyReply* reply);

// What the store knows of a key's ingredients.
absl::StatusOr<v1::RequestRecord> ReadRequestRecord(Store& store, const std::string& compile_key);

}  // namespace kiln
