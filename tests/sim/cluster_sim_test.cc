// Thousands of seeded histories of a cluster, and the control: each kind of planted fault is found.
//   KILN_SEED=N   that history alone
#include "tests/sim/cluster_sim.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "tests/sim/forward_sim.h"

namespace kiln::sim {
namespace {

constexpr uint64_t kSeeds = 2'000;
constexpr uint64_t kSeedsFull = 100'000;
constexpr size_t kRequestsMin = 200;
constexpr size_t kEventsMin = 1'000;

uint64_t Seeds() { return std::getenv("KILN_FULL") != nullptr ? kSeedsFull : kSeeds; }

void Add(const ClusterOutcome& one, ClusterOutcome* all) {
  all->requests += one.requests;
  all->events += one.events;
  all->compiles += one.compiles;
  all->forwards += one.forwards;
  all->hits += one.hits;
  all->from_tier += one.from_tier;
  all->takeovers += one.takeovers;
  all->kills += one.kills;
  all->cuts += one.cuts;
  all->losses += one.losses;
  all->no_verdicts += one.no_verdicts;
  all->put_back += one.put_back;
  all->met += one.met;
}

TEST(ClusterSim, WhatMustHoldHoldsInEveryHistory) {
  ClusterCoverage coverage;
  ClusterOutcome all;
  uint64_t first = 1, last = Seeds();
  if (const char* seed = std::getenv("KILN_SEED"); seed != nullptr)
    first = last = std::strtoull(seed, nullptr, 10);
  for (uint64_t seed = first; seed <= last; ++seed) {
    const ClusterOutcome outcome = SimulateCluster(seed, ClusterFault::kNone, &coverage);
    ASSERT_EQ(outcome.violation, "") << "seed " << seed;
    ASSERT_GE(outcome.requests, kRequestsMin) << "seed " << seed;
    ASSERT_GE(outcome.events, kEventsMin) << "seed " << seed;
    Add(outcome, &all);
    ASSERT_EQ(SimulateForwards(seed, ForwardFault::kNone, &coverage.forwards), "") << "seed " << seed;
  }
  std::printf(
      "%llu seeds: %zu requests, %zu events, %zu compiles, %zu forwarded, %zu hits, %zu taken from the tier, "
      "%zu claims of the dead, %zu kills, %zu cuts, %zu losses of the tier, %zu verdicts put back, %zu met "
      "another, %zu told of none\n",
      static_cast<unsigned long long>(last - first + 1), all.requests, all.events, all.compiles, all.forwards,
      all.hits, all.from_tier, all.takeovers, all.kills, all.cuts, all.losses, all.put_back, all.met,
      all.no_verdicts);
  for (const Pairs* pairs : {&coverage.flights, &coverage.tier_flights, &coverage.claims, &coverage.verdicts,
                             &coverage.gangs, &coverage.forwards}) {
    std::printf("%s", pairs->Print().c_str());
    if (first != last) {
      EXPECT_EQ(pairs->Gap(), "");
    }
  }
}

TEST(ClusterSim, EveryPlantedFaultIsFound) {
  for (int kind = 1; kind < kClusterFaults; ++kind) {
    const ClusterFault fault = static_cast<ClusterFault>(kind);
    ClusterCoverage coverage;
    std::string found;
    uint64_t seed = 0;
    while (found.empty() && ++seed <= kSeeds) found = SimulateCluster(seed, fault, &coverage).violation;
    EXPECT_NE(found, "") << ClusterFaultName(fault) << " was not found in " << kSeeds << " seeds";
    std::printf("%-20s seed %-5llu %s\n", ClusterFaultName(fault), static_cast<unsigned long long>(seed),
                found.c_str());
  }
}

TEST(ClusterSim, EveryFaultPlantedBesideTheForwardTableIsFound) {
  for (int kind = 1; kind < kForwardFaults; ++kind) {
    ClusterCoverage coverage;
    std::string found;
    uint64_t seed = 0;
    while (found.empty() && ++seed <= kSeeds)
      found = SimulateForwards(seed, static_cast<ForwardFault>(kind), &coverage.forwards);
    EXPECT_NE(found, "") << "fault " << kind;
  }
}

TEST(ClusterSim, ASeedTellsTheSameHistoryTwice) {
  ClusterCoverage first, second;
  EXPECT_EQ(SimulateCluster(7, ClusterFault::kNone, &first).events,
            SimulateCluster(7, ClusterFault::kNone, &second).events);
  EXPECT_EQ(first, second);
}

}  // namespace
}  // namespace kiln::sim
