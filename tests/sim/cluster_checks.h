// What must hold of a simulated cluster, whoever did what. Threads: one.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cache/shared/claim_table.h"
#include "server/flight/gang_table.h"
#include "tests/sim/cluster.h"
#include "tests/sim/sim_daemon.h"

namespace kiln::sim {

class ClusterChecks {
 public:
  explicit ClusterChecks(Cluster* cluster) : cluster_(cluster) {}

  // ---- Claims ----
  // Whoever it is, the tier has answered it.
  void ClaimAsked(const Host& host, const ClaimTable::Question& question, bool yes);
  // A flight needs its claim no more, if it has one, known or not; the tier has to have that soon.
  void Released(Host* host, FlightId flight);
  // It goes on without one.
  void GoesWithout(const Host& host, const FlightFacts& facts, bool patience_is_over);

  // ---- Compiles ----
  void Begins(Host* host, FlightId flight, const FlightRequest& request);
  void Ends(Host* host, FlightId flight, const std::shared_ptr<const Artifact>& made);  // null: none

  // ---- Gangs ----
  void Proposed(const GangName& name, const absl::Status& refusal);
  void VerdictAsked(const GangName& name) { names_.insert({name.compile_key + " " + name.gang, name}); }
  void ToldVariant(const SimQuestion& question, const std::string& variant_id);
  void ToldRefusal(const SimQuestion& question, const absl::Status& refusal);

  // The tier is about to lose what it has, or a part, and has lost it.
  void TierLost();
  void Killed(const Host& host);
  void Sweep();  // from time to time

 private:
  struct Holder {  // of a claim
    std::string token;
    size_t host = 0;
    uint64_t life = 0;
    FlightId flight = 0;
    MonotonicTime until;
  };
  struct Compile {
    Host* host = nullptr;
    uint64_t life = 0;
    FlightId flight = 0;
    v1::Hints hints;
  };
  struct Made {
    size_t host = 0;
    uint64_t life = 0;
    MonotonicTime ours_at, made_at;
    std::shared_ptr<const Artifact> artifact;
    bool sure = false;
  };
  // A verdict that the tier lost, of which daemons may hold more: they put it back, or meet what others have
  // founded meanwhile.
  struct Loss {
    MonotonicTime at;
    std::map<std::pair<size_t, uint64_t>, MonotonicTime> to_see;  // daemons, and since when nothing hindered
    MonotonicTime until = MonotonicTime::max();                   // all have seen it
  };
  struct Telling {
    std::string what;  // a variant's id; empty: a refusal
    MonotonicTime at;
  };
  struct Told {
    std::map<int, std::vector<Telling>> by_size;  // variants
    std::vector<Telling> refusals, variants;
    MonotonicTime last;
  };
  MonotonicTime Calm(const Host& host) const;
  bool IsSure(const Host& host, const FlightFacts& facts) const;
  const FlightFacts* FactsOf(const Host& host, uint64_t life, FlightId flight) const;
  void Lapse(const std::string& name);
  Told& ToldOf(const SimQuestion& question);
  bool MayDiffer(const std::string& name, const Telling& before) const;
  using Listed = std::vector<std::map<std::string, MonotonicTime>>;  // what each host's daemon holds
  void SweepLosses(const Listed& listed);
  bool HasSeen(const std::string& name, size_t number, uint64_t life, MonotonicTime since,
               const Listed& listed);
  void SweepClaims();
  void SweepKept();
  void SweepLives(const Listed& listed);

  Cluster* const cluster_;
  std::map<std::string, Holder> holders_;
  std::map<std::string, MonotonicTime> free_since_;  // claims' names that are awaited
  std::map<std::string, std::vector<Compile>> running_;
  std::map<std::string, std::vector<Made>> made_;
  std::map<std::string, GangName> names_;
  std::map<std::string, Told> told_;
  std::map<std::string, MonotonicTime> proposed_;  // refusals, by what they say of which gang
  std::map<std::string, std::vector<Loss>> losses_;
};

}  // namespace kiln::sim
