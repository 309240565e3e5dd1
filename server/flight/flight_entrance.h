// Whether a flight gets a place, and which flight loses its own for it.
//
// Places: at most workers + queue_max flights, of those that wait for an upload, are compiled or stored, with
// graphs, headers and uploads on their way, to the end of their unpacking, of at most graphs_bytes_max. What
// workers have made of a graph counts as well: while that comes to more, what has begun is finished before
// anything else begins. One more is refused with RESOURCE_EXHAUSTED before it uploads, with a retry delay
// (`PushbackOf`) behind those that its tenant's callers were given before; where another tenant holds more
// than its own, of places or of bytes, that one's latest flights that hold nothing else are refused in its
// stead. Refused as well are flights of a tenant that has used its hourly quota, and flights that would miss
// their deadline (flight_admission.h).
//
// A daemon that is drained by hand refuses in the same place with UNAVAILABLE, until that is undone; so does
// one that stops.
//
// Ownership: all outlive it. Threads: one at a time (the table's strand). Limits: FlightPlaces'.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/flight/flight.h"
#include "server/flight/flight_places.h"
#include "server/flight/flight_subscriptions.h"
#include "server/flight/in_flight.h"

namespace kiln {

class FlightEntrance {
 public:
  FlightEntrance(InFlight* here, FlightSubscriptions* subscriptions)
      : here_(*here), subscriptions_(*subscriptions) {}

  void SetDrained(bool drained) { drained_ = drained; }
  bool drained() const { return drained_; }
  void Close() { draining_ = true; }  // the daemon stops
  // Whether anything new is begun at all.
  absl::Status CheckOpen() const;

  absl::Status TakePlace(Flight& flight);
  // The place was taken for the size that the first caller gave, and another's upload may be larger.
  absl::Status ChargeGraph(Flight& flight, uint64_t bytes);
  // Takes a place from the tenant that holds more than a newcomer would. False: there is none.
  bool Displace(const std::string& tenant, uint64_t bytes, FlightPlaces::Short what);
  absl::Status RefuseForRoom(const Flight& flight);

 private:
  InFlight& here_;
  FlightSubscriptions& subscriptions_;
  bool draining_ = false;
  bool drained_ = false;
};

}  // namespace kiln
