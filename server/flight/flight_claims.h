// What a flight asks of the daemons beside this one: whether they have its key, and who of them compiles it.
// A daemon by itself has none. `FlightTable` calls it on its strand.
#pragma once

#include <cstdint>
#include <string>

#include "server/flight/known_key.h"

namespace kiln {

class FlightClaims {
 public:
  virtual ~FlightClaims() = default;
  // The daemon's own store, which knows `known`, has too little. Ends with one input `Looked`: kHere, the
  // store has more now; or kEverywhere, the others have no more, and it is this daemon that compiles the key,
  // or nobody can say. Until `Over`.
  virtual void LookFurther(uint64_t flight, const std::string& ns, const std::string& compile_key,
                           KnownKeyPtr known) = 0;
  // Such a flight has ended.
  virtual void Over(uint64_t flight) = 0;
};

}  // namespace kiln
