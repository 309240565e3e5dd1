#include "server/flight/flight_table.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "compiler/graph/guards.h"
#include "compiler/support/status_macros.h"
#include "server/flight/refusals.h"

namespace kiln {

FlightTable::FlightTable(Options options, const Clock* clock, Workers* workers, FlightStore* store,
                         FlightClaims* claims)
    : options_(std::move(options)),
      clock_(clock),
      workers_(workers),
      store_(store),
      claims_(claims),
      flights_(options_.joinable),
      tasks_(options_.tasks),
      places_(options_.tasks.workers + options_.queue_max, options_.graphs_bytes_max),
      admission_(options_.quotas, options_.tasks.workers, clock, &tasks_),
      callers_(options_.callers_bytes_max) {}

// ---- Calls -----------------------------------------------------------------------------------

void FlightTable::Compile(CallId id, FlightRequest request, FlightCall call) {
  const uint64_t kept = request.header_bytes + call.bytes;  // of who joins less: its hints alone
  if (absl::Status fits = CheckCallers(request.caller.tenant, kept); !fits.ok()) {
    call.subscriber->End(fits);
    return;
  }
  if (request.debug) {
    Flight& flight = NewFlight(std::move(request), "");
    Subscribe(flight, id, std::move(call), /*uploads=*/true);
    AwaitUpload(flight);
    StartTasks();
    return;
  }
  const std::string slot = FlightSlot(request.compile_key, request.gang, call.hints);
  if (Flight* const flight = flights_.OfSlot(slot); flight != nullptr) {
    Subscribe(*flight, id, std::move(call), /*uploads=*/true);
    Join(*flight, id);
    return;
  }
  Flight& flight = NewFlight(std::move(request), slot);
  Subscribe(flight, id, std::move(call), /*uploads=*/true);
  store_->Look(flight.id, *flight.request);
}

void FlightTable::Attach(CallId id, const std::string& ns, const std::string& job_id, FlightCall call) {
  Flight* const flight = flights_.OfJob(job_id);
  const bool is_one = flight != nullptr && !flight->request->debug && flight->request->ns == ns &&
                      flight->slot == FlightSlot(flight->request->compile_key, call.gang, call.hints);
  if (!is_one) {
    call.subscriber->End(absl::NotFoundError("no such job runs"));
    return;
  }
  if (absl::Status fits = CheckCallers(flight->request->caller.tenant, call.bytes); !fits.ok()) {
    call.subscriber->End(fits);
    return;
  }
  Subscribe(*flight, id, std::move(call), /*uploads=*/false);
  TakePlaceOfLost(*flight);
  Join(*flight, id);
}

// Beside places: what is kept of a call while it is looked up and waits.
absl::Status FlightTable::CheckCallers(const std::string& tenant, uint64_t bytes) const {
  if (callers_.Fits(tenant, bytes)) return absl::OkStatus();
  return admission_.RefuseCaller();
}

Flight& FlightTable::NewFlight(FlightRequest request, std::string slot) {
  Flight& flight = flights_.Add(std::move(request), std::move(slot), options_.new_job_id(), clock_->Now());
  // Of one whose graph has come with the flight before: that too, until it has a place.
  const FlightRequest& kept = *flight.request;
  flight.caller_bytes = kept.header_bytes + (kept.graph != nullptr ? kept.graph->size() : 0);
  callers_.Add(kept.caller.tenant, flight.caller_bytes);
  return flight;
}

void FlightTable::Subscribe(Flight& flight, CallId id, FlightCall call, bool uploads) {
  callers_.Add(flight.request->caller.tenant, call.bytes);
  calls_.Add(flight, id, std::move(call), uploads);
  AddWaiter(flight, id);
}

void FlightTable::AddWaiter(Flight& flight, CallId id) {
  flight.waiters.insert(id);
  if (calls_.At(id).call.work_class == Caller::Class::kBackground) return;
  flight.work_class = Caller::Class::kInteractive;
  tasks_.MakeInteractive(flight);
}

void FlightTable::Join(Flight& flight, CallId id) {
  if (flight.state == State::kLooking) return;
  calls_.Announce(flight, id);
  if (flight.state == State::kUploading) {
    // Whoever was asked before has had his time, and there was nobody else.
    if (flight.due.has_value()) return;
    if (absl::Status asked = AskForUpload(flight); !asked.ok()) EndAll(flight, asked);
    return;
  }
  calls_.KeepGraph(id);
  for (const auto& [kind, event] : flight.progress) calls_.At(id).call.subscriber->Event(event);
  if (flight.artifact != nullptr) AnswerFromArtifact(flight, id);
}

void FlightTable::Cancel(CallId id, Gone gone) {
  if (gone == Gone::kLost && AwaitReturn(id)) return;
  if (const WaitingCall* const waiting = calls_.Find(id); waiting != nullptr && waiting->lost) return;
  if (Flight* flight = Unsubscribe(id); flight != nullptr) Leave(*flight);
  StartTasks();
}

// A flight without its graph has nothing to come back to. Others that wait may leave before he is back.
bool FlightTable::AwaitReturn(CallId id) {
  const WaitingCall* const waiting = calls_.Find(id);
  if (waiting == nullptr || waiting->lost) return false;
  const Flight& flight = *flights_.Find(waiting->flight);
  const bool works =
      flight.state == State::kQueued || flight.state == State::kRunning || flight.state == State::kWaiting;
  if (!works || flight.request->debug) return false;
  calls_.Lose(id, clock_->Now() + options_.lost_patience);
  return true;
}

// Who names the job is one of those that were lost: one of them is there again.
void FlightTable::TakePlaceOfLost(const Flight& flight) {
  if (const CallId lost = calls_.FirstLost(flight); lost != 0) Unsubscribe(lost);
}

// ---- The store's word ------------------------------------------------------------------------

void FlightTable::Looked(FlightId id, KnownKeyPtr known, Where where) {
  Flight* const flight = flights_.Find(id);
  if (flight == nullptr || flight->state != State::kLooking) return;
  flight->request->variants_known = known->variants.size();
  AnswerFromKnown(*flight, *known);
  const bool outdated =
      std::any_of(known->variants.begin(), known->variants.end(), [](const auto& v) { return v.outdated; });
  flight->known = outdated ? known : nullptr;
  if (flight->waiters.empty()) {
    Erase(*flight);
  } else if (absl::Status refusal = RefusalOf(*known, clock_->WallNow()); !refusal.ok()) {
    EndFailed(*flight, refusal);
  } else if (absl::Status begins = CheckBegins();
             where == Where::kHere && claims_ != nullptr && !begins.ok()) {
    EndAll(*flight, begins);
  } else if (where == Where::kHere && claims_ != nullptr) {
    flight->claims = true;
    claims_->LookFurther(id, *flight->request, calls_.At(*flight->waiters.begin()).call.hints,
                         std::move(known));
  } else {
    flight->elsewhere = where == Where::kElsewhere;
    BeginCompile(*flight);
  }
  StartTasks();
}

void FlightTable::BeginCompile(Flight& flight) {
  if (flight.request->graph == nullptr) {
    AwaitUpload(flight);
  } else if (absl::Status room = TakePlace(flight); !room.ok()) {
    EndAll(flight, room);
  } else {
    Enqueue(flight, *flight.waiters.begin());
  }
}

// Those whom the store has something for, and ends their calls. What it has is said now and never later:
// it may be evicted at any time.
void FlightTable::AnswerFromKnown(Flight& flight, const KnownKey& known, Outdated outdated) {
  absl::flat_hash_map<const KnownVariant*, FlightEventPtr> events;
  const std::vector<CallId> waiters(flight.waiters.begin(), flight.waiters.end());
  for (const CallId waiter : waiters) {
    WaitingCall& waiting = calls_.At(waiter);
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
void FlightTable::AnswerFromOutdated(Flight& flight) {
  const KnownKeyPtr known = std::move(flight.known);
  if (known != nullptr) AnswerFromKnown(flight, *known, Outdated::kTake);
}

// ---- The upload ------------------------------------------------------------------------------

void FlightTable::AwaitUpload(Flight& flight) {
  if (absl::Status room = TakePlace(flight); !room.ok()) {
    EndAll(flight, room);
    return;
  }
  flight.state = State::kUploading;
  if (absl::Status asked = AskForUpload(flight); !asked.ok()) {
    EndAll(flight, asked);
    return;
  }
  // The leader is told of its place when there is a graph to queue.
  for (const CallId waiter : flight.waiters) {
    if (waiter != flight.leader) calls_.Announce(flight, waiter);
  }
}

// Asks the next caller that has a graph and whose upload there is room for. An error where nobody's is on its
// way then.
absl::Status FlightTable::AskForUpload(Flight& flight) {
  const bool pending = calls_.HasAsked(flight);
  bool full = false;
  for (const CallId waiter : flight.waiters) {
    WaitingCall& waiting = calls_.At(waiter);
    if (!waiting.uploads || waiting.asked) continue;
    // What is slow takes nobody's place, but where there is nothing else to wait for.
    bool room = places_.HasRoomToAsk(flight, waiting.call);
    while (!room && !pending &&
           Displace(flight.request->caller.tenant, waiting.call.upload_bytes, FlightPlaces::Short::kBytes)) {
      room = places_.HasRoomToAsk(flight, waiting.call);
    }
    full = full || !room;
    if (!room) continue;
    waiting.asked = true;
    places_.ChargeAsked(flight, flight.asked_bytes + waiting.call.upload_bytes);
    flight.leader = waiter;
    SetDue(flight, clock_->Now() + options_.upload_patience);
    waiting.call.subscriber->Graph(Subscriber::Upload::kNow);
    return absl::OkStatus();
  }
  if (!pending)
    return full ? QueueIsFull(flight) : absl::NotFoundError("the job ended before it had its graph");
  SetDue(flight, full ? std::optional(clock_->Now() + options_.upload_patience) : std::nullopt);
  return absl::OkStatus();
}

void FlightTable::SetDue(Flight& flight, std::optional<MonotonicTime> due) {
  if (flight.due.has_value()) timers_.Clear(*flight.due, FlightTimers::Of::kFlight, flight.id);
  flight.due = due;
  if (due.has_value()) timers_.Set(*due, FlightTimers::Of::kFlight, flight.id);
}

bool FlightTable::Unpacks(CallId id) {
  const WaitingCall* const waiting = calls_.Find(id);
  if (waiting == nullptr || !waiting->asked) return false;
  const Flight& flight = *flights_.Find(waiting->flight);
  if (flight.state != State::kUploading) return false;
  places_.Unpack(id, flight.request->caller.tenant, waiting->call.upload_bytes);
  return true;
}

void FlightTable::Uploaded(CallId id, absl::StatusOr<GraphPtr> graph) {
  places_.EndUnpacking(id);
  TakeUpload(id, std::move(graph));
  StartTasks();
}

void FlightTable::TakeUpload(CallId id, absl::StatusOr<GraphPtr> graph) {
  if (calls_.Find(id) == nullptr) return;
  WaitingCall& waiting = calls_.At(id);
  Flight& flight = *flights_.Find(waiting.flight);
  if (flight.state != State::kUploading || !waiting.asked) return;
  if (!graph.ok()) {
    EndCall(id, graph.status());
    Leave(flight);
    return;
  }
  SetDue(flight, std::nullopt);
  places_.ChargeAsked(flight, 0);
  for (const CallId waiter : flight.waiters) places_.ChargeUnpacking(waiter);
  if (absl::Status charged = ChargeGraph(flight, (*graph)->size()); !charged.ok()) {
    EndAll(flight, charged);
    return;
  }
  flight.request->graph = *std::move(graph);
  waiting.keeps_graph = true;
  if (waiting.looked || flight.request->debug) {
    Enqueue(flight, id);
  } else {
    // It joined after the look; the store may have what fits it.
    EndFlight(flight, std::vector<CallId>(flight.waiters.begin(), flight.waiters.end()));
  }
}

// ---- A place ---------------------------------------------------------------------------------

// Whether anything new is begun at all.
absl::Status FlightTable::CheckBegins() const {
  if (draining_) return RefusalOfStopping();
  return drained_ ? RefusalOfDrained() : absl::OkStatus();
}

absl::Status FlightTable::TakePlace(Flight& flight) {
  KILN_RETURN_IF_ERROR(CheckBegins());
  const FlightRequest& request = *flight.request;
  if (!flight.elsewhere) {
    KILN_RETURN_IF_ERROR(admission_.CheckQuota(flight));
    KILN_RETURN_IF_ERROR(admission_.CheckNew(flight, calls_.LatestDeadline(flight)));
  }
  while (const std::optional<FlightPlaces::Short> what = places_.ShortOf(request.bytes)) {
    if (!Displace(request.caller.tenant, request.bytes, *what)) return QueueIsFull(flight);
  }
  callers_.Take(request.caller.tenant, std::exchange(flight.caller_bytes, 0));
  places_.Take(flight);
  return absl::OkStatus();
}

// Who holds more than a newcomer gives its place back.
bool FlightTable::Displace(const std::string& tenant, uint64_t bytes, FlightPlaces::Short what) {
  const std::optional<FlightId> latest = places_.Displaceable(tenant, bytes, what, [this](FlightId id) {
    const State state = StateOfFlight(id);
    return state == State::kQueued || state == State::kUploading || state == State::kWaiting;
  });
  if (!latest.has_value()) return false;
  Flight& flight = *flights_.Find(*latest);
  EndAll(flight, QueueIsFull(flight));
  return true;
}

absl::Status FlightTable::QueueIsFull(const Flight& flight) {
  return admission_.RefuseForRoom(flight, places_.places(), begun_);
}

// The place was taken for the size that the first caller gave, and another's upload may be larger.
absl::Status FlightTable::ChargeGraph(Flight& flight, uint64_t bytes) {
  if (bytes <= flight.request->graph_bytes) return absl::OkStatus();
  places_.GiveBack(flight);
  flight.request->bytes += bytes - flight.request->graph_bytes;
  flight.request->graph_bytes = bytes;
  return TakePlace(flight);
}

// ---- The work --------------------------------------------------------------------------------

void FlightTable::Enqueue(Flight& flight, CallId leader) {
  flight.leader = leader;
  flight.request->hints = calls_.At(leader).call.hints;
  flight.request->deadline = calls_.LatestDeadline(flight);
  flight.request->caller.work_class = flight.work_class;
  flight.state = State::kQueued;
  flight.position = static_cast<uint32_t>(queued_ + begun_);
  ++queued_;
  if (!flight.elsewhere) WatchTime(flight);
  tasks_.PushFirst(flight, admission_.SecondsOf(flight));
  for (const CallId waiter : flight.waiters) {
    calls_.Announce(flight, waiter);
    calls_.KeepGraph(waiter);
  }
}

void FlightTable::WatchTime(Flight& flight) {
  const std::optional<MonotonicTime> due = admission_.TooLateAt(flight, calls_.LatestDeadline(flight));
  if (due.has_value()) SetDue(flight, due);
}

// After every input that may end a flight: what it held may be what others wait for.
void FlightTable::StartTasks() {
  const auto may_begin = [this] { return !places_.overfull() || begun_ == 0; };
  while (const std::optional<TaskId> id = tasks_.Take(may_begin())) {
    const FlightTask task = tasks_.doing(*id).task;
    Flight* const flight = flights_.Find(tasks_.doing(*id).flight);
    if (flight == nullptr) {
      workers_->Start(*id, 0, nullptr, task);
      continue;
    }
    flight->waiting.erase(*id);
    // The timer may be late.
    if (calls_.LatestDeadline(*flight) <= clock_->Now()) {
      tasks_.Forget(*id);
      EndOverdue(*flight);
      continue;
    }
    if (absl::Status refusal = CheckAtFront(*flight, task.kind); !refusal.ok()) {
      tasks_.Forget(*id);
      EndAll(*flight, refusal);
      continue;
    }
    Begin(*flight);
    ++flight->at_work;
    workers_->Start(*id, flight->id, flight->request, task);
  }
}

// A task of it has been taken for a worker or a GPU, whose time has a limit of its own. What has begun is
// given up where all that it is known to need ends too late; the first that has begun never is, so that what
// tasks take is learnt whatever is believed of it.
absl::Status FlightTable::CheckAtFront(const Flight& flight, TaskQueue::Kind kind) {
  if (kind == TaskQueue::Kind::kTune || kind == TaskQueue::Kind::kForward) return absl::OkStatus();
  const MonotonicTime deadline = calls_.LatestDeadline(flight);
  if (!flight.begun) {
    KILN_RETURN_IF_ERROR(admission_.CheckQuota(flight));
    return admission_.CheckQueued(flight, deadline);
  }
  return IsFirstBegun(flight) ? absl::OkStatus() : admission_.CheckBegun(flight, kind, deadline);
}

bool FlightTable::IsFirstBegun(const Flight& flight) const {
  return std::none_of(flights_.all().begin(), flights_.all().end(), [&](const auto& other) {
    const State state = other.second->state;
    return other.first < flight.id && (state == State::kRunning || state == State::kWaiting);
  });
}

void FlightTable::Begin(Flight& flight) {
  if (flight.state == State::kQueued) {
    --queued_;
    ++begun_;
    flight.begun = true;
    SetDue(flight, std::nullopt);
    flight.phase = flight.elsewhere ? "forwarded" : "planning";
  }
  flight.state = State::kRunning;
}

void FlightTable::EndOverdue(Flight& flight) {
  const std::vector<CallId> waiters(flight.waiters.begin(), flight.waiters.end());
  for (const CallId waiter : waiters) {
    EndCall(waiter, absl::DeadlineExceededError("the compile took longer than the caller waits"));
  }
  Leave(flight);
}

// What it took is its tenant's, whatever came of it.
void FlightTable::Ended(TaskId id, double seconds, bool typical) {
  const std::optional<FlightTasks::Doing> doing = tasks_.Ended(id, seconds, typical);
  if (!doing.has_value()) return;
  if (Flight* const flight = flights_.Find(doing->flight); flight != nullptr) {
    admission_.Spend(flight->request->caller.tenant, seconds);
    if (doing->task.kind != TaskQueue::Kind::kTune) flight->worker_seconds += seconds;
  } else if (!doing->measures_for.empty()) {
    admission_.Spend(doing->measures_for, seconds);
  }
  StartTasks();
}

void FlightTable::Asked(FlightId id, const std::vector<FlightTask>& tasks) {
  Flight* const flight = flights_.Find(id);
  if (flight == nullptr || flight->state != State::kRunning) return;
  tasks_.Push(*flight, tasks);
  StartTasks();
}

void FlightTable::Advanced(FlightId id, FlightNext next) {
  Flight* const flight = flights_.Find(id);
  if (flight == nullptr || flight->at_work == 0) return;
  --flight->at_work;
  places_.ChargeHeld(*flight, next.held_bytes);
  if (flight->state == State::kDying) {
    if (flight->at_work == 0) Erase(*flight);
  } else if (next.outcome.has_value()) {
    if (next.outcome->ok()) {
      Made(*flight, **std::move(next.outcome), next.workers_lost);
    } else {
      EndFailed(*flight, next.outcome->status());
    }
  } else if (absl::Status here = GoOnHere(*flight); !here.ok()) {
    EndAll(*flight, here);
  } else if (flight->state != State::kStoring) {  // else told after the last one, though it ended before
    tasks_.Push(*flight, next.tasks);
    Settle(*flight);
  }
  StartTasks();
}

// Of one that came back from another daemon without a program.
absl::Status FlightTable::GoOnHere(Flight& flight) {
  if (!std::exchange(flight.elsewhere, false)) return absl::OkStatus();
  flight.phase = "planning";
  return admission_.CheckQuota(flight);
}

// Nothing of it is at work: it waits for its turn.
void FlightTable::Settle(Flight& flight) {
  if (flight.at_work > 0) return;
  flight.state = State::kWaiting;
  if (flight.waiting.empty()) EndFailed(flight, absl::InternalError("the compile came to no end"));
}

void FlightTable::Progress(FlightId id, absl::string_view phase, FlightEventPtr event) {
  Flight* const flight = flights_.Find(id);
  if (flight == nullptr || (flight->state != State::kRunning && flight->state != State::kWaiting)) return;
  flight->phase = std::string(phase);
  if (event == nullptr) return;
  const v1::CompileEvent& message = event->message();
  if (message.has_planned()) flight->kernels_total = message.planned().kernels();
  if (message.has_emitted()) flight->kernels_done = message.emitted().done();
  if (!message.has_debug()) flight->progress[message.kind_case()] = event;
  calls_.Tell(*flight, event);
}

void FlightTable::Made(Flight& flight, std::shared_ptr<const Artifact> artifact, uint32_t workers_lost) {
  if (!flight.elsewhere) admission_.Learn(flight);
  flight.state = State::kStoring;
  flight.artifact = std::move(artifact);
  flight.done = DoneEvent(flight.artifact->signed_manifest, /*durable=*/false, workers_lost);
  // First: who is answered may fetch at once.
  store_->Write(flight.id, flight.artifact);
  const std::vector<CallId> waiters(flight.waiters.begin(), flight.waiters.end());
  for (const CallId waiter : waiters) AnswerFromArtifact(flight, waiter);
}

void FlightTable::AnswerFromArtifact(Flight& flight, CallId id) {
  WaitingCall& waiting = calls_.At(id);
  if (GuardsHold(flight.artifact->guards, waiting.call.hints)) {
    waiting.call.subscriber->Event(flight.done);
    waiting.served = true;
  } else if (id == flight.leader) {
    // It was compiled for these very sizes. Of this call, not of the graph: not stored.
    waiting.call.subscriber->Event(FailedEvent(absl::InvalidArgumentError(
        "the sizes of this call contradict those that the graph declares, or are fewer than its symbols")));
    EndCall(id, absl::OkStatus());
  }
}

void FlightTable::Stored(FlightId id, const absl::Status& status) {
  Flight* const flight = flights_.Find(id);
  if (flight == nullptr || flight->state != State::kStoring) return;
  places_.GiveBack(*flight);
  const FlightEventPtr stored = StoredEvent(status);
  std::vector<CallId> unserved;
  const std::vector<CallId> waiters(flight->waiters.begin(), flight->waiters.end());
  for (const CallId waiter : waiters) {
    const WaitingCall& waiting = calls_.At(waiter);
    if (!waiting.served && !waiting.lost) {
      unserved.push_back(waiter);
      continue;
    }
    waiting.call.subscriber->Event(stored);
    EndCall(waiter, absl::OkStatus());
  }
  EndFlight(*flight, unserved);
  StartTasks();
}

// Who was not served goes on in the key's next flight, with the same graph, and is looked up there.
void FlightTable::EndFlight(Flight& flight, const std::vector<CallId>& unserved) {
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
    calls_.At(waiter).flight = next.id;
    AddWaiter(next, waiter);
  }
  store_->Look(next.id, *request);
}

// ---- Ends ------------------------------------------------------------------------------------

Flight* FlightTable::Unsubscribe(CallId id) {
  const WaitingCall* const waiting = calls_.Find(id);
  if (waiting == nullptr) return nullptr;
  Flight* const flight = flights_.Find(waiting->flight);
  callers_.Take(flight->request->caller.tenant, waiting->call.bytes);
  if (waiting->asked && flight->asked_bytes > 0) {
    places_.ChargeAsked(*flight, flight->asked_bytes - waiting->call.upload_bytes);
    places_.ChargeUnpacking(id);
  }
  calls_.Remove(*flight, id);
  return flight;
}

void FlightTable::EndCall(CallId id, const absl::Status& status) {
  const std::shared_ptr<Subscriber> subscriber = calls_.At(id).call.subscriber;
  Unsubscribe(id);
  subscriber->End(status);
}

void FlightTable::EndAll(Flight& flight, const absl::Status& status) {
  AnswerFromOutdated(flight);
  const std::vector<CallId> waiters(flight.waiters.begin(), flight.waiters.end());
  for (const CallId waiter : waiters) EndCall(waiter, status);
  EndOfAll(flight);
}

// Nobody waits for it. What it has at work keeps its place until that has ended.
void FlightTable::EndOfAll(Flight& flight) {
  tasks_.Drop(flight);
  if (flight.state == State::kRunning || flight.state == State::kWaiting) workers_->Stop(flight.id);
  if (flight.at_work == 0) {
    Erase(flight);
    return;
  }
  flight.state = State::kDying;
  flights_.Hide(flight);
}

// The compile's own verdict, for everybody.
void FlightTable::EndFailed(Flight& flight, const absl::Status& status) {
  if (absl::IsCancelled(status)) {  // its worker was stopped though there are callers
    EndAll(flight, RefusalOfStopping());
    return;
  }
  if (PushbackOf(status).has_value()) {  // another daemon's, and of now: nothing is said of the graph
    EndAll(flight, status);
    return;
  }
  AnswerFromOutdated(flight);
  calls_.Tell(flight, FailedEvent(status));
  EndAll(flight, absl::OkStatus());
}

// A caller is gone from a flight that has not ended.
void FlightTable::Leave(Flight& flight) {
  if (flight.state == State::kStoring) return;
  if (!flight.waiters.empty()) {
    if (flight.state != State::kUploading) return;
    // Somebody else's upload is on its way, or is asked for now, or can never come.
    if (calls_.HasAsked(flight)) return;
    if (absl::Status asked = AskForUpload(flight); !asked.ok()) EndAll(flight, asked);
    return;
  }
  EndOfAll(flight);
}

void FlightTable::Erase(Flight& flight) {
  if (flight.claims) claims_->Over(flight.id);
  SetDue(flight, std::nullopt);
  if (flight.state == State::kQueued) --queued_;
  if (flight.begun) --begun_;
  tasks_.Drop(flight);
  places_.GiveBack(flight);
  callers_.Take(flight.request->caller.tenant, flight.caller_bytes);
  flights_.Erase(flight);
}

// ---- Time ------------------------------------------------------------------------------------

void FlightTable::Tick() {
  const MonotonicTime now = clock_->Now();
  while (const std::optional<FlightTimers::Timer> timer = timers_.TakeDue(now)) {
    if (timer->of == FlightTimers::Of::kFlight) {
      Flight& flight = *flights_.Find(timer->id);
      flight.due.reset();
      if (flight.state == State::kUploading) {
        if (absl::Status asked = AskForUpload(flight); !asked.ok()) EndAll(flight, asked);
      } else if (const absl::Status refusal = admission_.CheckQueued(flight, calls_.LatestDeadline(flight));
                 !refusal.ok()) {
        EndAll(flight, refusal);
      } else {
        WatchTime(flight);
      }
      continue;
    }
    Flight& flight = *flights_.Find(calls_.At(timer->id).flight);
    EndCall(timer->id, absl::DeadlineExceededError("the compile took longer than the caller waits"));
    Leave(flight);
  }
  StartTasks();
}

void FlightTable::Drain() {
  draining_ = true;
  // Those that wait for what other daemons make, which may be minutes.
  std::vector<FlightId> waiting;
  for (const auto& [id, flight] : flights_.all()) {
    if (flight->state == State::kLooking && flight->claims) waiting.push_back(id);
  }
  for (const FlightId id : waiting) EndAll(*flights_.Find(id), RefusalOfStopping());
  // Who was lost does not come back to a daemon that stops.
  std::vector<CallId> lost;
  for (const auto& [id, call] : calls_.all()) {
    if (call.lost) lost.push_back(id);
  }
  for (const CallId id : lost) {
    if (Flight* const flight = Unsubscribe(id); flight != nullptr) Leave(*flight);
  }
}

// ---- Chores ----------------------------------------------------------------------------------

void FlightTable::Chore(uint64_t number, const Caller& caller, TaskQueue::Kind kind) {
  tasks_.PushChore(number, caller, kind, flights_.NextNumber());
  StartTasks();
}

bool FlightTable::MayMeasureFor(const std::string& tenant) const {
  const bool idle = queued_ == 0 && tasks_.queue().waiting_for_gpus() == 0 &&
                    tasks_.queue().gpus_busy() < options_.tasks.gpus;
  return idle && !drained_ && admission_.HasQuotaLeft(tenant);
}

// ---- For people ------------------------------------------------------------------------------

std::string FlightTable::JobOf(const std::string& slot) const {
  const Flight* const flight = flights_.OfSlot(slot);
  return flight == nullptr ? "" : flight->request->job_id;
}

FlightRequestPtr FlightTable::RequestOfJob(const std::string& job_id) const {
  const Flight* const flight = flights_.OfJob(job_id);
  return flight == nullptr ? nullptr : flight->request;
}

MonotonicTime FlightTable::DeadlineOf(FlightId id) const {
  const Flight* const flight = flights_.Find(id);
  return flight == nullptr ? MonotonicTime::min() : calls_.LatestDeadline(*flight);
}

std::map<std::string, FlightTable::TenantLoad> FlightTable::Tenants() const {
  std::map<std::string, TenantLoad> loads;
  for (const auto& [tenant, seconds] : admission_.TakenLastHour()) loads[tenant].seconds_last_hour = seconds;
  for (const auto& [id, flight] : flights_.all()) {
    TenantLoad& load = loads[flight->request->caller.tenant];
    const bool here = flight->state != State::kLooking && flight->state != State::kUploading;
    ++(!here ? load.waiting : flight->state == State::kQueued ? load.queued : load.running);
  }
  for (const auto& [tenant, placed] : places_.of_tenants()) loads[tenant].graphs_bytes = placed.bytes;
  return loads;
}

FlightTable::State FlightTable::StateOfFlight(FlightId id) const {
  const Flight* const flight = flights_.Find(id);
  return flight == nullptr ? State::kNone : flight->state;
}

FlightId FlightTable::FlightOfCall(CallId id) const {
  const WaitingCall* const waiting = calls_.Find(id);
  return waiting == nullptr ? 0 : waiting->flight;
}

FlightId FlightTable::FlightOfKey(const std::string& slot) const {
  const Flight* const flight = flights_.OfSlot(slot);
  return flight == nullptr ? 0 : flight->id;
}

}  // namespace kiln
