// One ForwardTable by itself, whose calls, reminders, waits, callers and fetches come back in any order that
// a seed draws: what a cluster's histories (cluster_sim.h) hardly ever come to, such as two turns of a flight
// that end at once. Threads: one. Time is simulated.
#pragma once

#include <cstdint>
#include <string>

#include "tests/sim/pairs.h"

namespace kiln::sim {

// A fault put between the table and its world, to see that the checks find it.
enum class ForwardFault {
  kNone,
  kLostCall,      // a call's end is never told
  kLostReminder,  // what was to remind does not
  kTwoEnds,       // the end of a flight is told twice
};
inline constexpr int kForwardFaults = 4;

// Runs one history to its end. `pairs` has the rows of ForwardInput and the columns of ForwardTable::State.
// Empty: all held.
std::string SimulateForwards(uint64_t seed, ForwardFault fault, Pairs* pairs);

}  // namespace kiln::sim
