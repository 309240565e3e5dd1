// What flights do with the shared tier, as a state machine: look the key up there; where it is not there,
// claim it, and once it is claimed look again, for whoever had it may have been done by then.
//
//   looking → there: known here now     → not there: claiming → ours: checking → there | compile it here
//           → it does not say: compile it here                → it does not say: compile it here
//
// Whatever the tier does, the flight goes on, with what is known without it. All of its requests there share
// one time limit, which starts again where another daemon had the claim or something was fetched. A claim is
// released with the write of what was made, or with its flight.
//
// Threads: one at a time (the table's strand). An input about what is gone is ignored. `Outside` returns at
// once; `looked` may call LookFurther and Over.
#pragma once

#include <functional>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache/shared/claim_table.h"
#include "compiler/support/monotonic_time.h"
#include "server/flight/flight_claims.h"
#include "server/flight/flight_table.h"
#include "server/flight/known_key.h"
#include "server/flight/tier_keys.h"
#include "server/schedule/clock.h"

namespace kiln {

class TierFlights final : public FlightClaims {
 public:
  struct Outside {
    // Looks into the tier, and takes what it has into the store: ends with `Missed`, by the deadline, or with
    // `Taken`.
    std::function<void(FlightId, const TierKeys::Name&, MonotonicTime deadline)> look;
    // Ends with `Claimed`, by the deadline unless it is known to be another's by then; or with nothing once
    // it is released.
    std::function<void(FlightId, const TierKeys::Name&, MonotonicTime deadline)> claim;
    // When what was written before is in the tier, or never will be. Also of what was never claimed.
    std::function<void(FlightId)> release;
    std::function<void(FlightId, KnownKeyPtr, FlightTable::Where)> looked;  // the table's input
  };
  // The clock outlives it.
  TierFlights(Outside outside, const Clock* clock, absl::Duration limit)
      : outside_(std::move(outside)), clock_(clock), limit_(limit) {}

  // FlightClaims.
  void LookFurther(FlightId id, const FlightRequest& request, const v1::Hints& hints,
                   KnownKeyPtr known) override;
  void Over(FlightId id) override;

  // NOT_FOUND: it has no more than the store, which may have more by now than when the flight began: `known`,
  // or null. Else it does not say, or not soon enough to be asked for more.
  void Missed(FlightId id, const absl::Status& why, KnownKeyPtr known);
  // What is known now; `whole`: the store has taken what the tier has.
  void Taken(FlightId id, KnownKeyPtr known, bool whole);
  void Claimed(FlightId id, ClaimTable::Answer answer);
  // What was made is written from now on, and the claim ends with that.
  void Made(FlightId id);
  // Releases all claims; pending requests get no answer.
  void Close();

  enum class State { kNone, kLooking, kClaiming, kChecking, kGoingOn };
  State StateOf(FlightId id) const;

 private:
  struct Flight {
    State state = State::kLooking;
    TierKeys::Name key;
    KnownKeyPtr known;
    MonotonicTime deadline;
  };
  // Null: it has ended, or its answer came already.
  Flight* Find(FlightId id, bool waits_for_claim);
  void Look(FlightId id, Flight* flight, State state);
  void Claim(FlightId id, Flight* flight);
  void GoOn(FlightId id, Flight* flight, FlightTable::Where where);
  MonotonicTime Deadline() const { return clock_->Now() + absl::ToChronoNanoseconds(limit_); }

  const Outside outside_;
  const Clock* const clock_;
  const absl::Duration limit_;
  absl::flat_hash_map<FlightId, Flight> flights_;
};

const char* TierFlightStateName(TierFlights::State state);

}  // namespace kiln
