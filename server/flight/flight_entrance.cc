#include "server/flight/flight_entrance.h"

#include <optional>
#include <utility>

#include "compiler/support/status_macros.h"
#include "server/flight/refusals.h"

namespace kiln {

absl::Status FlightEntrance::CheckOpen() const {
  if (draining_) return RefusalOfStopping();
  return drained_ ? RefusalOfDrained() : absl::OkStatus();
}

absl::Status FlightEntrance::TakePlace(Flight& flight) {
  KILN_RETURN_IF_ERROR(CheckOpen());
  const FlightRequest& request = *flight.request;
  if (!flight.look.elsewhere) {
    KILN_RETURN_IF_ERROR(here_.admission.CheckQuota(flight));
    KILN_RETURN_IF_ERROR(here_.admission.CheckNew(flight, here_.calls.LatestDeadline(flight)));
  }
  while (const std::optional<FlightPlaces::Short> what = here_.places.ShortOf(request.bytes.all)) {
    if (!Displace(request.caller.tenant, request.bytes.all, *what)) return RefuseForRoom(flight);
  }
  here_.callers.Take(request.caller.tenant, std::exchange(flight.caller_bytes, 0));
  here_.places.Take(flight);
  return absl::OkStatus();
}

absl::Status FlightEntrance::ChargeGraph(Flight& flight, uint64_t bytes) {
  if (bytes <= flight.request->bytes.graph) return absl::OkStatus();
  here_.places.Release(flight);
  flight.request->bytes.all += bytes - flight.request->bytes.graph;
  flight.request->bytes.graph = bytes;
  return TakePlace(flight);
}

bool FlightEntrance::Displace(const std::string& tenant, uint64_t bytes, FlightPlaces::Short what) {
  const std::optional<FlightId> latest = here_.places.Displaceable(tenant, bytes, what, [this](FlightId id) {
    const Flight* const flight = here_.flights.Find(id);
    const FlightState state = flight == nullptr ? FlightState::kNone : flight->state;
    return state == FlightState::kQueued || state == FlightState::kUploading ||
           state == FlightState::kWaiting;
  });
  if (!latest.has_value()) return false;
  Flight& flight = *here_.flights.Find(*latest);
  subscriptions_.EndAll(flight, RefuseForRoom(flight));
  return true;
}

absl::Status FlightEntrance::RefuseForRoom(const Flight& flight) {
  return here_.admission.RefuseForRoom(flight, here_.places.places(), here_.begun);
}

}  // namespace kiln
