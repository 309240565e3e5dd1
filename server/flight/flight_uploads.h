// The upload of a flight: one caller's serves all. Where it leaves or is slow (upload_patience) another is
// asked, who joins later too, as long as there is room for what all that were asked may send.
//
// All whose upload came from one that joined after the look go on in the key's next flight, with the graph:
// the store may have what fits them.
//
// Ownership: all outlive it. Threads: one at a time (the table's strand). Limits: FlightPlaces bounds what
// uploads take.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/flight/flight.h"
#include "server/flight/flight_call.h"
#include "server/flight/flight_entrance.h"
#include "server/flight/flight_subscriptions.h"
#include "server/flight/flight_turns.h"
#include "server/flight/in_flight.h"

namespace kiln {

class FlightUploads {
 public:
  FlightUploads(InFlight* here, FlightSubscriptions* subscriptions, FlightEntrance* entrance,
                FlightTurns* turns)
      : here_(*here), subscriptions_(*subscriptions), entrance_(*entrance), turns_(*turns) {}

  // Of a flight that begins without a graph.
  void Await(Flight& flight);
  // Asks the next caller that has a graph and whose upload there is room for. The flight ends where nobody's
  // is on its way then.
  void AskNext(Flight& flight);
  // A caller is gone from a flight that waits for its upload.
  void CallerLeft(Flight& flight);
  // All of it is here. False: nobody wants it.
  bool Unpacks(CallId id);
  void Uploaded(CallId id, absl::StatusOr<GraphPtr> graph);

 private:
  absl::Status Ask(Flight& flight);

  InFlight& here_;
  FlightSubscriptions& subscriptions_;
  FlightEntrance& entrance_;
  FlightTurns& turns_;
};

}  // namespace kiln
