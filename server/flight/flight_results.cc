#include "server/flight/flight_results.h"

#include <utility>
#include <vector>

#include "compiler/graph/guards.h"
#include "server/flight/flight_event.h"

namespace kiln {

void FlightResults::Made(Flight& flight, std::shared_ptr<const Artifact> artifact, uint32_t workers_lost) {
  if (!flight.look.elsewhere) here_.admission.Learn(flight);
  flight.state = FlightState::kStoring;
  flight.result.artifact = std::move(artifact);
  flight.result.done = DoneEvent(flight.result.artifact->signed_manifest, /*durable=*/false, workers_lost);
  // First: who is answered may fetch at once.
  here_.store->Write(flight.id, flight.result.artifact);
  const std::vector<CallId> waiters(flight.waiters.begin(), flight.waiters.end());
  for (const CallId waiter : waiters) Answer(flight, waiter);
}

void FlightResults::Answer(Flight& flight, CallId id) {
  WaitingCall& waiting = here_.calls.At(id);
  if (GuardsHold(flight.result.artifact->guards, waiting.call.hints)) {
    waiting.call.subscriber->Event(flight.result.done);
    waiting.served = true;
  } else if (id == flight.leader) {
    // It was compiled for these very sizes. Of this call, not of the graph: not stored.
    waiting.call.subscriber->Event(FailedEvent(absl::InvalidArgumentError(
        "the sizes of this call contradict those that the graph declares, or are fewer than its symbols")));
    subscriptions_.EndCall(id, absl::OkStatus());
  }
}

void FlightResults::Stored(Flight& flight, const absl::Status& status) {
  here_.places.Release(flight);
  const FlightEventPtr stored = StoredEvent(status);
  std::vector<CallId> unserved;
  const std::vector<CallId> waiters(flight.waiters.begin(), flight.waiters.end());
  for (const CallId waiter : waiters) {
    const WaitingCall& waiting = here_.calls.At(waiter);
    if (!waiting.served && !waiting.lost) {
      unserved.push_back(waiter);
      continue;
    }
    waiting.call.subscriber->Event(stored);
    subscriptions_.EndCall(waiter, absl::OkStatus());
  }
  subscriptions_.GoOnInNext(flight, unserved);
}

}  // namespace kiln
