#include "server/flight/flight_turns.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/support/status_macros.h"

namespace kiln {

void FlightTurns::Enqueue(Flight& flight, CallId leader) {
  flight.leader = leader;
  flight.request->hints = here_.calls.At(leader).call.hints;
  flight.request->deadline = here_.calls.LatestDeadline(flight);
  flight.request->caller.work_class = flight.work_class;
  flight.state = FlightState::kQueued;
  flight.position = static_cast<uint32_t>(here_.queued + here_.begun);
  ++here_.queued;
  if (!flight.look.elsewhere) WatchTime(flight);
  here_.tasks.PushFirst(flight, here_.admission.SecondsOf(flight));
  for (const CallId waiter : flight.waiters) {
    here_.calls.Announce(flight, waiter);
    here_.calls.KeepGraph(waiter);
  }
}

void FlightTurns::WatchTime(Flight& flight) {
  const std::optional<MonotonicTime> due =
      here_.admission.TooLateAt(flight, here_.calls.LatestDeadline(flight));
  if (due.has_value()) here_.SetDue(flight, due);
}

void FlightTurns::CheckTime(Flight& flight) {
  const absl::Status refusal = here_.admission.CheckQueued(flight, here_.calls.LatestDeadline(flight));
  if (refusal.ok()) {
    WatchTime(flight);
  } else {
    subscriptions_.EndAll(flight, refusal);
  }
}

void FlightTurns::StartTasks() {
  const auto may_begin = [this] { return !here_.places.overfull() || here_.begun == 0; };
  while (const std::optional<TaskId> id = here_.tasks.Take(may_begin())) {
    const FlightTask task = here_.tasks.doing(*id).task;
    Flight* const flight = here_.flights.Find(here_.tasks.doing(*id).flight);
    if (flight == nullptr) {
      here_.workers->Start(*id, 0, nullptr, task);
      continue;
    }
    flight->work.waiting.erase(*id);
    // The timer may be late.
    if (here_.calls.LatestDeadline(*flight) <= here_.clock->Now()) {
      here_.tasks.Forget(*id);
      EndOverdue(*flight);
      continue;
    }
    if (absl::Status refusal = CheckAtFront(*flight, task.kind); !refusal.ok()) {
      here_.tasks.Forget(*id);
      subscriptions_.EndAll(*flight, refusal);
      continue;
    }
    Begin(*flight);
    ++flight->work.at_work;
    here_.workers->Start(*id, flight->id, flight->request, task);
  }
}

// A task of it has been taken for a worker or a GPU, whose time has a limit of its own. What has begun is
// given up where all that it is known to need ends too late; the first that has begun never is, so that what
// tasks take is learnt whatever is believed of it.
absl::Status FlightTurns::CheckAtFront(const Flight& flight, TaskQueue::Kind kind) {
  if (kind == TaskQueue::Kind::kTune || kind == TaskQueue::Kind::kForward) return absl::OkStatus();
  const MonotonicTime deadline = here_.calls.LatestDeadline(flight);
  if (!flight.work.begun) {
    KILN_RETURN_IF_ERROR(here_.admission.CheckQuota(flight));
    return here_.admission.CheckQueued(flight, deadline);
  }
  return IsFirstBegun(flight) ? absl::OkStatus() : here_.admission.CheckBegun(flight, kind, deadline);
}

bool FlightTurns::IsFirstBegun(const Flight& flight) const {
  return std::none_of(here_.flights.all().begin(), here_.flights.all().end(), [&](const auto& other) {
    const FlightState state = other.second->state;
    return other.first < flight.id && (state == FlightState::kRunning || state == FlightState::kWaiting);
  });
}

void FlightTurns::Begin(Flight& flight) {
  if (flight.state == FlightState::kQueued) {
    --here_.queued;
    ++here_.begun;
    flight.work.begun = true;
    here_.SetDue(flight, std::nullopt);
    flight.progress.phase = flight.look.elsewhere ? "forwarded" : "planning";
  }
  flight.state = FlightState::kRunning;
}

void FlightTurns::EndOverdue(Flight& flight) {
  const std::vector<CallId> waiters(flight.waiters.begin(), flight.waiters.end());
  for (const CallId waiter : waiters) {
    subscriptions_.EndCall(waiter,
                           absl::DeadlineExceededError("the compile took longer than the caller waits"));
  }
  // What it has made is stored all the same.
  if (flight.state != FlightState::kStoring) subscriptions_.EndOfAll(flight);
}

absl::Status FlightTurns::GoOnHere(Flight& flight) {
  if (!std::exchange(flight.look.elsewhere, false)) return absl::OkStatus();
  flight.progress.phase = "planning";
  return here_.admission.CheckQuota(flight);
}

void FlightTurns::GoOn(Flight& flight, const std::vector<FlightTask>& tasks) {
  here_.tasks.Push(flight, tasks);
  if (flight.work.at_work > 0) return;
  // Nothing of it is at work: it waits for its turn.
  flight.state = FlightState::kWaiting;
  if (flight.work.waiting.empty())
    subscriptions_.EndFailed(flight, absl::InternalError("the compile came to no end"));
}

}  // namespace kiln
