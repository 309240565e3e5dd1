#include "server/flight/flight_uploads.h"

#include <optional>
#include <utility>
#include <vector>

#include "server/flight/flight_places.h"

namespace kiln {

void FlightUploads::Await(Flight& flight) {
  if (absl::Status room = entrance_.TakePlace(flight); !room.ok()) {
    subscriptions_.EndAll(flight, room);
    return;
  }
  flight.state = FlightState::kUploading;
  if (absl::Status asked = Ask(flight); !asked.ok()) {
    subscriptions_.EndAll(flight, asked);
    return;
  }
  // The leader is told of its place when there is a graph to queue.
  for (const CallId waiter : flight.waiters) {
    if (waiter != flight.leader) here_.calls.Announce(flight, waiter);
  }
}

// An error where nobody's upload is on its way then.
absl::Status FlightUploads::Ask(Flight& flight) {
  const bool pending = here_.calls.HasAsked(flight);
  bool full = false;
  for (const CallId waiter : flight.waiters) {
    WaitingCall& waiting = here_.calls.At(waiter);
    if (!waiting.uploads || waiting.asked) continue;
    // What is slow takes nobody's place, but where there is nothing else to wait for.
    bool room = here_.places.HasRoomToAsk(flight, waiting.call);
    while (!room && !pending &&
           entrance_.Displace(flight.request->caller.tenant, waiting.call.upload_bytes,
                              FlightPlaces::Short::kBytes)) {
      room = here_.places.HasRoomToAsk(flight, waiting.call);
    }
    full = full || !room;
    if (!room) continue;
    waiting.asked = true;
    here_.places.ChargeAsked(flight, flight.place.asked_bytes + waiting.call.upload_bytes);
    flight.leader = waiter;
    here_.SetDue(flight, here_.clock->Now() + here_.options.upload_patience);
    waiting.call.subscriber->Graph(Subscriber::Upload::kNow);
    return absl::OkStatus();
  }
  if (!pending)
    return full ? entrance_.RefuseForRoom(flight)
                : absl::NotFoundError("the job ended before it had its graph");
  here_.SetDue(flight,
               full ? std::optional(here_.clock->Now() + here_.options.upload_patience) : std::nullopt);
  return absl::OkStatus();
}

void FlightUploads::AskNext(Flight& flight) {
  if (absl::Status asked = Ask(flight); !asked.ok()) subscriptions_.EndAll(flight, asked);
}

// Somebody else's upload is on its way, or is asked for now, or can never come.
void FlightUploads::CallerLeft(Flight& flight) {
  if (flight.waiters.empty()) {
    subscriptions_.EndOfAll(flight);
  } else if (!here_.calls.HasAsked(flight)) {
    AskNext(flight);
  }
}

bool FlightUploads::Unpacks(CallId id) {
  const WaitingCall* const waiting = here_.calls.Find(id);
  if (waiting == nullptr || !waiting->asked) return false;
  const Flight& flight = *here_.flights.Find(waiting->flight);
  if (flight.state != FlightState::kUploading) return false;
  here_.places.Unpack(id, flight.request->caller.tenant, waiting->call.upload_bytes);
  return true;
}

void FlightUploads::Uploaded(CallId id, absl::StatusOr<GraphPtr> graph) {
  here_.places.EndUnpacking(id);
  if (here_.calls.Find(id) == nullptr) return;
  WaitingCall& waiting = here_.calls.At(id);
  Flight& flight = *here_.flights.Find(waiting.flight);
  if (flight.state != FlightState::kUploading || !waiting.asked) return;
  if (!graph.ok()) {
    subscriptions_.EndCall(id, graph.status());
    CallerLeft(flight);
    return;
  }
  here_.SetDue(flight, std::nullopt);
  here_.places.ChargeAsked(flight, 0);
  for (const CallId waiter : flight.waiters) here_.places.ChargeUnpacking(waiter);
  if (absl::Status charged = entrance_.ChargeGraph(flight, (*graph)->size()); !charged.ok()) {
    subscriptions_.EndAll(flight, charged);
    return;
  }
  flight.request->graph = *std::move(graph);
  waiting.keeps_graph = true;
  if (waiting.looked || flight.request->debug) {
    turns_.Enqueue(flight, id);
  } else {
    // It joined after the look; the store may have what fits it.
    subscriptions_.GoOnInNext(flight, std::vector<CallId>(flight.waiters.begin(), flight.waiters.end()));
  }
}

}  // namespace kiln
