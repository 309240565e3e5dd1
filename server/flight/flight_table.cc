#include "server/flight/flight_table.h"

#include <algorithm>
#include <utility>

#include "server/flight/refusals.h"

namespace kiln {

FlightTable::FlightTable(const Options& options, const Clock* clock, Workers* workers, FlightStore* store,
                         FlightClaims* claims)
    : here_(options, clock, workers, store, claims) {}

// ---- Calls -----------------------------------------------------------------------------------

void FlightTable::Compile(CallId id, FlightRequest request, FlightCall call) {
  const uint64_t kept = request.bytes.header + call.bytes;  // of who joins less: its hints alone
  if (absl::Status fits = subscriptions_.CheckRoom(request.caller.tenant, kept); !fits.ok()) {
    call.subscriber->End(fits);
    return;
  }
  if (request.debug) {
    Flight& flight = subscriptions_.NewFlight(std::move(request), "");
    subscriptions_.Subscribe(flight, id, std::move(call), /*uploads=*/true);
    uploads_.Await(flight);
    turns_.StartTasks();
    return;
  }
  const std::string slot = FlightSlot(request.compile_key, request.gang, call.hints);
  if (Flight* const flight = here_.flights.OfSlot(slot); flight != nullptr) {
    subscriptions_.Subscribe(*flight, id, std::move(call), /*uploads=*/true);
    Join(*flight, id);
    return;
  }
  Flight& flight = subscriptions_.NewFlight(std::move(request), slot);
  subscriptions_.Subscribe(flight, id, std::move(call), /*uploads=*/true);
  here_.store->Look(flight.id, *flight.request);
}

void FlightTable::Attach(CallId id, const std::string& ns, const std::string& job_id, FlightCall call) {
  Flight* const flight = here_.flights.OfJob(job_id);
  const bool is_one = flight != nullptr && !flight->request->debug && flight->request->ns == ns &&
                      flight->slot == FlightSlot(flight->request->compile_key, call.gang, call.hints);
  if (!is_one) {
    call.subscriber->End(absl::NotFoundError("no such job runs"));
    return;
  }
  if (absl::Status fits = subscriptions_.CheckRoom(flight->request->caller.tenant, call.bytes); !fits.ok()) {
    call.subscriber->End(fits);
    return;
  }
  subscriptions_.Subscribe(*flight, id, std::move(call), /*uploads=*/false);
  // Who names the job is one of those that were lost: one of them is there again.
  if (const CallId lost = here_.calls.FirstLost(*flight); lost != 0) subscriptions_.Unsubscribe(lost);
  Join(*flight, id);
}

void FlightTable::Join(Flight& flight, CallId id) {
  if (flight.state == State::kLooking) return;
  here_.calls.Announce(flight, id);
  if (flight.state == State::kUploading) {
    // Whoever was asked before has had his time, and there was nobody else.
    if (!flight.due.has_value()) uploads_.AskNext(flight);
    return;
  }
  here_.calls.KeepGraph(id);
  for (const auto& [kind, event] : flight.progress.last) here_.calls.At(id).call.subscriber->Event(event);
  if (flight.result.artifact != nullptr) results_.Answer(flight, id);
}

void FlightTable::Cancel(CallId id, Gone gone) {
  if (gone == Gone::kLost && subscriptions_.AwaitReturn(id)) return;
  if (const WaitingCall* const waiting = here_.calls.Find(id); waiting != nullptr && waiting->lost) return;
  if (Flight* flight = subscriptions_.Unsubscribe(id); flight != nullptr) Leave(*flight);
  turns_.StartTasks();
}

// A caller is gone from a flight that has not ended.
void FlightTable::Leave(Flight& flight) {
  if (flight.state == State::kStoring) return;
  if (flight.state == State::kUploading) {
    uploads_.CallerLeft(flight);
  } else if (flight.waiters.empty()) {
    subscriptions_.EndOfAll(flight);
  }
}

// ---- The store's word ------------------------------------------------------------------------

void FlightTable::Looked(FlightId id, KnownKeyPtr known, Where where) {
  Flight* const flight = here_.flights.Find(id);
  if (flight == nullptr || flight->state != State::kLooking) return;
  flight->request->job.variants_known = known->variants.size();
  subscriptions_.AnswerFromKnown(*flight, *known);
  const bool outdated =
      std::any_of(known->variants.begin(), known->variants.end(), [](const auto& v) { return v.outdated; });
  flight->look.known = outdated ? known : nullptr;
  if (flight->waiters.empty()) {
    subscriptions_.Erase(*flight);
  } else if (absl::Status refusal = RefusalOf(*known, here_.clock->WallNow()); !refusal.ok()) {
    subscriptions_.EndFailed(*flight, refusal);
  } else if (absl::Status begins = entrance_.CheckOpen();
             where == Where::kHere && here_.claims != nullptr && !begins.ok()) {
    subscriptions_.EndAll(*flight, begins);
  } else if (where == Where::kHere && here_.claims != nullptr) {
    flight->look.claims = true;
    here_.claims->LookFurther(id, *flight->request, here_.calls.At(*flight->waiters.begin()).call.hints,
                              std::move(known));
  } else {
    flight->look.elsewhere = where == Where::kElsewhere;
    BeginCompile(*flight);
  }
  turns_.StartTasks();
}

void FlightTable::BeginCompile(Flight& flight) {
  if (flight.request->graph == nullptr) {
    uploads_.Await(flight);
  } else if (absl::Status room = entrance_.TakePlace(flight); !room.ok()) {
    subscriptions_.EndAll(flight, room);
  } else {
    turns_.Enqueue(flight, *flight.waiters.begin());
  }
}

// ---- The upload ------------------------------------------------------------------------------

bool FlightTable::Unpacks(CallId id) { return uploads_.Unpacks(id); }

void FlightTable::Uploaded(CallId id, absl::StatusOr<GraphPtr> graph) {
  uploads_.Uploaded(id, std::move(graph));
  turns_.StartTasks();
}

// ---- The work --------------------------------------------------------------------------------

// What it took is its tenant's, whatever came of it.
void FlightTable::Ended(TaskId id, double seconds, bool typical) {
  const std::optional<FlightTasks::Doing> doing = here_.tasks.Ended(id, seconds, typical);
  if (!doing.has_value()) return;
  if (Flight* const flight = here_.flights.Find(doing->flight); flight != nullptr) {
    here_.admission.Spend(flight->request->caller.tenant, seconds);
    if (doing->task.kind != TaskQueue::Kind::kTune) flight->work.seconds += seconds;
  } else if (!doing->measures_for.empty()) {
    here_.admission.Spend(doing->measures_for, seconds);
  }
  turns_.StartTasks();
}

void FlightTable::Asked(FlightId id, const std::vector<FlightTask>& tasks) {
  Flight* const flight = here_.flights.Find(id);
  if (flight == nullptr || flight->state != State::kRunning) return;
  here_.tasks.Push(*flight, tasks);
  turns_.StartTasks();
}

void FlightTable::Advanced(FlightId id, FlightNext next) {
  Flight* const flight = here_.flights.Find(id);
  if (flight == nullptr || flight->work.at_work == 0) return;
  --flight->work.at_work;
  here_.places.ChargeHeld(*flight, next.held_bytes);
  if (flight->state == State::kDying) {
    if (flight->work.at_work == 0) subscriptions_.Erase(*flight);
  } else if (next.outcome.has_value()) {
    if (next.outcome->ok()) {
      results_.Made(*flight, **std::move(next.outcome), next.workers_lost);
    } else {
      subscriptions_.EndFailed(*flight, next.outcome->status());
    }
  } else if (absl::Status here = turns_.GoOnHere(*flight); !here.ok()) {
    subscriptions_.EndAll(*flight, here);
  } else if (flight->state != State::kStoring) {  // else told after the last one, though it ended before
    turns_.GoOn(*flight, next.tasks);
  }
  turns_.StartTasks();
}

void FlightTable::Progress(FlightId id, absl::string_view phase, FlightEventPtr event) {
  Flight* const flight = here_.flights.Find(id);
  if (flight == nullptr || (flight->state != State::kRunning && flight->state != State::kWaiting)) return;
  flight->progress.phase = std::string(phase);
  if (event == nullptr) return;
  const v1::CompileEvent& message = event->message();
  if (message.has_planned()) flight->progress.kernels_total = message.planned().kernels();
  if (message.has_emitted()) flight->progress.kernels_done = message.emitted().done();
  if (!message.has_debug()) flight->progress.last[message.kind_case()] = event;
  here_.calls.Tell(*flight, event);
}

void FlightTable::Stored(FlightId id, const absl::Status& status) {
  Flight* const flight = here_.flights.Find(id);
  if (flight == nullptr || flight->state != State::kStoring) return;
  results_.Stored(*flight, status);
  turns_.StartTasks();
}

// ---- Time ------------------------------------------------------------------------------------

void FlightTable::Tick() {
  const MonotonicTime now = here_.clock->Now();
  while (const std::optional<FlightTimers::Timer> timer = here_.timers.TakeDue(now)) {
    if (timer->of == FlightTimers::Of::kFlight) {
      Flight& flight = *here_.flights.Find(timer->id);
      flight.due.reset();
      if (flight.state == State::kUploading) {
        uploads_.AskNext(flight);
      } else {
        turns_.CheckTime(flight);
      }
      continue;
    }
    Flight& flight = *here_.flights.Find(here_.calls.At(timer->id).flight);
    subscriptions_.EndCall(timer->id,
                           absl::DeadlineExceededError("the compile took longer than the caller waits"));
    Leave(flight);
  }
  turns_.StartTasks();
}

void FlightTable::Drain() {
  entrance_.Close();
  // Those that wait for what other daemons make, which may be minutes.
  std::vector<FlightId> waiting;
  for (const auto& [id, flight] : here_.flights.all()) {
    if (flight->state == State::kLooking && flight->look.claims) waiting.push_back(id);
  }
  for (const FlightId id : waiting) subscriptions_.EndAll(*here_.flights.Find(id), RefusalOfStopping());
  // Who was lost does not come back to a daemon that stops.
  std::vector<CallId> lost;
  for (const auto& [id, call] : here_.calls.all()) {
    if (call.lost) lost.push_back(id);
  }
  for (const CallId id : lost) {
    if (Flight* const flight = subscriptions_.Unsubscribe(id); flight != nullptr) Leave(*flight);
  }
}

// ---- Chores ----------------------------------------------------------------------------------

void FlightTable::Chore(uint64_t number, const Caller& caller, TaskQueue::Kind kind) {
  here_.tasks.PushChore(number, caller, kind, here_.flights.NextNumber());
  turns_.StartTasks();
}

bool FlightTable::MayMeasureFor(const std::string& tenant) const {
  const bool idle = here_.queued == 0 && here_.tasks.queue().waiting_for_gpus() == 0 &&
                    here_.tasks.queue().gpus_busy() < here_.options.tasks.gpus;
  return idle && !drained() && here_.admission.HasQuotaLeft(tenant);
}

// ---- For people ------------------------------------------------------------------------------

std::string FlightTable::JobOf(const std::string& slot) const {
  const Flight* const flight = here_.flights.OfSlot(slot);
  return flight == nullptr ? "" : flight->request->job.id;
}

FlightRequestPtr FlightTable::RequestOfJob(const std::string& job_id) const {
  const Flight* const flight = here_.flights.OfJob(job_id);
  return flight == nullptr ? nullptr : flight->request;
}

MonotonicTime FlightTable::DeadlineOf(FlightId id) const {
  const Flight* const flight = here_.flights.Find(id);
  return flight == nullptr ? MonotonicTime::min() : here_.calls.LatestDeadline(*flight);
}

std::map<std::string, FlightTable::TenantLoad> FlightTable::Tenants() const {
  std::map<std::string, TenantLoad> loads;
  for (const auto& [tenant, seconds] : here_.admission.TakenLastHour())
    loads[tenant].seconds_last_hour = seconds;
  for (const auto& [id, flight] : here_.flights.all()) {
    TenantLoad& load = loads[flight->request->caller.tenant];
    const bool here = flight->state != State::kLooking && flight->state != State::kUploading;
    ++(!here ? load.waiting : flight->state == State::kQueued ? load.queued : load.running);
  }
  for (const auto& [tenant, placed] : here_.places.of_tenants()) loads[tenant].graphs_bytes = placed.bytes;
  return loads;
}

FlightTable::State FlightTable::StateOfFlight(FlightId id) const {
  const Flight* const flight = here_.flights.Find(id);
  return flight == nullptr ? State::kNone : flight->state;
}

FlightId FlightTable::FlightOfCall(CallId id) const {
  const WaitingCall* const waiting = here_.calls.Find(id);
  return waiting == nullptr ? 0 : waiting->flight;
}

FlightId FlightTable::FlightOfKey(const std::string& slot) const {
  const Flight* const flight = here_.flights.OfSlot(slot);
  return flight == nullptr ? 0 : flight->id;
}

}  // namespace kiln
