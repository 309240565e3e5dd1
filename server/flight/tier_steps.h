// Takes the steps that tier_flights asks for: looks a key up in the shared tier, brings what is there into
// the store, claims it.
//
// Ownership: all outlive it. Threads: all on the table's strand; the steps block, on threads of their own
// (`looks`, `transfers`), or are the tier's. Limits: the table's.
#pragma once

#include <memory>

#include "cache/shared/shared_tier.h"
#include "compiler/support/monotonic_time.h"
#include "server/flight/flight_request.h"
#include "server/flight/flight_table.h"
#include "server/flight/flight_threads.h"
#include "server/flight/stored_keys.h"
#include "server/flight/tier_flights.h"
#include "server/flight/tier_keys.h"
#include "server/schedule/clock.h"

namespace kiln {

class TierSteps {
 public:
  struct Parts {
    const Clock* clock;
    TierKeys* tier;
    StoredKeys* keys;
    FlightTable* table;
    FlightThreads* threads;
  };
  explicit TierSteps(const Parts& parts)
      : parts_(parts), flights_(StepsOutside(), parts.clock, parts.tier->lookup_limit()) {}

  TierFlights& flights() { return flights_; }
  // Nothing more is asked of the tier.
  void Stop() { stopped_ = true; }

 private:
  TierFlights::Outside StepsOutside();
  void Look(FlightId flight, const TierKeys::Name& key, MonotonicTime deadline);
  void Take(FlightId flight, const TierKeys::Name& key, std::shared_ptr<SharedTier::Found> found);
  void Claim(FlightId flight, const TierKeys::Name& key, MonotonicTime deadline);

  const Parts parts_;
  TierFlights flights_;
  bool stopped_ = false;
};

}  // namespace kiln
