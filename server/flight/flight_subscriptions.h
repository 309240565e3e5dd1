// Who waits for a flight, from the first caller that it begins with to the end of the last: callers are
// subscribers of their flight, and a flight without any ends.
//
// A flight that everybody left, or that has failed, releases its place at once while it waits, and when its
// tasks have ended while it runs (state dying): nobody joins it meanwhile, and what waits of it never runs.
// One that has its graph goes on for lost_patience for each caller whose connection broke: he comes again,
// and attaches himself to it. Who was not served by what it made goes on in the key's next flight.
//
// A flight for want of a variant that is not outdated (known_key.h) ends with that one where it makes no
// other: nobody is refused what he would have been served before.
//
// What is kept of calls beside places has a limit of its own (caller_bytes.h), beyond which a call is refused
// with RESOURCE_EXHAUSTED before anything else.
//
// Ownership: `here` outlives it. A flight that has ended is gone: nobody looks at it after one of these.
// Threads: one at a time (the table's strand). Limits: CallerBytes'.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/flight/flight.h"
#include "server/flight/flight_call.h"
#include "server/flight/in_flight.h"
#include "server/flight/known_key.h"

namespace kiln {

class FlightSubscriptions {
 public:
  explicit FlightSubscriptions(InFlight* here) : here_(*here) {}

  // Beside places: what is kept of a call while it is looked up and waits.
  absl::Status CheckRoom(const std::string& tenant, uint64_t bytes) const;
  Flight& NewFlight(FlightRequest request, std::string slot);
  void Subscribe(Flight& flight, CallId id, FlightCall call, bool uploads);
  // The flight that it waited for; nullptr: none.
  Flight* Unsubscribe(CallId id);
  // Whether the flight of a call whose connection broke goes on for it.
  bool AwaitReturn(CallId id);

  void EndCall(CallId id, const absl::Status& status);
  // Those whom the store has something for, and ends their calls. What it has is said now and never later:
  // it may be evicted at any time.
  void AnswerFromKnown(Flight& flight, const KnownKey& known, Outdated outdated = Outdated::kSkip);

  // ---- Ends of a flight ----
  void EndAll(Flight& flight, const absl::Status& status);
  // The compile's own verdict, for everybody.
  void EndFailed(Flight& flight, const absl::Status& status);
  // Nobody waits for it. What it has at work keeps its place until that has ended.
  void EndOfAll(Flight& flight);
  // Who was not served goes on in the key's next flight, with the same graph, and is looked up there.
  void GoOnInNext(Flight& flight, const std::vector<CallId>& unserved);
  void Erase(Flight& flight);

 private:
  void AddWaiter(Flight& flight, CallId id);
  void AnswerFromOutdated(Flight& flight);

  InFlight& here_;
};

}  // namespace kiln
