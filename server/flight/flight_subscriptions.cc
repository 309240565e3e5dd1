#include "server/flight/flight_subscriptions.h"

#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "server/flight/flight_event.h"
#include "server/flight/refusals.h"

namespace kiln {

absl::Status FlightSubscriptions::CheckRoom(const std::string& tenant, uint64_t bytes) const {
  if (here_.callers.Fits(tenant, bytes)) return absl::OkStatus();
  return here_.admission.RefuseCaller();
}

Flight& FlightSubscriptions::NewFlight(FlightRequest request, std::string slot) {
  Flight& flight =
      here_.flights.Add(std::move(request), std::move(slot), here_.options.new_job_id(), here_.clock->Now());
  // Of one whose graph has come with the flight before: that too, until it has a place.
  const FlightRequest& kept = *flight.request;
  flight.caller_bytes = kept.bytes.header + (kept.graph != nullptr ? kept.graph->size() : 0);
  here_.callers.Add(kept.caller.tenant, flight.caller_bytes);
  return flight;
}

void FlightSubscriptions::Subscribe(Flight& flight, CallId id, FlightCall call, bool uploads) {
  here_.callers.Add(flight.request->caller.tenant, call.bytes);
  here_.calls.Add(flight, id, std::move(call), uploads);
  AddWaiter(flight, id);
}

void FlightSubscriptions::AddWaiter(Flight& flight, CallId id) {
  flight.waiters.insert(id);
  if (here_.calls.At(id).call.work_class == Caller::Class::kBackground) return;
  flight.work_class = Caller::Class::kInteractive;
  here_.tasks.MakeInteractive(flight);
}

// A flight without its graph has nothing to come back to. Others that wait may leave before he is back.
bool FlightSubscriptions::AwaitReturn(CallId id) {
  const WaitingCall* const waiting = here_.calls.Find(id);
  if (waiting == nullptr || waiting->lost) return false;
  const Flight& flight = *here_.flights.Find(waiting->flight);
  const bool works = flight.state == FlightState::kQueued || flight.state == FlightState::kRunning ||
                     flight.state == FlightState::kWaiting;
  if (!works || flight.request->debug) return false;
  here_.calls.Lose(id, here_.clock->Now() + here_.options.lost_patience);
  return true;
}

Flight* FlightSubscriptions::Unsubscribe(CallId id) {
  const WaitingCall* const waiting = here_.calls.Find(id);
  if (waiting == nullptr) return nullptr;
  Flight* const flight = here_.flights.Find(waiting->flight);
  here_.callers.Take(flight->request->caller.tenant, waiting->call.bytes);
  if (waiting->asked && flight->place.asked_bytes > 0) {
    here_.places.ChargeAsked(*flight, flight->place.asked_bytes - waiting->call.upload_bytes);
    here_.places.ChargeUnpacking(id);
  }
  here_.calls.Remove(*flight, id);
  return flight;
}

void FlightSubscriptions::EndCall(CallId id, const absl::Status& status) {
  const std::shared_ptr<Subscriber> subscriber = here_.calls.At(id).call.subscriber;
  Unsubscribe(id);
  subscriber->End(status);
}

void FlightSubscriptions::AnswerFromKnown(Flight& flight, const KnownKey& known, Outdated outdated) {
  absl::flat_hash_map<const KnownVariant*, FlightEventPtr> events;
  const std::vector<CallId> waiters(flight.waiters.begin(), flight.waiters.end());
  for (const CallId waiter : waiters) {
    WaitingCall& waiting = here_.calls.At(waiter);
    waiting.looked = true;
    const KnownVariant* variant = ChooseVariant(known, waiting.call.hints, outdated);
    if (variant == nullptr) continue;
    FlightEventPtr& done = events[variant];
    if (done == nullptr) done = KnownEvent(*variant);
    waiting.call.subscriber->Event(done);
    if (!variant->durable) {
      waiting.call.subscriber->Event(StoredEvent(absl::UnavailableError("the program is in memory only")));
    }
    EndCall(waiter, absl::OkStatus());
  }
}

// It makes no other.
void FlightSubscriptions::AnswerFromOutdated(Flight& flight) {
  const KnownKeyPtr known = std::move(flight.look.known);
  if (known != nullptr) AnswerFromKnown(flight, *known, Outdated::kTake);
}

void FlightSubscriptions::EndAll(Flight& flight, const absl::Status& status) {
  AnswerFromOutdated(flight);
  const std::vector<CallId> waiters(flight.waiters.begin(), flight.waiters.end());
  for (const CallId waiter : waiters) EndCall(waiter, status);
  EndOfAll(flight);
}

void FlightSubscriptions::EndOfAll(Flight& flight) {
  here_.tasks.Drop(flight);
  if (flight.state == FlightState::kRunning || flight.state == FlightState::kWaiting)
    here_.workers->Stop(flight.id);
  if (flight.work.at_work == 0) {
    Erase(flight);
    return;
  }
  flight.state = FlightState::kDying;
  here_.flights.Hide(flight);
}

void FlightSubscriptions::EndFailed(Flight& flight, const absl::Status& status) {
  if (absl::IsCancelled(status)) {  // its worker was stopped though there are callers
    EndAll(flight, RefusalOfStopping());
    return;
  }
  if (PushbackOf(status).has_value()) {  // another daemon's, and of now: nothing is said of the graph
    EndAll(flight, status);
    return;
  }
  AnswerFromOutdated(flight);
  here_.calls.Tell(flight, FailedEvent(status));
  EndAll(flight, absl::OkStatus());
}

void FlightSubscriptions::GoOnInNext(Flight& flight, const std::vector<CallId>& unserved) {
  if (unserved.empty()) {
    Erase(flight);
    return;
  }
  const FlightRequestPtr request = flight.request;
  const std::string slot = flight.slot;
  flight.waiters.clear();
  Erase(flight);
  Flight& next = NewFlight(*request, slot);
  for (const CallId waiter : unserved) {
    here_.calls.At(waiter).flight = next.id;
    AddWaiter(next, waiter);
  }
  here_.store->Look(next.id, *request);
}

void FlightSubscriptions::Erase(Flight& flight) {
  if (flight.look.claims) here_.claims->Over(flight.id);
  here_.SetDue(flight, std::nullopt);
  if (flight.state == FlightState::kQueued) --here_.queued;
  if (flight.work.begun) --here_.begun;
  here_.tasks.Drop(flight);
  here_.places.Release(flight);
  here_.callers.Take(flight.request->caller.tenant, flight.caller_bytes);
  here_.flights.Erase(flight);
}

}  // namespace kiln
