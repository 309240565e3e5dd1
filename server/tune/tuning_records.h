// The records of tunables: the store's and, where daemons share a tier, the cluster's, which stand before a
// daemon's own, so that all of them make the same programs.
//
// Thread-safe. Consult, Keep and Remove wait for the tier, each within its limit; a tier that is away or slow
// costs no more than that, and the store's records stand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "cache/shared/shared_tier.h"
#include "cache/signatures.h"
#include "cache/store.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln {

class TuningRecords {
 public:
  // All outlive this. `tier` is null where there is none.
  TuningRecords(const Signatures* signatures, Store* store, SharedTier* tier)
      : signatures_(signatures), store_(store), tier_(tier) {}

  // The store's.
  absl::StatusOr<v1::Measurement> Find(const std::string& ns, const std::string& key) const;
  // Takes into the store what the cluster has of `keys`, offers it what it lacks, and drops what somebody has
  // barred. An error: the tier does not answer for now, and the store's stand.
  absl::Status Consult(const std::string& ns, const std::vector<std::string>& keys)
      ABSL_LOCKS_EXCLUDED(keeping_);
  // The same of one record, and whether the tier has said that one stands there, so that others find it.
  absl::StatusOr<bool> Publish(const std::string& ns, const std::string& key) ABSL_LOCKS_EXCLUDED(keeping_);
  // The record that stands from now on: an earlier one, if another lease or another daemon was faster.
  v1::Measurement Keep(const std::string& ns, const std::string& key, v1::Measurement record)
      ABSL_LOCKS_EXCLUDED(keeping_);
  // Takes a record out, and bars it in the tier, so that other daemons drop it. True where one was here. An
  // error: the tier does not take that for now, and the record is still here.
  absl::StatusOr<bool> Remove(const std::string& key) ABSL_LOCKS_EXCLUDED(keeping_);

 private:
  // What stands of each.
  absl::StatusOr<std::vector<TierTuning::Record>> Agree(const std::string& ns,
                                                        const std::vector<std::string>& keys)
      ABSL_LOCKS_EXCLUDED(keeping_);
  EntryValue Stored(const std::string& key) const;
  void Take(const TierTuning::Record& own, const TierTuning::Record& stands);

  const Signatures* const signatures_;
  Store* const store_;
  SharedTier* const tier_;
  absl::Mutex keeping_;  // a look at the store and the write that follows it
};

}  // namespace kiln
