#include "server/flight/tier_flights.h"

#include <utility>

namespace kiln {

const char* TierFlightStateName(TierFlights::State state) {
  switch (state) {
    case TierFlights::State::kNone: return "none";
    case TierFlights::State::kLooking: return "looking";
    case TierFlights::State::kClaiming: return "claiming";
    case TierFlights::State::kChecking: return "checking";
    case TierFlights::State::kGoingOn: return "going on";
  }
  return "?";
}

TierFlights::State TierFlights::StateOf(FlightId id) const {
  const auto found = flights_.find(id);
  return found == flights_.end() ? State::kNone : found->second.state;
}

TierFlights::Flight* TierFlights::Find(FlightId id, bool waits_for_claim) {
  const auto found = flights_.find(id);
  if (found == flights_.end()) return nullptr;
  const State state = found->second.state;
  const bool waits =
      waits_for_claim ? state == State::kClaiming : state == State::kLooking || state == State::kChecking;
  return waits ? &found->second : nullptr;
}

// ---- What is asked ---------------------------------------------------------------------------

void TierFlights::LookFurther(FlightId id, const FlightRequest& request, const v1::Hints&,
                              KnownKeyPtr known) {
  Flight& flight = flights_[id];
  flight.key = {request.ns, request.compile_key};
  flight.known = std::move(known);
  flight.deadline = Deadline();
  Look(id, &flight, State::kLooking);
}

void TierFlights::Look(FlightId id, Flight* flight, State state) {
  flight->state = state;
  outside_.look(id, flight->key, flight->deadline);
}

void TierFlights::Claim(FlightId id, Flight* flight) {
  flight->state = State::kClaiming;
  outside_.claim(id, flight->key, flight->deadline);
}

// Last: the flight may be gone afterwards.
void TierFlights::GoOn(FlightId id, Flight* flight, FlightTable::Where where) {
  flight->state = State::kGoingOn;
  outside_.looked(id, std::move(flight->known), where);
}

// ---- What comes back -------------------------------------------------------------------------

void TierFlights::Missed(FlightId id, const absl::Status& why, KnownKeyPtr known) {
  Flight* const flight = Find(id, /*waits_for_claim=*/false);
  if (flight == nullptr) return;
  if (known != nullptr) flight->known = std::move(known);
  if (flight->state == State::kLooking && absl::IsNotFound(why)) {
    Claim(id, flight);
  } else {
    GoOn(id, flight, FlightTable::Where::kEverywhere);
  }
}

void TierFlights::Taken(FlightId id, KnownKeyPtr known, bool whole) {
  Flight* const flight = Find(id, /*waits_for_claim=*/false);
  if (flight == nullptr) return;
  flight->known = std::move(known);
  if (whole) {
    // Where it is of no use to the flight's callers, they look further again.
    GoOn(id, flight, FlightTable::Where::kHere);
  } else if (flight->state == State::kChecking) {
    GoOn(id, flight, FlightTable::Where::kEverywhere);
  } else {
    flight->deadline = Deadline();
    Claim(id, flight);
  }
}

void TierFlights::Claimed(FlightId id, ClaimTable::Answer answer) {
  Flight* const flight = Find(id, /*waits_for_claim=*/true);
  if (flight == nullptr) return;
  if (answer == ClaimTable::Answer::kOurs) {
    // So late it was another's before.
    if (clock_->Now() >= flight->deadline) flight->deadline = Deadline();
    Look(id, flight, State::kChecking);
  } else {
    GoOn(id, flight, FlightTable::Where::kEverywhere);
  }
}

// ---- Ends ------------------------------------------------------------------------------------

void TierFlights::Over(FlightId id) {
  if (flights_.erase(id) > 0) outside_.release(id);
}

void TierFlights::Made(FlightId id) { flights_.erase(id); }

void TierFlights::Close() {
  for (const auto& [id, flight] : std::exchange(flights_, {})) outside_.release(id);
}

}  // namespace kiln
