// Places of flights, and the memory of what they hold: graphs, headers, uploads on their way to the end of
// their unpacking, and what workers have made of a graph.
//
// A place is for one request; what uploads take beyond its graph is charged beside it while they are on their
// way. An upload that is unpacked when its flight has stopped to charge it is charged by itself. The caller
// checks `places_max` and `bytes_max` by `ShortOf` first; what is in memory is charged in any case.
//
// Where room is short, the tenant that holds most loses some, if it holds more than a newcomer's would:
// `Displaceable` names its latest flight that holds nothing else.
//
// Ownership: of flights it changes `place`. Threads: one at a time (the table's
// strand). Limits: an entry a tenant that holds any, and an upload that is unpacked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "server/flight/flight.h"
#include "server/flight/flight_call.h"
#include "server/flight/flight_request.h"

namespace kiln {

class FlightPlaces {
 public:
  enum class Short { kPlaces, kBytes };

  FlightPlaces(size_t places_max, uint64_t bytes_max) : places_max_(places_max), bytes_max_(bytes_max) {}

  // What a flight of so many bytes lacks; nothing where there is room.
  std::optional<Short> ShortOf(uint64_t bytes) const;
  // Of the tenant that holds most, and more than `tenant` would with so many bytes or one place more, the
  // latest flight that `waits`; nothing where there is none.
  std::optional<FlightId> Displaceable(const std::string& tenant, uint64_t bytes, Short what,
                                       absl::FunctionRef<bool(FlightId)> waits) const;

  void Take(Flight& flight);
  void Release(Flight& flight);                     // nothing where it has none
  void ChargeHeld(Flight& flight, uint64_t bytes);  // of what workers have made; never less than before

  // ---- Uploads on their way to a flight with a place ----
  bool HasRoomToAsk(const Flight& flight, const FlightCall& call) const;
  void ChargeAsked(Flight& flight, uint64_t asked_bytes);  // of all that are asked
  void Unpack(CallId id, const std::string& tenant, uint64_t bytes);
  void ChargeUnpacking(CallId id);  // its flight does not any more, and it is there until it is unpacked
  void EndUnpacking(CallId id);

  size_t places() const { return places_; }
  uint64_t bytes() const { return bytes_; }
  bool overfull() const { return bytes_ > bytes_max_; }
  struct Placed {  // of one tenant
    absl::btree_set<FlightId> flights;
    uint64_t bytes = 0;
  };
  const absl::btree_map<std::string, Placed>& of_tenants() const { return placed_; }

 private:
  struct Unpacking {
    std::string tenant;
    uint64_t bytes = 0;
    bool charged = false;  // by itself: its flight does not any more
  };

  void TakeFrom(const std::string& tenant, uint64_t bytes);

  const size_t places_max_;
  const uint64_t bytes_max_;
  size_t places_ = 0;
  uint64_t bytes_ = 0;
  absl::btree_map<std::string, Placed> placed_;
  absl::flat_hash_map<CallId, Unpacking> unpacking_;
};

}  // namespace kiln
