// Admission control: whether a flight may begin or go on, by its tenant's hourly quota and its callers'
// deadlines; and when to retry, where it may not.
//
// - A tenant that has used its quota (hourly_quotas.h) begins nothing new; what has begun goes on.
// - A flight that would miss its deadline is refused while there is other work: the estimate is the recent
//   compile time of its tenant and class over the tenant's share of the workers, and errs on the short side.
// - A refusal's retry delay is behind those that the tenant's callers were given before.
//
// Errors: RESOURCE_EXHAUSTED with a retry delay (`PushbackOf`). Ownership: the clock's and the tasks' owner
// outlives it. Threads: one at a time (the table's strand). Limits: those of HourlyQuotas, ExpectedCallers
// and RecentMeans.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "server/flight/flight.h"
#include "server/flight/flight_tasks.h"
#include "server/schedule/clock.h"
#include "server/schedule/expected_callers.h"
#include "server/schedule/hourly_quotas.h"
#include "server/schedule/recent_mean.h"
#include "server/schedule/recent_means.h"

namespace kiln {

class FlightAdmission {
 public:
  FlightAdmission(HourlyQuotas::Seconds quotas, size_t workers, const Clock* clock, const FlightTasks* tasks)
      : quotas_of_(std::move(quotas)), workers_(workers), clock_(clock), tasks_(tasks), quotas_(quotas_of_) {}

  // ---- `deadline`: the latest of a flight's callers ----
  absl::Status CheckQuota(const Flight& flight) const;
  absl::Status CheckNew(const Flight& flight, MonotonicTime deadline);     // before it is queued
  absl::Status CheckQueued(const Flight& flight, MonotonicTime deadline);  // next of its tenant's
  // One that has begun, of which a task of `kind` was taken.
  absl::Status CheckBegun(const Flight& flight, TaskQueue::Kind kind, MonotonicTime deadline);
  // Of a queued flight: when there is just too little left of it, as far as is known now; nothing where that
  // is over, or never.
  std::optional<MonotonicTime> TooLateAt(const Flight& flight, MonotonicTime deadline) const;

  // There is no room: of so many places, so many are of flights that have begun.
  absl::Status RefuseForRoom(const Flight& flight, size_t places, size_t begun);
  // There is no memory for one more call.
  absl::Status RefuseCaller() const;

  // What its compile takes of workers, by what others of its tenant and class took: a graph that is smaller
  // takes less, and of one that is larger no more is said.
  double SecondsOf(const Flight& flight) const;
  void Learn(const Flight& flight);  // that was compiled here

  // Of workers and GPUs.
  void Spend(const std::string& tenant, double seconds) { quotas_.Spend(tenant, seconds, clock_->Now()); }
  bool HasQuotaLeft(const std::string& tenant) const {
    return !quotas_.SecondsUntilLeft(tenant, clock_->Now()).has_value();
  }
  std::map<std::string, double> TakenLastHour() const { return quotas_.Taken(clock_->Now()); }

 private:
  absl::Status CheckTime(const Flight& flight, double needs, MonotonicTime deadline);
  double SecondsOfOneCompile() const;
  double SecondsBehindExpected(const Flight& flight);
  absl::Status ComesAgain(const Flight& flight, absl::Status refusal);

  const HourlyQuotas::Seconds quotas_of_;
  const size_t workers_;
  const Clock* const clock_;
  const FlightTasks* const tasks_;
  HourlyQuotas quotas_;
  ExpectedCallers expected_;
  RecentMean compile_seconds_;      // of workers, for one flight; 0: none was made yet
  RecentMeans compile_seconds_of_;  // likewise, for each tenant and class
  RecentMeans compile_bytes_of_;    // of their requests
};

}  // namespace kiln
