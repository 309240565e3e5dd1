#include "server/flight/forward_table.h"

#include <algorithm>
#include <vector>

#include "server/flight/gang_verdict.h"
#include "server/flight/refusals.h"

namespace kiln {
namespace {

bool IsAnswer(const ForwardedEnd& end) { return end.manifest.has_value() || !end.verdict.ok(); }

// Where there is neither a program nor a verdict: what is wrong with the upstream.
absl::Status TroubleOf(const ForwardedEnd& end) {
  // Drained, and there.
  if (absl::IsUnavailable(end.call) && end.come_again.has_value())
    return absl::FailedPreconditionError(end.call.message());
  // Its callers' time, and not its silence.
  if (absl::IsDeadlineExceeded(end.call)) return absl::ResourceExhaustedError(end.call.message());
  return end.call;
}

FlightNext NextOf(absl::StatusOr<std::shared_ptr<const Artifact>> outcome) {
  FlightNext next;
  next.outcome = std::move(outcome);
  return next;
}

}  // namespace

ForwardTable::State ForwardTable::StateOf(FlightId id) const {
  const auto found = flights_.find(id);
  return found == flights_.end() ? State::kNone : found->second.state;
}

ForwardTable::Flight* ForwardTable::Find(FlightId id) {
  const auto found = flights_.find(id);
  return found == flights_.end() ? nullptr : &found->second;
}

ForwardTable::Flight* ForwardTable::Find(FlightId id, State state) {
  Flight* const flight = Find(id);
  return flight == nullptr || flight->state != state ? nullptr : flight;
}

void ForwardTable::Forward(TaskId task, FlightId id, Callers callers) {
  Flight& flight = flights_[id];
  flight.task = task;
  flight.callers = callers;
  outside_.pack(id);
}

void ForwardTable::Packed(FlightId id, MonotonicTime now) {
  Flight* const flight = Find(id, State::kPacking);
  if (flight == nullptr) return;
  if (flight->next.has_value()) {
    FlightNext stopped = *std::move(flight->next);
    Settle(id, flight, std::move(stopped));
    return;
  }
  Call(id, flight, now);
}

// ---- Calls -----------------------------------------------------------------------------------

void ForwardTable::Call(FlightId id, Flight* flight, MonotonicTime now) {
  flight->state = State::kCalling;
  flight->deadline = outside_.deadline(id);
  flight->calls.insert(++flight->turn);
  outside_.call(id, flight->turn, flight->deadline);
  if (flight->deadline == MonotonicTime::max() || flight->deadline <= now) return;
  const MonotonicTime then = std::max(flight->deadline - absl::ToChronoNanoseconds(kExtendBefore),
                                      now + (flight->deadline - now) / 2);
  flight->reminders.insert(flight->turn);
  outside_.remind(id, flight->turn, then);
}

void ForwardTable::Due(FlightId id, Turn turn, MonotonicTime now) {
  Flight* const flight = Find(id);
  if (flight == nullptr || flight->reminders.erase(turn) == 0) return;
  if (flight->state == State::kCalling && turn == flight->turn && outside_.deadline(id) > flight->deadline) {
    Call(id, flight, now);
    return;
  }
  EndWhenAllIsBack(id, flight);
}

void ForwardTable::CallEnded(FlightId id, Turn turn, ForwardedEnd end, MonotonicTime now) {
  Flight* const flight = Find(id);
  if (flight == nullptr || flight->calls.erase(turn) == 0) return;
  const bool runs = flight->state == State::kCalling || flight->state == State::kWaiting;
  if (!runs || (turn != flight->turn && !IsAnswer(end))) {
    EndWhenAllIsBack(id, flight);
    return;
  }
  Hurry(id, *flight);
  flight->workers_lost = end.workers_lost;
  if (end.manifest.has_value()) {
    flight->state = State::kTaking;
    if (!flight->calls.empty()) outside_.cancel(id);
    outside_.take(id, std::move(end));
  } else if (!end.verdict.ok()) {
    Answered(id, flight, end.without_gang ? WithoutVerdict(end.verdict) : end.verdict);
  } else if (!AskAgain(id, flight, end, now)) {
    Unanswered(id, flight, end);
  }
}

// Now, or later; a place of kForwardsMax is kept meanwhile.
bool ForwardTable::AskAgain(FlightId id, Flight* flight, const ForwardedEnd& end, MonotonicTime now) {
  const MonotonicTime latest = outside_.deadline(id);
  if (absl::IsDeadlineExceeded(end.call) && now < latest && flight->deadline < latest) {
    Call(id, flight, now);
    return true;
  }
  if (!absl::IsResourceExhausted(end.call) || !end.come_again.has_value()) return false;
  const absl::Duration pause = outside_.jitter(std::min(*end.come_again, kComeAgainMax));
  if (now + absl::ToChronoNanoseconds(pause) >= latest) return false;
  flight->state = State::kWaiting;
  flight->waits = true;
  outside_.wait(id, pause);
  return true;
}

void ForwardTable::Waited(FlightId id, MonotonicTime now) {
  Flight* const flight = Find(id);
  if (flight == nullptr || !std::exchange(flight->waits, false)) return;
  if (flight->state == State::kWaiting) {
    Call(id, flight, now);
    return;
  }
  EndWhenAllIsBack(id, flight);
}

void ForwardTable::Taken(FlightId id, absl::StatusOr<std::shared_ptr<const Artifact>> taken) {
  Flight* const flight = Find(id, State::kTaking);
  if (flight == nullptr) return;
  if (!taken.ok()) {
    NotMade(id, flight, taken.status());
    return;
  }
  Answered(id, flight, std::move(taken));
}

// ---- What came of it -------------------------------------------------------------------------

void ForwardTable::Answered(FlightId id, Flight* flight,
                            absl::StatusOr<std::shared_ptr<const Artifact>> outcome) {
  outside_.answered();
  FlightNext next = NextOf(std::move(outcome));
  next.workers_lost = flight->workers_lost;
  Settle(id, flight, std::move(next));
}

void ForwardTable::Unanswered(FlightId id, Flight* flight, const ForwardedEnd& end) {
  if (!end.come_again.has_value() || (compiles_here_ && flight->callers == Callers::kAny)) {
    NotMade(id, flight, TroubleOf(end));
    return;
  }
  // Full or drained, and there: its word is passed on.
  outside_.failed(absl::FailedPreconditionError(end.call.message())).IgnoreError();
  Settle(id, flight, NextOf(WithPushback(end.call, *end.come_again)));
}

void ForwardTable::NotMade(FlightId id, Flight* flight, const absl::Status& why) {
  const absl::Status failure = outside_.failed(why);
  FlightNext next;
  if (flight->callers == Callers::kGang) {
    next.outcome = outside_.unknown(why);
  } else if (compiles_here_) {
    next.tasks.push_back({TaskQueue::Kind::kPlan, 0, false});
  } else {
    next.outcome = failure;
  }
  Settle(id, flight, std::move(next));
}

// ---- The end ---------------------------------------------------------------------------------

void ForwardTable::Hurry(FlightId id, const Flight& flight) {
  if (flight.waits || !flight.reminders.empty()) outside_.hurry(id);
}

void ForwardTable::Settle(FlightId id, Flight* flight, FlightNext next) {
  flight->state = State::kEnding;
  flight->next = std::move(next);
  if (!flight->calls.empty()) outside_.cancel(id);
  Hurry(id, *flight);
  EndWhenAllIsBack(id, flight);
}

void ForwardTable::EndWhenAllIsBack(FlightId id, Flight* flight) {
  const bool out = !flight->calls.empty() || !flight->reminders.empty() || flight->waits;
  if (flight->state != State::kEnding || out) return;
  const TaskId task = flight->task;
  FlightNext next = *std::move(flight->next);
  flights_.erase(id);
  outside_.ended(task, id, std::move(next));
}

void ForwardTable::Stop(FlightId id) {
  Flight* const flight = Find(id);
  if (flight == nullptr || flight->state == State::kTaking || flight->state == State::kEnding) return;
  FlightNext next = NextOf(absl::CancelledError("nobody waits for the answer"));
  if (flight->state == State::kPacking) {
    flight->next = std::move(next);  // when it is packed
  } else {
    Settle(id, flight, std::move(next));
  }
}

void ForwardTable::StopAll() {
  std::vector<FlightId> ids;
  for (const auto& [id, flight] : flights_) ids.push_back(id);
  for (const FlightId id : ids) Stop(id);
}

}  // namespace kiln
