// What a namespace's keys were made of that daemons put into the tier last: a sorted set of CompileKeys by
// when their request records were written. For people who ask which program is near (kilnctl why); nothing
// that is compiled or served depends on it.
//
// Who may write there may name what is no key, or leave a key out: a record counts by its own signature
// alone. When it was written is told by its daemon's clock.
//
// Threads: thread-safe; `EachLatest` blocks, for kTierRecordsTime at most.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache/shared/redis_engine.h"
#include "cache/shared/tier_tuning.h"
#include "kiln/v1/record.pb.h"

namespace kiln {

inline constexpr absl::Duration kTierRecordsTime = absl::Seconds(10);

class TierRecords {
 public:
  explicit TierRecords(TierTuning::Tier tier) : tier_(std::move(tier)) {}

  struct Record {
    std::string compile_key;
    int64_t unix_seconds = 0;
    uint64_t bytes = 0;
    v1::RequestRecord record;
  };
  // The last first, until `visit` says false. Those that have gone or do not count are left out. UNAVAILABLE
  // and DEADLINE_EXCEEDED where the tier does not answer.
  absl::Status EachLatest(const std::string& ns, absl::FunctionRef<bool(const Record&)> visit);

 private:
  const TierTuning::Tier tier_;
};

// What puts a key among them, and the oldest out.
std::vector<RedisCommand> ListTierRecord(const std::string& ns, const std::string& compile_key,
                                         int64_t unix_seconds, absl::Duration life);

}  // namespace kiln
