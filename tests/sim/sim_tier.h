// The shared tier of a simulated cluster: what its server does for the commands that daemons send, with ends
// by the simulated clock. tests/fault/sim_tier_test.cc holds its verdicts against a redis-server.
//
// Threads: one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache/shared/claim_table.h"
#include "server/build/artifact.h"
#include "tests/sim/sim_clock.h"

namespace kiln::sim {

class SimTier {
 public:
  // The clock outlives the tier.
  explicit SimTier(const SimClock* clock) : clock_(clock) {}

  // What tier_claims.cc sends: SET NX PX, and its scripts that renew and release.
  bool Ask(const ClaimTable::Question& question);
  // What tier_verdicts.cc sends: GET, and its scripts. `wanted` stands there afterwards, or something else.
  std::string Read(const std::string& name);
  std::string Replace(const std::string& name, const std::string& seen, const std::string& wanted,
                      absl::Duration life);
  std::string Lengthen(const std::string& name, absl::Duration left);  // a mark
  // Of a key: its variants by their ids, and its refusal.
  using Programs = std::map<std::string, std::shared_ptr<const Artifact>>;
  struct Key {
    Programs programs;
    absl::Status refusal;
  };
  Key& At(const std::string& key) { return data_.keys[key]; }

  // ---- Troubles ----
  struct Ending {
    std::string value;
    MonotonicTime until;
  };
  using Endings = std::map<std::string, Ending>;
  struct Data {
    Endings claims, verdicts;
    std::map<std::string, Key> keys;
  };
  const Data& data() const { return data_; }
  // It was flushed (nothing), or a replica that lags becomes its master (as it was then).
  void Become(Data data) { data_ = std::move(data); }

  bool blind = false;  // planted: it renews and releases anybody's claim

  // ---- For checks ----
  std::string Owner(const std::string& name) { return Get(&data_.claims, name); }
  std::string Verdict(const std::string& name) { return Get(&data_.verdicts, name); }
  MonotonicTime EndOfVerdict(const std::string& name) const;
  MonotonicTime EndOfClaim(const std::string& name) const;

 private:
  std::string Get(Endings* endings, const std::string& name);
  MonotonicTime After(absl::Duration life) const { return clock_->now + absl::ToChronoMicroseconds(life); }

  const SimClock* const clock_;
  Data data_;
};

}  // namespace kiln::sim
