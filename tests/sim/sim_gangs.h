// What one daemon of a simulated cluster says to gangs: the real GangTable, GangDecision and GangPutBack, and
// between them and the tier what Gangs does with threads. Threads: one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/flight/gang_decider.h"
#include "server/flight/gang_decision.h"
#include "server/flight/gang_keeper.h"
#include "server/flight/gang_put_back.h"
#include "server/flight/gang_table.h"
#include "tests/sim/cluster.h"
#include "tests/sim/tier_link.h"

namespace kiln::sim {

class SimGangs final : public GangDecider {
 public:
  // What Gangs asks of its daemon.
  struct Outside {
    std::function<void(const std::string& key, const std::string& variant_id)> renew;
    // Brings into the store what the tier has of a key; then calls back.
    std::function<void(const std::string& key, std::function<void()>)> bring;
  };
  // All outlive it.
  SimGangs(Cluster* cluster, Host* host, TierLink* link, Outside outside);

  void Decide(const GangName& name, const v1::Hints& hints, const GangProposal& proposal,
              std::function<void(GangAnswer)> answer) override;
  void Variant(const GangName& name, const std::string& variant_id, VariantAnswer answer) override;

  v1::GangVerdict Held(const GangName& name) { return table_.Held(name); }
  // Until when it holds those that nobody has contradicted, by their names in the tier.
  std::map<std::string, MonotonicTime> Listed();

 private:
  struct Decision;
  using DecisionPtr = std::shared_ptr<Decision>;
  struct Awaited;
  struct Kept;
  void Step(const DecisionPtr& decision);
  void Finish(const DecisionPtr& decision);
  void Await(const std::shared_ptr<Awaited>& awaited, bool brought);
  void Keep();
  void KeepAll();
  void PutBack(const std::shared_ptr<Kept>& kept);
  void AskToPutBack(const std::shared_ptr<Kept>& kept, const GangDecision::Question& question);
  std::string AskTier(const GangName& name, const GangDecision::Question& question, absl::Duration life,
                      bool puts_back, TierLink::Fate fate);
  void Count(size_t question, const GangName& name, TierLink::Fate fate);

  Cluster* const cluster_;
  Host* const host_;
  TierLink* const link_;
  const Outside outside_;
  GangTable table_;
  GangKeeper keeper_{&table_};
};

std::string TierNameOf(const GangName& name);
v1::GangVerdict VerdictIn(const std::string& sealed);

}  // namespace kiln::sim
