// The calls that wait for flights: what each has been told, and until when it waits.
//
// A call whose connection broke may come again: its flight goes on for it until a time, and nothing more is
// said to it.
//
// Ownership: of flights it changes `waiters`, and `leader` where that one leaves. Threads: one at a time (the
// table's strand). Limits: CallerBytes bounds the calls.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "server/flight/flight.h"
#include "server/flight/flight_call.h"
#include "server/flight/flight_event.h"
#include "server/flight/flight_request.h"
#include "server/flight/flight_timers.h"

namespace kiln {

struct WaitingCall {
  FlightCall call;
  FlightId flight = 0;
  bool uploads = true;       // false: attached, without a graph
  bool looked = false;       // the store has nothing for it, or had not when it was asked
  bool asked = false;        // to upload
  bool keeps_graph = false;  // has uploaded, or was told that it need not
  bool announced = false;
  bool served = false;  // has the program, and waits for the store
  bool lost = false;    // nobody is there; the flight goes on until `until`
  MonotonicTime until;  // of its timer: the call's deadline
};

class FlightCalls {
 public:
  // `timers` outlives it.
  explicit FlightCalls(FlightTimers* timers) : timers_(timers) {}

  // Of `flight`, but not among its waiters yet.
  void Add(const Flight& flight, CallId id, FlightCall call, bool uploads);
  // nullptr: it is gone. Until the next Add or Remove, as At.
  const WaitingCall* Find(CallId id) const;
  WaitingCall& At(CallId id) { return calls_.at(id); }
  const WaitingCall& At(CallId id) const { return calls_.at(id); }
  void Remove(Flight& flight, CallId id);

  // The connection broke, and it may come again until `until` or its deadline.
  void Lose(CallId id, MonotonicTime until);

  // That it waits, as which in the queue; once.
  void Announce(const Flight& flight, CallId id);
  // There is a graph: whoever has not uploaded his need not; once.
  void KeepGraph(CallId id);
  void Tell(const Flight& flight, const FlightEventPtr& event) const;  // all of it

  // ---- Of all that wait for a flight ----
  MonotonicTime LatestDeadline(const Flight& flight) const;
  bool HasAsked(const Flight& flight) const;     // for an upload, of one at least
  CallId FirstLost(const Flight& flight) const;  // 0: none

  const absl::flat_hash_map<CallId, WaitingCall>& all() const { return calls_; }

 private:
  FlightTimers* const timers_;
  absl::flat_hash_map<CallId, WaitingCall> calls_;
};

}  // namespace kiln
