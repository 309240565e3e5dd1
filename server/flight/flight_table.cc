#include "server/flight/flight_table.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/guards.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr char kPushback[] = "kiln/pushback-milliseconds";
constexpr double kPushbackSecondsMin = 0.1;
constexpr double kPushbackSecondsMax = 30;
constexpr double kTypicalOf = 16;  // compiles, of which the mean is moved by the last

}  // namespace

const char* FlightStateName(FlightTable::State state) {
  switch (state) {
    case FlightTable::State::kNone: return "none";
    case FlightTable::State::kLooking: return "looking";
    case FlightTable::State::kUploading: return "uploading";
    case FlightTable::State::kQueued: return "queued";
    case FlightTable::State::kRunning: return "running";
    case FlightTable::State::kStoring: return "storing";
    case FlightTable::State::kDying: return "dying";
  }
  return "?";
}

FlightTable::FlightTable(Options options, const Clock* clock, Workers* workers, FlightStore* store)
    : options_(std::move(options)), clock_(clock), workers_(workers), store_(store) {}

// ---- Calls -----------------------------------------------------------------------------------

void FlightTable::Compile(CallId id, FlightRequest request, FlightCall call) {
  if (request.debug) {
    Flight& flight = NewFlight(std::move(request), "");
    Subscribe(flight, id, std::move(call), /*uploads=*/true);
    AwaitUpload(flight);
    return;
  }
  if (const auto found = by_slot_.find(request.compile_key); found != by_slot_.end()) {
    Flight& flight = *Find(found->second);
    Subscribe(flight, id, std::move(call), /*uploads=*/true);
    Join(flight, id);
    return;
  }
  const std::string key = request.compile_key;
  Flight& flight = NewFlight(std::move(request), key);
  Subscribe(flight, id, std::move(call), /*uploads=*/true);
  store_->Look(flight.id, key);
}

void FlightTable::Attach(CallId id, const std::string& ns, const std::string& job_id, FlightCall call) {
  const auto found = by_job_.find(job_id);
  Flight* flight = found == by_job_.end() ? nullptr : Find(found->second);
  if (flight == nullptr || flight->request->debug || flight->request->ns != ns) {
    call.subscriber->End(absl::NotFoundError("no such job runs"));
    return;
  }
  Subscribe(*flight, id, std::move(call), /*uploads=*/false);
  Join(*flight, id);
}

void FlightTable::Subscribe(Flight& flight, CallId id, FlightCall call, bool uploads) {
  if (call.deadline != MonotonicTime::max()) timers_.insert({call.deadline, {Timer::kCall, id}});
  Waiting waiting;
  waiting.call = std::move(call);
  waiting.flight = flight.id;
  waiting.uploads = uploads;
  calls_.emplace(id, std::move(waiting));
  flight.waiters.insert(id);
}

void FlightTable::Join(Flight& flight, CallId id) {
  if (flight.state == State::kLooking) return;
  Announce(flight, id);
  if (flight.state == State::kUploading) {
    // Whoever was asked before has had his time, and there was nobody else.
    if (!flight.patience.has_value()) AskForUpload(flight);
    return;
  }
  KeepGraph(id);
  for (const auto& [kind, event] : flight.progress) calls_.at(id).call.subscriber->Event(event);
  if (flight.artifact != nullptr) AnswerFromArtifact(flight, id);
}

void FlightTable::Announce(Flight& flight, CallId id) {
  Waiting& waiting = calls_.at(id);
  if (waiting.announced) return;
  waiting.announced = true;
  waiting.call.subscriber->Event(
      QueuedEvent(flight.request->job_id, flight.position, /*joined=*/id != flight.leader));
}

// There is a graph: whoever has not uploaded his need not.
void FlightTable::KeepGraph(CallId id) {
  Waiting& waiting = calls_.at(id);
  if (waiting.keeps_graph) return;
  waiting.keeps_graph = true;
  waiting.call.subscriber->Graph(Subscriber::Upload::kNever);
}

void FlightTable::Cancel(CallId id) {
  if (Flight* flight = Unsubscribe(id); flight != nullptr) Leave(*flight);
}

// ---- The store's word ------------------------------------------------------------------------

