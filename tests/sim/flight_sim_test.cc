// Thousands of seeded histories of the FlightTable, and the control: each kind of planted fault is found.
//   KILN_SEED=N   that history alone
#include "tests/sim/flight_sim.h"

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace kiln::sim {
namespace {

using State = FlightTable::State;

constexpr uint64_t kSeeds = 2'000;
constexpr uint64_t kSeedsFull = 100'000;
constexpr size_t kRequestsMin = 200;
constexpr size_t kEventsMin = 1'000;
constexpr size_t kWallJumpsMin = 1'000;  // of all seeds

uint64_t Seeds() { return std::getenv("KILN_FULL") != nullptr ? kSeedsFull : kSeeds; }

// The states in which an input can come at all; kNone is what is gone.
bool CanMeet(Input input, State state) {
  const auto is = [state](std::initializer_list<State> states) {
    for (const State one : states) {
      if (one == state) return true;
    }
    return false;
  };
  switch (input) {
    case Input::kCompile:
    case Input::kDebug:
    case Input::kAttach:
    case Input::kCancel:
    case Input::kLost:
    // Late ones too: another's upload was faster, or the caller has gone.
    case Input::kUnpacks:
    case Input::kUploaded:
    case Input::kUploadFailed:
    case Input::kTick: return state != State::kDying;
    case Input::kLooked: return is({State::kLooking, State::kNone});
    case Input::kProgress: return is({State::kRunning, State::kWaiting, State::kDying});
    case Input::kEnded: return is({State::kRunning, State::kDying, State::kNone});  // a chore is of no flight
    case Input::kAdvanced: return is({State::kRunning, State::kDying, State::kStoring, State::kNone});
    case Input::kAsked:
    case Input::kCompiled:
    case Input::kRefused: return is({State::kRunning, State::kDying});
    case Input::kChore:
    case Input::kWithdraw: return is({State::kNone});
    case Input::kStored:
    case Input::kNotStored: return is({State::kStoring});
  }
  return false;
}

void Print(const Coverage& coverage) {
  std::printf("%-14s", "");
  for (int state = 0; state < kStates; ++state) {
    std::printf("%11s", FlightStateName(static_cast<State>(state)));
  }
  std::printf("\n");
  for (int input = 0; input < kInputs; ++input) {
    std::printf("%-14s", InputName(static_cast<Input>(input)));
    for (int state = 0; state < kStates; ++state) {
      const uint64_t count = coverage[static_cast<size_t>(input)][static_cast<size_t>(state)];
      const bool can = CanMeet(static_cast<Input>(input), static_cast<State>(state));
      std::printf("%11s", can || count > 0 ? std::to_string(count).c_str() : "-");
    }
    std::printf("\n");
  }
}

TEST(FlightSim, WhatMustHoldHoldsInEveryHistory) {
  Coverage coverage{};
  uint64_t first = 1, last = Seeds();
  if (const char* seed = std::getenv("KILN_SEED"); seed != nullptr)
    first = last = std::strtoull(seed, nullptr, 10);
  size_t requests = 0, events = 0, compiles = 0, hits = 0, refused_early = 0, wall_jumps = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    const Outcome outcome = Simulate(seed, Fault::kNone, &coverage);
    ASSERT_EQ(outcome.violation, "") << "seed " << seed;
    ASSERT_GE(outcome.requests, kRequestsMin) << "seed " << seed;
    ASSERT_GE(outcome.events, kEventsMin) << "seed " << seed;
    requests += outcome.requests;
    events += outcome.events;
    compiles += outcome.compiles;
    hits += outcome.hits;
    refused_early += outcome.refused_early;
    wall_jumps += outcome.wall_jumps;
  }
  std::printf(
      "%llu seeds: %zu requests, %zu events, %zu compiles, %zu answered by the store, %zu refused early\n",
      static_cast<unsigned long long>(last - first + 1), requests, events, compiles, hits, refused_early);
  Print(coverage);
  if (first == last) return;
  EXPECT_GT(refused_early, 0u);
  EXPECT_GE(wall_jumps, kWallJumpsMin);
  for (int input = 0; input < kInputs; ++input) {
    for (int state = 0; state < kStates; ++state) {
      const bool met = coverage[static_cast<size_t>(input)][static_cast<size_t>(state)] > 0;
      EXPECT_EQ(met, CanMeet(static_cast<Input>(input), static_cast<State>(state)))
          << InputName(static_cast<Input>(input)) << " × " << FlightStateName(static_cast<State>(state));
    }
  }
}

TEST(FlightSim, EveryPlantedFaultIsFound) {
  for (int kind = 1; kind < kFaults; ++kind) {
    const Fault fault = static_cast<Fault>(kind);
    Coverage coverage{};
    std::string found;
    uint64_t seed = 0;
    while (found.empty() && ++seed <= kSeeds) found = Simulate(seed, fault, &coverage).violation;
    EXPECT_NE(found, "") << FaultName(fault) << " was not found in " << kSeeds << " seeds";
    std::printf("%-20s seed %-5llu %s\n", FaultName(fault), static_cast<unsigned long long>(seed),
                found.c_str());
  }
}

TEST(FlightSim, ASeedTellsTheSameHistoryTwice) {
  Coverage first{}, second{};
  EXPECT_EQ(Simulate(7, Fault::kNone, &first).events, Simulate(7, Fault::kNone, &second).events);
  EXPECT_EQ(first, second);
}

}  // namespace
}  // namespace kiln::sim
