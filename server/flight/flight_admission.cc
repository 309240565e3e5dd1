#include "server/flight/flight_admission.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "server/flight/refusals.h"

namespace kiln {
namespace {

constexpr double kUnknownCompileSeconds = 1;
constexpr std::chrono::milliseconds kTimeLate(1);  // so that what is looked at then has too little left

}  // namespace

// Clients whose time is over before there is some left do not wait for it.
absl::Status FlightAdmission::CheckQuota(const Flight& flight) const {
  const std::string& tenant = flight.request->caller.tenant;
  const std::optional<double> until = quotas_.SecondsUntilLeft(tenant, clock_->Now());
  return until.has_value() ? RefusalOfUsedQuota(tenant, quotas_of_.at(tenant), *until) : absl::OkStatus();
}

// Who would not be served in time is told so now, and not when its time is over.
absl::Status FlightAdmission::CheckNew(const Flight& flight, MonotonicTime deadline) {
  return CheckTime(flight, tasks_->queue().SecondsOfNew(CallerOf(flight), SecondsOf(flight)), deadline);
}

absl::Status FlightAdmission::CheckQueued(const Flight& flight, MonotonicTime deadline) {
  return CheckTime(flight, tasks_->queue().SecondsOfNext(CallerOf(flight), SecondsOf(flight)), deadline);
}

absl::Status FlightAdmission::CheckBegun(const Flight& flight, TaskQueue::Kind kind, MonotonicTime deadline) {
  const Caller caller = CallerOf(flight);
  const double seconds = tasks_->SecondsOfRest(flight, kind, caller);
  return CheckTime(flight, tasks_->queue().SecondsOfNext(caller, seconds), deadline);
}

// Where nothing else waits it is tried: there is nothing better to do, and what it takes is learnt.
absl::Status FlightAdmission::CheckTime(const Flight& flight, double needs, MonotonicTime deadline) {
  if (deadline == MonotonicTime::max()) return absl::OkStatus();
  if (tasks_->queue().waiting_for_workers() <= flight.work.waiting.size()) return absl::OkStatus();
  const double left = std::max(0.0, SecondsBetween(clock_->Now(), deadline));
  if (needs <= left) return absl::OkStatus();
  const double again = std::max(needs, SecondsBehindExpected(flight)) - left;
  return ComesAgain(flight, RefusalOfLongQueue(needs, again));
}

std::optional<MonotonicTime> FlightAdmission::TooLateAt(const Flight& flight, MonotonicTime deadline) const {
  if (deadline == MonotonicTime::max()) return std::nullopt;
  const double needs = tasks_->queue().SecondsOfNext(CallerOf(flight), SecondsOf(flight));
  const MonotonicTime due =
      deadline - std::chrono::microseconds(static_cast<int64_t>(needs * 1e6)) + kTimeLate;
  if (due <= clock_->Now()) return std::nullopt;
  return due;
}

absl::Status FlightAdmission::RefuseForRoom(const Flight& flight, size_t places, size_t begun) {
  const double rounds = static_cast<double>(places) / static_cast<double>(workers_);
  const double again = std::max(rounds * SecondsOfOneCompile(), SecondsBehindExpected(flight));
  return ComesAgain(flight, RefusalOfFullQueue(places - begun, again));
}

absl::Status FlightAdmission::RefuseCaller() const { return RefusalOfManyCallers(SecondsOfOneCompile()); }

double FlightAdmission::SecondsOfOneCompile() const {
  return compile_seconds_.value() > 0 ? compile_seconds_.value() : kUnknownCompileSeconds;
}

// Until those of its tenant are served who were told before to come again.
double FlightAdmission::SecondsBehindExpected(const Flight& flight) {
  const Caller caller = CallerOf(flight);
  const size_t expected = expected_.Of(caller.tenant, clock_->Now());
  return expected == 0
             ? 0
             : tasks_->queue().SecondsOfNew(caller, static_cast<double>(expected) * SecondsOf(flight));
}

absl::Status FlightAdmission::ComesAgain(const Flight& flight, absl::Status refusal) {
  if (const auto told = PushbackOf(refusal); told.has_value()) {
    expected_.Expect(flight.request->caller.tenant, std::chrono::duration<double>(*told).count(),
                     clock_->Now());
  }
  return refusal;
}

double FlightAdmission::SecondsOf(const Flight& flight) const {
  const Caller caller = CallerOf(flight);
  const double bytes = static_cast<double>(flight.request->bytes.all), typical = compile_bytes_of_.Of(caller);
  return compile_seconds_of_.Of(caller) * (typical > 0 ? std::min(1.0, bytes / typical) : 1);
}

void FlightAdmission::Learn(const Flight& flight) {
  compile_seconds_.Add(flight.work.seconds);
  const Caller caller = CallerOf(flight);
  compile_seconds_of_.Add(caller, flight.work.seconds);
  compile_bytes_of_.Add(caller, static_cast<double>(flight.request->bytes.all));
}

}  // namespace kiln