void FlightTable::Looked(FlightId id, KnownKeyPtr known) {
  Flight* flight = Find(id);
  if (flight == nullptr || flight->state != State::kLooking) return;
  AnswerFromKnown(*flight, *known);
  if (flight->waiters.empty()) {
    Erase(*flight);
  } else if (absl::Status refusal = RefusalOf(*known, clock_->WallNow()); !refusal.ok()) {
    EndFailed(*flight, refusal);
  } else if (flight->request->graph == nullptr) {
    AwaitUpload(*flight);
  } else if (absl::Status room = TakePlace(*flight); !room.ok()) {
    EndAll(*flight, room);
  } else {
    Enqueue(*flight, *flight->waiters.begin());
  }
}

// Those whom the store has something for, and ends their calls. What it has is said now and never later:
// it may be evicted at any time.
void FlightTable::AnswerFromKnown(Flight& flight, const KnownKey& known) {
  absl::flat_hash_map<const KnownVariant*, FlightEventPtr> events;
  const std::vector<CallId> waiters(flight.waiters.begin(), flight.waiters.end());
  for (const CallId waiter : waiters) {
    Waiting& waiting = calls_.at(waiter);
    waiting.looked = true;
    const KnownVariant* variant = ChooseVariant(known, waiting.call.hints);
    if (variant == nullptr) continue;
    FlightEventPtr& done = events[variant];
    if (done == nullptr) {
      v1::LookupReply reply;
      reply.ParseFromString(*variant->reply);
      done = DoneEvent(std::move(*reply.mutable_hit()->mutable_manifest()), variant->durable, 0);
    }
    waiting.call.subscriber->Event(done);
    if (!variant->durable) {
      waiting.call.subscriber->Event(StoredEvent(absl::UnavailableError("the program is in memory only")));
    }
    EndCall(waiter, absl::OkStatus());
  }
}

// ---- The upload ------------------------------------------------------------------------------

void FlightTable::AwaitUpload(Flight& flight) {
  if (absl::Status room = TakePlace(flight); !room.ok()) {
    EndAll(flight, room);
    return;
  }
  flight.state = State::kUploading;
  if (!AskForUpload(flight)) {
    EndAll(flight, absl::NotFoundError("the job ended before it had its graph"));
    return;
  }
  // The leader is told of its place when there is a graph to queue.
  for (const CallId waiter : flight.waiters) {
    if (waiter != flight.leader) Announce(flight, waiter);
  }
}

// Asks the next caller that has a graph; false where none is left to ask and none has been asked.
bool FlightTable::AskForUpload(Flight& flight) {
  bool pending = false;
  for (const CallId waiter : flight.waiters) {
    Waiting& waiting = calls_.at(waiter);
    pending = pending || waiting.asked;
    if (!waiting.uploads || waiting.asked) continue;
    waiting.asked = true;
    flight.leader = waiter;
    SetPatience(flight, clock_->Now() + options_.upload_patience);
    waiting.call.subscriber->Graph(Subscriber::Upload::kNow);
    return true;
  }
  SetPatience(flight, std::nullopt);
  return pending;
}

void FlightTable::SetPatience(Flight& flight, std::optional<MonotonicTime> until) {
  if (flight.patience.has_value()) timers_.erase({*flight.patience, {Timer::kFlight, flight.id}});
  flight.patience = until;
  if (until.has_value()) timers_.insert({*until, {Timer::kFlight, flight.id}});
}

void FlightTable::Uploaded(CallId id, absl::StatusOr<GraphPtr> graph) {
  const auto found = calls_.find(id);
  if (found == calls_.end()) return;
  Flight& flight = *Find(found->second.flight);
  if (flight.state != State::kUploading || !found->second.asked) return;
  if (!graph.ok()) {
    EndCall(id, graph.status());
    Leave(flight);
    return;
  }
  SetPatience(flight, std::nullopt);
  flight.request->graph = *std::move(graph);
  found->second.keeps_graph = true;
  if (found->second.looked || flight.request->debug) {
    Enqueue(flight, id);
    return;
  }
  // It joined after the look; the store may have what fits it.
  EndFlight(flight, std::vector<CallId>(flight.waiters.begin(), flight.waiters.end()));
}

// ---- Places and work -------------------------------------------------------------------------

