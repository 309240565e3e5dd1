// A whole FlightTable with its callers, workers, GPUs, store and clock on one seeded scheduler: what happens,
// when, and what fails is drawn from the seed, so a seed is a history that can be told again.
//
// Every input is checked against what must hold (`Violation`); what it found in which state is counted.
// Threads: one. Time is simulated.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "server/flight/flight_table.h"

namespace kiln::sim {

enum class Input {
  kCompile,
  kDebug,
  kAttach,
  kUnpacks,
  kUploaded,
  kUploadFailed,
  kCancel,
  kLost,
  kLooked,
  kProgress,
  kEnded,
  kAdvanced,
  kAsked,
  kCompiled,
  kRefused,
  kChore,
  kWithdraw,
  kStored,
  kNotStored,
  kTick,
};
inline constexpr int kInputs = 20;
inline constexpr int kStates = 8;
const char* InputName(Input input);

// How often an input met a state: that of the call's flight, of the key's, or of the flight that it is about.
using Coverage = std::array<std::array<uint64_t, kStates>, kInputs>;

// A fault put between the table and its world, to see that the checks find it.
enum class Fault {
  kNone,
  kSecondFlight,   // a key in flight is compiled once more
  kTwoAnswers,     // a caller is answered twice
  kLostEnd,        // a compile's end never reaches the table: its callers wait for the dead
  kLeakedSlot,     // likewise, where nobody waits any more
  kFalseDurable,   // the store's refusal is told as success
  kDeafToCancel,   // who left is told more
  kLateTimer,      // deadlines are noticed late
  kStaleStore,     // the store forgets what it was given
  kDrawsForOther,  // the answer is another caller's variant
  kOneTenant,      // all are one tenant's
  kHeldWorker,     // a flight that waits for a GPU keeps the worker of its plan
  kNoDeadline,     // a caller's deadline is not told
  kWallClock,      // limits are by the clock that somebody sets
  kUntold,         // the table is not told what plans hold
  kNotUrgent,      // what a leased GPU waits for waits its turn
};
inline constexpr int kFaults = 16;
const char* FaultName(Fault fault);

struct Outcome {
  std::string violation;  // empty: all held
  size_t requests = 0;
  size_t events = 0;  // inputs and outputs of the table
  size_t compiles = 0;
  size_t hits = 0;
  size_t wall_jumps = 0;
  size_t refused_early = 0;  // for a queue longer than the caller waits
};

// Runs one history to its end.
Outcome Simulate(uint64_t seed, Fault fault, Coverage* coverage);

}  // namespace kiln::sim
