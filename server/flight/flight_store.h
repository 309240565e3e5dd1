// What a flight asks of the store. `FlightTable` calls it on its strand; it returns at once, and never calls
// back in.
#pragma once

#include <memory>

#include "server/build/artifact.h"
#include "server/flight/flight_request.h"

namespace kiln {

// What is kept. Each Look ends with the table's input `Looked`, each Write with `Stored`.
class FlightStore {
 public:
  virtual ~FlightStore() = default;
  virtual void Look(FlightId flight, const FlightRequest& request) = 0;
  virtual void Write(FlightId flight, std::shared_ptr<const Artifact> artifact) = 0;
};

}  // namespace kiln