absl::Status FlightTable::TakePlace(Flight& flight) {
  if (draining_) return absl::UnavailableError("the daemon is stopping");
  const FlightRequest& request = *flight.request;
  while (PlacesAreTaken() || graphs_bytes_ + request.bytes > options_.graphs_bytes_max) {
    if (!Displace(request)) return Refusal();
  }
  flight.place = true;
  ++places_;
  graphs_bytes_ += request.bytes;
  Placed& placed = placed_[request.caller.tenant];
  placed.flights.insert(flight.id);
  placed.bytes += request.bytes;
  return absl::OkStatus();
}

// Takes a place from the tenant that holds most of what is short, places or bytes, where that is more than
// the newcomer comes to.
bool FlightTable::Displace(const FlightRequest& newcomer) {
  const bool places = PlacesAreTaken();
  const auto held = [places](const Placed& placed) { return places ? placed.flights.size() : placed.bytes; };
  const auto own = placed_.find(newcomer.caller.tenant);
  uint64_t most = (own == placed_.end() ? 0 : held(own->second)) + (places ? 1 : newcomer.bytes);
  Flight* latest = nullptr;
  for (const auto& [tenant, placed] : placed_) {
    if (held(placed) <= most) continue;
    const auto waits = std::find_if(placed.flights.rbegin(), placed.flights.rend(), [this](FlightId id) {
      const State state = StateOfFlight(id);
      return state == State::kQueued || state == State::kUploading;
    });
    if (waits == placed.flights.rend()) continue;
    most = held(placed);
    latest = Find(*waits);
  }
  if (latest == nullptr) return false;
  EndAll(*latest, Refusal());
  return true;
}

absl::Status FlightTable::Refusal() const {
  const double rounds = static_cast<double>(places_) / static_cast<double>(options_.runners);
  const double seconds = std::clamp(rounds * typical_seconds_, kPushbackSecondsMin, kPushbackSecondsMax);
  absl::Status status = absl::ResourceExhaustedError(
      absl::StrCat("the queue is full (", places_ - running_, " waiting); try again later"));
  status.SetPayload(kPushback, absl::Cord(absl::StrCat(static_cast<int64_t>(seconds * 1e3))));
  return status;
}

std::optional<std::chrono::milliseconds> PushbackOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kPushback);
  int64_t milliseconds = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &milliseconds)) return std::nullopt;
  return std::chrono::milliseconds(milliseconds);
}

void FlightTable::GivePlaceBack(Flight& flight) {
  if (!flight.place) return;
  flight.place = false;
  --places_;
  graphs_bytes_ -= flight.request->bytes;
  const auto placed = placed_.find(flight.request->caller.tenant);
  placed->second.flights.erase(flight.id);
  placed->second.bytes -= flight.request->bytes;
  if (placed->second.flights.empty()) placed_.erase(placed);
}

void FlightTable::Enqueue(Flight& flight, CallId leader) {
  flight.leader = leader;
  flight.request->hints = calls_.at(leader).call.hints;
  flight.state = State::kQueued;
  flight.position = static_cast<uint32_t>(queue_.size() + running_);
  queue_.Push({flight.id, flight.request->caller, flight.id, 0, typical_seconds_});
  for (const CallId waiter : flight.waiters) {
    Announce(flight, waiter);
    KeepGraph(waiter);
  }
  StartWaiting();
}

void FlightTable::StartWaiting() {
  while (running_ < options_.runners) {
    const std::optional<FairQueue::TaskId> next = queue_.Pop();
    if (!next.has_value()) return;
    Flight& flight = *Find(*next);
    flight.state = State::kRunning;
    flight.started = clock_->Now();
    flight.charged_seconds = typical_seconds_;
    ++running_;
    workers_->Start(flight.id, flight.request);
  }
}

// The work has ended, well or not: what it took is its tenant's.
void FlightTable::EndWork(Flight& flight) {
  const double seconds = SecondsBetween(flight.started, clock_->Now());
  queue_.Correct(flight.request->caller, seconds - flight.charged_seconds);
  if (flight.state == State::kRunning) typical_seconds_ += (seconds - typical_seconds_) / kTypicalOf;
}

