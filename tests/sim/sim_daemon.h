// One daemon of a simulated cluster: the real FlightTable, TierFlights, ClaimTable and gang machines, and
// what Coordinator does between them, with workers, a disk and a tier that the seed rules. Threads: one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "server/flight/flight_table.h"
#include "server/flight/tier_flights.h"
#include "tests/sim/cluster.h"
#include "tests/sim/sim_gangs.h"
#include "tests/sim/sim_upstream.h"
#include "tests/sim/tier_link.h"

namespace kiln::sim {

enum class FlightInput {
  kCompile,
  kUploaded,
  kUploadFailed,
  kCancel,
  kHere,
  kEverywhere,
  kElsewhere,
  kEnded,
  kMade,
  kRefused,
  kCameBack,
  kStored,
  kNotStored,
  kTick,
  kKilled,
};
enum class TierInput { kLookFurther, kNothing, kAway, kTaken, kTakenInPart, kOurs, kNobodys, kMade, kOver };

// What a caller wants.
struct SimQuestion {
  std::string key;
  int size = 0;
  std::string gang;          // empty: it is in none
  MonotonicTime gang_began;  // when its job did
  MonotonicTime deadline;
};

// What a flight is known to have had from the tier.
struct FlightFacts {
  std::string key;
  MonotonicTime began;                              // to look further
  MonotonicTime ours_at = MonotonicTime::min();     // its claim; min: it has none
  MonotonicTime token_over = MonotonicTime::max();  // when it was returned
  MonotonicTime known_at = MonotonicTime::min();    // when it last saw its store
  bool without = false;                             // goes on though it has none
  bool in_part = false;                             // its store did not take what the tier has
};

class SimDaemon final : public Workers, public FlightStore, public FlightClaims {
 public:
  // All outlive it. `farm`: whose daemon is its upstream; null: it has none, and the tier.
  SimDaemon(Cluster* cluster, Host* host, Host* farm);
  ~SimDaemon() override;

  // A look-up: `answer` gets a program, a verdict, or nothing (then compile).
  struct Found {
    std::optional<KnownVariant> variant;
    absl::Status refusal;
    bool no_verdict = false;
  };
  void Lookup(const SimQuestion& question, std::function<void(const Found&)> answer);
  void Compile(CallId id, const SimQuestion& question, std::shared_ptr<Subscriber> subscriber);
  void Uploaded(CallId id, bool fails);
  void Cancel(CallId id);
  // What it knew and did is gone, but for its disk.
  void Kill();

  const FlightTable& table() const { return *table_; }
  SimGangs& gangs() { return *gangs_; }
  uint64_t life() const { return number_; }
  bool dead() const { return dead_; }
  MonotonicTime born() const { return born_; }
  // Whether the claim of a flight is still to be renewed.
  bool HoldsClaim(FlightId flight) const { return claims_.IsOurs(flight); }
  const std::map<FlightId, FlightFacts>& facts() const { return facts_; }
  std::set<std::string> ClaimsAwaited() const;  // keys
  void Check();                                 // from time to time
  void CheckAtRest();

  // Workers, FlightStore and FlightClaims: what the table asks.
  void Start(TaskId id, FlightId flight, FlightRequestPtr request, const FlightTask& task) override;
  void Stop(FlightId flight) override;
  void Look(FlightId flight, const FlightRequest& request) override;
  void Write(FlightId flight, std::shared_ptr<const Artifact> artifact) override;
  void LookFurther(FlightId flight, const FlightRequest& request, const v1::Hints& hints,
                   KnownKeyPtr known) override;
  void Over(FlightId flight) override;

 private:
  struct Work {
    FlightId flight = 0;
    FlightRequestPtr request;
    bool stopped = false;
  };
  void Give(FlightInput input, FlightTable::State state, const std::function<void()>& call);
  void GiveTier(TierInput input, FlightId flight, const std::function<void()>& call);
  void SetTimer();
  std::unique_ptr<TierFlights> NewTierFlights();
  std::unique_ptr<SimUpstream> NewUpstream(Host* farm);
  void LookInTier(FlightId flight, const std::string& key);
  void Claim(FlightId flight, const std::string& key);
  void ReleaseAfterWrites(FlightId flight);
  void Release(FlightId flight);
  bool Take(const std::string& key, const SimTier::Key& found);
  void PutIntoTier(std::shared_ptr<const Artifact> artifact, std::function<void()> ended);
  void Renew(const std::string& key, const std::string& variant_id);
  void Bring(const std::string& key, const std::function<void()>& brought);
  void EndWork(TaskId id);
  absl::StatusOr<std::shared_ptr<const Artifact>> OutcomeOf(const FlightRequest& request, FlightId flight);
  std::string WaitsFor(FlightId flight) const;

  Cluster* const cluster_;
  Host* const host_;
  std::shared_ptr<Life> life_;  // null: it has ended
  const uint64_t number_;
  const MonotonicTime born_;
  bool dead_ = false;
  TierLink link_;
  LinkClaims claims_;
  LinkWriter writer_;
  std::unique_ptr<TierFlights> tier_flights_;
  std::unique_ptr<SimUpstream> upstream_;  // null: none
  FlightTable::Options options_;
  std::unique_ptr<FlightTable> table_;
  std::unique_ptr<SimGangs> gangs_;

  std::map<FlightId, FlightFacts> facts_;
  std::map<FlightId, MonotonicTime> asked_tier_;  // looks that are out
  std::map<TaskId, Work> work_;
  std::set<FlightId> looking_, storing_;
  std::map<CallId, MonotonicTime> calls_;  // and when each has ended
  MonotonicTime timer_ = MonotonicTime::max();
  uint64_t last_job_ = 0;
};

}  // namespace kiln::sim
