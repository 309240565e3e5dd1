#include "server/flight/flight.h"

namespace kiln {

const char* FlightStateName(FlightState state) {
  switch (state) {
    case FlightState::kNone: return "none";
    case FlightState::kLooking: return "looking";
    case FlightState::kUploading: return "uploading";
    case FlightState::kQueued: return "queued";
    case FlightState::kRunning: return "running";
    case FlightState::kWaiting: return "waiting";
    case FlightState::kStoring: return "storing";
    case FlightState::kDying: return "dying";
  }
  return "?";
}

Caller CallerOf(const Flight& flight) {
  Caller caller = flight.request->caller;
  caller.work_class = flight.work_class;
  return caller;
}

}  // namespace kiln