void FlightTable::Progress(FlightId id, absl::string_view phase, FlightEventPtr event) {
  Flight* flight = Find(id);
  if (flight == nullptr || flight->state != State::kRunning) return;
  flight->phase = std::string(phase);
  if (event == nullptr) return;
  const v1::CompileEvent& message = event->message();
  if (message.has_planned()) flight->kernels_total = message.planned().kernels();
  if (message.has_emitted()) flight->kernels_done = message.emitted().done();
  if (!message.has_debug()) flight->progress[message.kind_case()] = event;
  for (const CallId waiter : flight->waiters) calls_.at(waiter).call.subscriber->Event(event);
}

void FlightTable::Compiled(FlightId id, absl::StatusOr<std::shared_ptr<const Artifact>> artifact,
                           uint32_t workers_lost) {
  Flight* flight = Find(id);
  if (flight == nullptr || (flight->state != State::kRunning && flight->state != State::kDying)) return;
  EndWork(*flight);
  if (flight->state == State::kDying || !artifact.ok()) {
    --running_;
    EndFailed(*flight, artifact.status());
    StartWaiting();
    return;
  }
  flight->state = State::kStoring;
  flight->artifact = *std::move(artifact);
  flight->done = DoneEvent(flight->artifact->signed_manifest, /*durable=*/false, workers_lost);
  // First: who is answered may fetch at once.
  store_->Write(id, flight->artifact);
  const std::vector<CallId> waiters(flight->waiters.begin(), flight->waiters.end());
  for (const CallId waiter : waiters) AnswerFromArtifact(*flight, waiter);
}

void FlightTable::AnswerFromArtifact(Flight& flight, CallId id) {
  Waiting& waiting = calls_.at(id);
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
  Flight* flight = Find(id);
  if (flight == nullptr || flight->state != State::kStoring) return;
  --running_;
  GivePlaceBack(*flight);
  const FlightEventPtr stored = StoredEvent(status);
  std::vector<CallId> unserved;
  const std::vector<CallId> waiters(flight->waiters.begin(), flight->waiters.end());
  for (const CallId waiter : waiters) {
    const Waiting& waiting = calls_.at(waiter);
    if (!waiting.served) {
      unserved.push_back(waiter);
      continue;
    }
    waiting.call.subscriber->Event(stored);
    EndCall(waiter, absl::OkStatus());
  }
  EndFlight(*flight, unserved);
  StartWaiting();
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
    calls_.at(waiter).flight = next.id;
    next.waiters.insert(waiter);
  }
  store_->Look(next.id, request->compile_key);
}

// ---- Ends ------------------------------------------------------------------------------------

FlightTable::Flight* FlightTable::Unsubscribe(CallId id) {
  const auto found = calls_.find(id);
  if (found == calls_.end()) return nullptr;
  Flight* flight = Find(found->second.flight);
  timers_.erase({found->second.call.deadline, {Timer::kCall, id}});
  flight->waiters.erase(id);
  if (flight->leader == id) flight->leader = 0;
  calls_.erase(found);
  return flight;
}

void FlightTable::EndCall(CallId id, const absl::Status& status) {
  const std::shared_ptr<Subscriber> subscriber = calls_.at(id).call.subscriber;
  Unsubscribe(id);
  subscriber->End(status);
}

void FlightTable::EndAll(Flight& flight, const absl::Status& status) {
  const std::vector<CallId> waiters(flight.waiters.begin(), flight.waiters.end());
  for (const CallId waiter : waiters) EndCall(waiter, status);
  Erase(flight);
}

// The compile's own verdict, for everybody; a dying flight has nobody.
void FlightTable::EndFailed(Flight& flight, const absl::Status& status) {
  if (absl::IsCancelled(status)) {  // its worker was stopped though there are callers
    EndAll(flight, absl::UnavailableError("the daemon is stopping"));
    return;
  }
  const FlightEventPtr failed = FailedEvent(status);
  for (const CallId waiter : flight.waiters) calls_.at(waiter).call.subscriber->Event(failed);
  EndAll(flight, absl::OkStatus());
}

// A caller is gone from a flight that has not ended.
void FlightTable::Leave(Flight& flight) {
  if (flight.state == State::kStoring) return;
  if (!flight.waiters.empty()) {
    if (flight.state != State::kUploading) return;
    // Somebody else's upload is on its way, or is asked for now, or can never come.
    for (const CallId waiter : flight.waiters) {
      if (calls_.at(waiter).asked) return;
    }
    if (!AskForUpload(flight)) EndAll(flight, absl::NotFoundError("the job ended before it had its graph"));
    return;
  }
  if (flight.state != State::kRunning) {
    Erase(flight);
    return;
  }
  workers_->Stop(flight.id);
  flight.state = State::kDying;
  by_slot_.erase(flight.slot);
  by_job_.erase(flight.request->job_id);
}

