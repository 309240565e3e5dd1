#include "server/flight/flight_calls.h"

#include <algorithm>
#include <utility>

namespace kiln {
namespace {

// In the place of a caller whose connection broke.
class Nobody final : public Subscriber {
 public:
  void Event(const FlightEventPtr&) override {}
  void Graph(Upload) override {}
  void End(const absl::Status&) override {}
};

}  // namespace

void FlightCalls::Add(const Flight& flight, CallId id, FlightCall call, bool uploads) {
  if (call.deadline != MonotonicTime::max()) timers_->Set(call.deadline, FlightTimers::Of::kCall, id);
  WaitingCall waiting;
  waiting.call = std::move(call);
  waiting.until = waiting.call.deadline;
  waiting.flight = flight.id;
  waiting.uploads = uploads;
  calls_.emplace(id, std::move(waiting));
}

const WaitingCall* FlightCalls::Find(CallId id) const {
  const auto found = calls_.find(id);
  return found == calls_.end() ? nullptr : &found->second;
}

void FlightCalls::Remove(Flight& flight, CallId id) {
  timers_->Clear(calls_.at(id).until, FlightTimers::Of::kCall, id);
  flight.waiters.erase(id);
  if (flight.leader == id) flight.leader = 0;
  calls_.erase(id);
}

void FlightCalls::Lose(CallId id, MonotonicTime until) {
  WaitingCall& waiting = calls_.at(id);
  timers_->Clear(waiting.until, FlightTimers::Of::kCall, id);
  waiting.until = std::min(waiting.call.deadline, until);
  timers_->Set(waiting.until, FlightTimers::Of::kCall, id);
  waiting.call.subscriber = std::make_shared<Nobody>();
  waiting.lost = true;
}

void FlightCalls::Announce(const Flight& flight, CallId id) {
  WaitingCall& waiting = calls_.at(id);
  if (waiting.announced) return;
  waiting.announced = true;
  waiting.call.subscriber->Event(
      QueuedEvent(flight.request->job.id, flight.position, /*joined=*/id != flight.leader));
}

void FlightCalls::KeepGraph(CallId id) {
  WaitingCall& waiting = calls_.at(id);
  if (waiting.keeps_graph) return;
  waiting.keeps_graph = true;
  waiting.call.subscriber->Graph(Subscriber::Upload::kNever);
}

void FlightCalls::Tell(const Flight& flight, const FlightEventPtr& event) const {
  for (const CallId waiter : flight.waiters) calls_.at(waiter).call.subscriber->Event(event);
}

MonotonicTime FlightCalls::LatestDeadline(const Flight& flight) const {
  MonotonicTime latest = MonotonicTime::min();
  for (const CallId waiter : flight.waiters) latest = std::max(latest, calls_.at(waiter).call.deadline);
  return latest;
}

bool FlightCalls::HasAsked(const Flight& flight) const {
  return std::any_of(flight.waiters.begin(), flight.waiters.end(),
                     [this](CallId waiter) { return calls_.at(waiter).asked; });
}

CallId FlightCalls::FirstLost(const Flight& flight) const {
  const auto lost = std::find_if(flight.waiters.begin(), flight.waiters.end(),
                                 [this](CallId waiter) { return calls_.at(waiter).lost; });
  return lost == flight.waiters.end() ? 0 : *lost;
}

}  // namespace kiln
