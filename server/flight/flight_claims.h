// What a flight asks of other daemons: whether they have its key, and who compiles it. Those that share a
// tier with this one claim the key, and one of them compiles it by itself; an upstream compiles it for this
// one. A daemon by itself has none. `FlightTable` calls it on its strand.
#pragma once

#include <cstdint>

#include "server/flight/known_key.h"

namespace kiln {

struct FlightRequest;

class FlightClaims {
 public:
  virtual ~FlightClaims() = default;
  // The daemon's own store, which knows `known`, has too little for a call of `hints`. Ends with one input
  // `Looked`: kHere, the store has more now; kEverywhere, the others have no more, and it is this daemon that
  // compiles the key, or nobody can say; kElsewhere, another one compiles it where it is given the graph,
  // which is the flight's first task (TaskQueue::Kind::kForward). Until `Over`.
  virtual void LookFurther(uint64_t flight, const FlightRequest& request, const v1::Hints& hints,
                           KnownKeyPtr known) = 0;
  // Such a flight has ended.
  virtual void Over(uint64_t flight) = 0;
};

}  // namespace kiln
