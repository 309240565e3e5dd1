#include "server/flight/flight_places.h"

#include <algorithm>
#include <utility>

namespace kiln {

std::optional<FlightPlaces::Short> FlightPlaces::ShortOf(uint64_t bytes) const {
  if (places_ >= places_max_) return Short::kPlaces;
  if (bytes_ + bytes > bytes_max_) return Short::kBytes;
  return std::nullopt;
}

std::optional<FlightId> FlightPlaces::Displaceable(const std::string& tenant, uint64_t bytes, Short what,
                                                   absl::FunctionRef<bool(FlightId)> waits) const {
  const bool places = what == Short::kPlaces;
  const auto held = [places](const Placed& placed) { return places ? placed.flights.size() : placed.bytes; };
  const auto own = placed_.find(tenant);
  uint64_t most = (own == placed_.end() ? 0 : held(own->second)) + (places ? 1 : bytes);
  std::optional<FlightId> latest;
  for (const auto& [other, placed] : placed_) {
    if (held(placed) <= most) continue;
    const auto found = std::find_if(placed.flights.rbegin(), placed.flights.rend(), waits);
    if (found == placed.flights.rend()) continue;
    most = held(placed);
    latest = *found;
  }
  return latest;
}

void FlightPlaces::Take(Flight& flight) {
  const FlightRequest& request = *flight.request;
  flight.place.taken = true;
  ++places_;
  bytes_ += request.bytes.all;
  Placed& placed = placed_[request.caller.tenant];
  placed.flights.insert(flight.id);
  placed.bytes += request.bytes.all;
}

void FlightPlaces::Release(Flight& flight) {
  if (!flight.place.taken) return;
  flight.place.taken = false;
  --places_;
  const uint64_t bytes = flight.request->bytes.all + std::exchange(flight.place.held_bytes, 0) +
                         std::exchange(flight.place.upload_bytes, 0);
  flight.place.asked_bytes = 0;
  placed_.at(flight.request->caller.tenant).flights.erase(flight.id);
  TakeFrom(flight.request->caller.tenant, bytes);
}

void FlightPlaces::TakeFrom(const std::string& tenant, uint64_t bytes) {
  bytes_ -= bytes;
  const auto placed = placed_.find(tenant);
  placed->second.bytes -= bytes;
  if (placed->second.flights.empty() && placed->second.bytes == 0) placed_.erase(placed);
}

void FlightPlaces::ChargeHeld(Flight& flight, uint64_t bytes) {
  if (!flight.place.taken || bytes <= flight.place.held_bytes) return;
  const uint64_t more = bytes - std::exchange(flight.place.held_bytes, bytes);
  bytes_ += more;
  placed_.at(flight.request->caller.tenant).bytes += more;
}

bool FlightPlaces::HasRoomToAsk(const Flight& flight, const FlightCall& call) const {
  const uint64_t graph = flight.request->bytes.graph;
  const uint64_t asked = flight.place.asked_bytes + call.upload_bytes;
  const uint64_t beside = asked > graph ? asked - graph : 0;
  return beside <= flight.place.upload_bytes || bytes_ - flight.place.upload_bytes + beside <= bytes_max_;
}

// The place is for one graph: what uploads on their way take beyond it is charged beside it.
void FlightPlaces::ChargeAsked(Flight& flight, uint64_t asked_bytes) {
  flight.place.asked_bytes = asked_bytes;
  const uint64_t graph = flight.request->bytes.graph;
  const uint64_t beside = asked_bytes > graph ? asked_bytes - graph : 0;
  const uint64_t before = std::exchange(flight.place.upload_bytes, beside);
  bytes_ = bytes_ - before + beside;
  uint64_t& of_tenant = placed_.at(flight.request->caller.tenant).bytes;
  of_tenant = of_tenant - before + beside;
}

void FlightPlaces::Unpack(CallId id, const std::string& tenant, uint64_t bytes) {
  if (bytes > 0) unpacking_[id] = {tenant, bytes};
}

void FlightPlaces::ChargeUnpacking(CallId id) {
  const auto found = unpacking_.find(id);
  if (found == unpacking_.end() || std::exchange(found->second.charged, true)) return;
  bytes_ += found->second.bytes;
  placed_[found->second.tenant].bytes += found->second.bytes;
}

void FlightPlaces::EndUnpacking(CallId id) {
  const auto over = unpacking_.extract(id);
  if (over.empty() || !over.mapped().charged) return;
  TakeFrom(over.mapped().tenant, over.mapped().bytes);
}

}  // namespace kiln
