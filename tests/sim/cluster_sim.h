// A cluster on one seeded scheduler: several daemons, each with its own FlightTable, TierFlights, ClaimTable,
// GangTable and decisions; one shared tier; hosts whose daemon passes on what it lacks; callers who come back
// elsewhere when their daemon is gone. Daemons are killed and come back with what their disk has, links are
// cut, replies are lost or late, the tier is flushed or falls back to a replica that lags, clocks differ by
// days and are set.
//
// Every answer is checked against what must hold (`Violation`); which input found which state is counted.
// Threads: one. Time is simulated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/sim/pairs.h"

namespace kiln::sim {

// A fault put between a machine and its world, to see that the checks find it.
enum class ClusterFault {
  kNone,
  kIgnoredClaim,      // a claim that another holds is taken for one's own
  kNotRenewed,        // claims are not renewed
  kNotReleased,       // claims are not released
  kForgottenClaim,    // one whose answer was lost is not thought of again
  kNoCompare,         // the tier renews and releases anybody's claim
  kOwnList,           // a gang is answered from what this daemon holds, whatever the tier has
  kLocalRefusal,      // the tier never has a gang's refusal
  kShortVerdict,      // verdicts end in the tier long before their time
  kNotPutBack,        // what the tier has lost stays lost
  kSeenEarly,         // what was put back is not looked at again
  kNotKept,           // a verdict is not renewed
  kOldGang,           // a job that starts anew keeps its gang's id
  kLostWaiter,        // who asked a tier that is cut is never told so
  kEarlyRelease,      // a claim ends before what was made is in the tier
  kSecondAnswer,      // a caller is answered twice
  kFalseDurable,      // the store's refusal is told as success
  kCancelsAll,        // who leaves a forwarding daemon takes all others along
  kForwardsTwice,     // a flight's graph is given to the upstream once more
  kForgottenForward,  // an upstream's answer never reaches the flight
  kOwnProgram,        // a gang is served what is here, whatever the upstream says
};
inline constexpr int kClusterFaults = 21;
const char* ClusterFaultName(ClusterFault fault);

struct ClusterCoverage {
  ClusterCoverage();
  Pairs flights, tier_flights, claims, verdicts, gangs, forwards;
  bool operator==(const ClusterCoverage& other) const = default;
};

struct ClusterOutcome {
  std::string violation;  // empty: all held
  size_t requests = 0;
  size_t events = 0;  // inputs of machines, and what is told
  size_t compiles = 0;
  size_t forwards = 0;
  size_t hits = 0;
  size_t from_tier = 0;  // keys taken from it
  size_t takeovers = 0;  // claims of the dead
  size_t kills = 0;
  size_t cuts = 0;
  size_t losses = 0;  // flushes and fail-overs
  size_t no_verdicts = 0;
  size_t put_back = 0;
  size_t met = 0;  // verdicts that were found to contradict
};

// Runs one history to its end.
ClusterOutcome SimulateCluster(uint64_t seed, ClusterFault fault, ClusterCoverage* coverage);

}  // namespace kiln::sim
