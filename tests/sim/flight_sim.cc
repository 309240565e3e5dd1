#include "tests/sim/flight_sim.h"

#include "tests/sim/flight_world.h"

namespace kiln::sim {

const char* InputName(Input input) {
  static constexpr const char* kNames[] = {"compile",       "debug",    "attach", "unpacks",    "uploaded",
                                           "upload-failed", "cancel",   "lost",   "looked",     "progress",
                                           "ended",         "advanced", "asked",  "compiled",   "refused",
                                           "chore",         "withdraw", "stored", "not-stored", "tick"};
  return kNames[static_cast<int>(input)];
}

const char* FaultName(Fault fault) {
  static constexpr const char* kNames[] = {
      "none",           "second flight", "two answers",  "lost end",          "leaked slot", "false durable",
      "deaf to cancel", "late timer",    "stale store",  "another's variant", "one tenant",  "held worker",
      "no deadline",    "wall clock",    "untold plans", "not urgent"};
  return kNames[static_cast<int>(fault)];
}

Outcome Simulate(uint64_t seed, Fault fault, Coverage* coverage) {
  return World(seed, fault, coverage).Run();
}

}  // namespace kiln::sim
