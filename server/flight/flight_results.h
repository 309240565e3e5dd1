// Delivers what a flight has made: callers whose sizes it fits are answered at once, and told when the store
// has taken it; the others wait for the flight's end and go on in the key's next flight.
//
// `durable` is said of what the store has taken.
//
// Ownership: all outlive it. Threads: one at a time (the table's strand). Limits: none of its own.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "server/build/artifact.h"
#include "server/flight/flight.h"
#include "server/flight/flight_call.h"
#include "server/flight/flight_subscriptions.h"
#include "server/flight/in_flight.h"

namespace kiln {

class FlightResults {
 public:
  FlightResults(InFlight* here, FlightSubscriptions* subscriptions)
      : here_(*here), subscriptions_(*subscriptions) {}

  void Made(Flight& flight, std::shared_ptr<const Artifact> artifact, uint32_t workers_lost);
  // Of a flight that has made something.
  void Answer(Flight& flight, CallId id);
  void Stored(Flight& flight, const absl::Status& status);

 private:
  InFlight& here_;
  FlightSubscriptions& subscriptions_;
};

}  // namespace kiln
