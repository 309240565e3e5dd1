// The state of all flights: the flights, the calls that wait for them, their tasks and places, and the
// interfaces that they use. FlightTable and its parts share it.
//
// Ownership: it owns what is in it but what comes in by pointers, which outlives it. Threads: one at a time
// (the table's strand). Limits: those of its parts.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "compiler/support/monotonic_time.h"
#include "server/flight/caller_bytes.h"
#include "server/flight/flight.h"
#include "server/flight/flight_admission.h"
#include "server/flight/flight_calls.h"
#include "server/flight/flight_claims.h"
#include "server/flight/flight_index.h"
#include "server/flight/flight_places.h"
#include "server/flight/flight_store.h"
#include "server/flight/flight_task.h"
#include "server/flight/flight_tasks.h"
#include "server/flight/flight_timers.h"
#include "server/flight/joinable_keys.h"
#include "server/schedule/clock.h"
#include "server/schedule/hourly_quotas.h"
#include "server/schedule/task_queue.h"

namespace kiln {

struct FlightOptions {
  JoinableKeys* joinable = nullptr;  // told of each key that has a flight; outlives the table
  TaskQueue::Options tasks;
  size_t queue_max = 256;
  uint64_t graphs_bytes_max = uint64_t{1} << 30;     // no less than one request and its upload
  uint64_t callers_bytes_max = uint64_t{512} << 20;  // see CallerBytes
  std::chrono::milliseconds upload_patience = std::chrono::seconds(5);  // then another caller is asked
  std::chrono::milliseconds lost_patience = std::chrono::seconds(30);
  HourlyQuotas::Seconds quotas;  // of workers and GPUs
  std::function<std::string()> new_job_id;
};

struct InFlight {
  // `claims` is nullptr for a daemon by itself.
  InFlight(const FlightOptions& options, const Clock* clock, Workers* workers, FlightStore* store,
           FlightClaims* claims);

  // When a flight is looked at next; nothing: when something happens.
  void SetDue(Flight& flight, std::optional<MonotonicTime> due);

  const FlightOptions options;
  const Clock* const clock;
  Workers* const workers;
  FlightStore* const store;
  FlightClaims* const claims;

  FlightTimers timers;
  FlightIndex flights;
  FlightCalls calls{&timers};
  FlightTasks tasks;
  FlightPlaces places;
  FlightAdmission admission;
  CallerBytes callers;
  size_t queued = 0;  // flights of which nothing has run
  size_t begun = 0;   // and the others that have been queued
};

}  // namespace kiln
