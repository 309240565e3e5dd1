// The tuning records of a cluster: which of a tunable's candidates every daemon takes, so that all make the
// same programs of the same graph. The first record in the tier stands, whoever measured it, until a person
// bars it: then whoever still has it takes it no more, and the next measurement stands.
//
//   kiln:1:NS:{TUNING KEY}:t   the record, as the store has it     :b   digests of those barred
//
// Threads: thread-safe; its functions block until their deadline. Errors: those of RedisEngine and
// RedisError's. Limits: kTierBarredMax barred records a key, the latest.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache/artifact_store.h"
#include "cache/shared/redis_engine.h"
#include "cache/signatures.h"
#include "compiler/support/monotonic_time.h"

namespace kiln {

class TierTuning {
 public:
  // What the tier lends; all outlives this.
  struct Tier {
    RedisEngine* engine;
    // The value of a key, verified, or why it is nobody's.
    std::function<absl::StatusOr<std::string>(const std::string& ns, const EntryId&, absl::string_view)> open;
    // Counts a value that is nobody's; takes it out of a key later.
    std::function<void(std::string name, absl::string_view value)> refuse;
  };
  TierTuning(Tier tier, const Signatures* signatures, absl::Duration unused_limit)
      : tier_(std::move(tier)), signatures_(signatures), unused_limit_(unused_limit) {}

  // One tunable's, by its TuningKey.
  struct Record {
    std::string key;
    EntryValue value;     // null: none
    bool barred = false;  // `value` is, and stands no more
    bool shared = false;  // the tier has said that it stands there
  };
  // `own`: what the daemon has of each key. In the same order, what stands from now on: the cluster's, or the
  // daemon's own, which is the cluster's then, or none. A key that the tier does not answer for stays as it
  // is; an error where it answers for none.
  absl::StatusOr<std::vector<Record>> Agree(const std::string& ns, absl::Span<const Record> own,
                                            MonotonicTime deadline) const;
  // Takes the record out, if it is there, and keeps it out, in one step. ABORTED where others bar records of
  // the key all the while.
  absl::Status Bar(const std::string& ns, const Record& record, MonotonicTime deadline) const;

 private:
  std::string Barred(const std::string& ns, const std::string& key, absl::string_view sealed) const;
  Record Standing(const std::string& ns, const std::string& key, const redisReply& reply,
                  absl::string_view barred) const;

  const Tier tier_;
  const Signatures* const signatures_;
  const absl::Duration unused_limit_;
};

}  // namespace kiln