void FlightTable::Tick() {
  const MonotonicTime now = clock_->Now();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const auto [kind, id] = timers_.begin()->second;
    timers_.erase(timers_.begin());
    if (kind == Timer::kFlight) {
      Flight& flight = *Find(id);
      flight.patience.reset();
      AskForUpload(flight);
      continue;
    }
    Flight& flight = *Find(calls_.at(id).flight);
    EndCall(id, absl::DeadlineExceededError("the compile took longer than the caller waits"));
    Leave(flight);
  }
}

std::optional<MonotonicTime> FlightTable::NextTick() const {
  if (timers_.empty()) return std::nullopt;
  return timers_.begin()->first;
}

void FlightTable::Drain() { draining_ = true; }

// ---- Flights ---------------------------------------------------------------------------------

FlightTable::Flight* FlightTable::Find(FlightId id) {
  const auto found = flights_.find(id);
  return found == flights_.end() ? nullptr : found->second.get();
}

// An empty slot is one that nobody can name.
FlightTable::Flight& FlightTable::NewFlight(FlightRequest request, std::string slot) {
  auto flight = std::make_unique<Flight>();
  flight->id = ++last_flight_;
  request.job_id = options_.new_job_id();
  request.created = clock_->Now();
  request.program = flight->id;
  flight->request = std::make_shared<FlightRequest>(std::move(request));
  flight->slot = std::move(slot);
  if (!flight->slot.empty()) by_slot_[flight->slot] = flight->id;
  by_job_[flight->request->job_id] = flight->id;
  Flight& made = *flight;
  flights_[made.id] = std::move(flight);
  return made;
}

void FlightTable::Erase(Flight& flight) {
  SetPatience(flight, std::nullopt);
  if (flight.state == State::kQueued) queue_.Remove(flight.id);
  GivePlaceBack(flight);
  if (const auto found = by_slot_.find(flight.slot); found != by_slot_.end() && found->second == flight.id) {
    by_slot_.erase(found);
  }
  if (const auto found = by_job_.find(flight.request->job_id);
      found != by_job_.end() && found->second == flight.id) {
    by_job_.erase(found);
  }
  flights_.erase(flight.id);
}

// ---- For people ------------------------------------------------------------------------------

std::string FlightTable::JobOf(const std::string& compile_key) const {
  const auto found = by_slot_.find(compile_key);
  return found == by_slot_.end() ? "" : flights_.at(found->second)->request->job_id;
}

std::vector<v1::JobInfo> FlightTable::Jobs() const {
  std::vector<v1::JobInfo> jobs;
  const MonotonicTime now = clock_->Now();
  for (const auto& [id, flight] : flights_) {
    v1::JobInfo& job = jobs.emplace_back();
    job.set_job_id(flight->request->job_id);
    job.set_compile_key(flight->request->compile_key);
    job.set_title(flight->request->notes.title());
    job.set_phase(flight->state == State::kRunning ? flight->phase : FlightStateName(flight->state));
    job.set_kernels_done(flight->kernels_done);
    job.set_kernels_total(flight->kernels_total);
    job.set_waiters(static_cast<uint32_t>(flight->waiters.size()));
    job.set_seconds(SecondsBetween(flight->request->created, now));
  }
  std::sort(jobs.begin(), jobs.end(),
            [](const v1::JobInfo& a, const v1::JobInfo& b) { return a.seconds() > b.seconds(); });
  return jobs;
}

FlightTable::State FlightTable::StateOfFlight(FlightId id) const {
  const auto found = flights_.find(id);
  return found == flights_.end() ? State::kNone : found->second->state;
}

FlightId FlightTable::FlightOfCall(CallId id) const {
  const auto found = calls_.find(id);
  return found == calls_.end() ? 0 : found->second.flight;
}

FlightId FlightTable::FlightOfKey(const std::string& compile_key) const {
  const auto found = by_slot_.find(compile_key);
  return found == by_slot_.end() ? 0 : found->second;
}

}  // namespace kiln
