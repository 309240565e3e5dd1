#include "server/flight/flight_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/graph/guards.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "server/flight/refusals.h"

namespace kiln {
namespace {

constexpr double kUnknownCompileSeconds = 1;
constexpr std::chrono::milliseconds kTimeLate(1);  // so that what is looked at then has too little left

// In the place of a caller whose connection broke.
class Nobody final : public Subscriber {
 public:
  void Event(const FlightEventPtr&) override {}
  void Graph(Upload) override {}
  void End(const absl::Status&) override {}
};

}  // namespace

std::string FlightSlot(const std::string& compile_key, const v1::Gang& gang, const v1::Hints& hints) {
  return gang.id().empty() ? compile_key
                           : absl::StrCat(compile_key, gang.id(), SerializeDeterministic(hints));
}

const char* FlightStateName(FlightTable::State state) {
  switch (state) {
    case FlightTable::State::kNone: return "none";
    case FlightTable::State::kLooking: return "looking";
    case FlightTable::State::kUploading: return "uploading";
    case FlightTable::State::kQueued: return "queued";
    case FlightTable::State::kRunning: return "running";
    case FlightTable::State::kWaiting: return "waiting";
    case FlightTable::State::kStoring: return "storing";
    case FlightTable::State::kDying: return "dying";
  }
  return "?";
}

FlightTable::FlightTable(Options options, const Clock* clock, Workers* workers, FlightStore* store,
                         FlightClaims* claims)
    : options_(std::move(options)),
      clock_(clock),
      workers_(workers),
      store_(store),
      claims_(claims),
      tasks_(options_.tasks),
      callers_(options_.callers_bytes_max),
      quotas_(options_.quotas) {}

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
  if (const auto found = by_slot_.find(slot); found != by_slot_.end()) {
    Flight& flight = *Find(found->second);
    Subscribe(flight, id, std::move(call), /*uploads=*/true);
    Join(flight, id);
    return;
  }
  Flight& flight = NewFlight(std::move(request), slot);
  Subscribe(flight, id, std::move(call), /*uploads=*/true);
  store_->Look(flight.id, *flight.request);
}

void FlightTable::Attach(CallId id, const std::string& ns, const std::string& job_id, FlightCall call) {
  const auto found = by_job_.find(job_id);
  Flight* flight = found == by_job_.end() ? nullptr : Find(found->second);
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

void FlightTable::Subscribe(Flight& flight, CallId id, FlightCall call, bool uploads) {
  if (call.deadline != MonotonicTime::max()) timers_.insert({call.deadline, {Timer::kCall, id}});
  callers_.Add(flight.request->caller.tenant, call.bytes);
  Waiting waiting;
  waiting.call = std::move(call);
  waiting.until = waiting.call.deadline;
  waiting.flight = flight.id;
  waiting.uploads = uploads;
  calls_.emplace(id, std::move(waiting));
  AddWaiter(flight, id);
}

void FlightTable::AddWaiter(Flight& flight, CallId id) {
  flight.waiters.insert(id);
  if (calls_.at(id).call.work_class == Caller::Class::kBackground) return;
  flight.work_class = Caller::Class::kInteractive;
  for (const TaskId task : flight.waiting) tasks_.MakeInteractive(task);
}

Caller FlightTable::CallerOf(const Flight& flight) const {
  Caller caller = flight.request->caller;
  caller.work_class = flight.work_class;
  return caller;
}

void FlightTable::Join(Flight& flight, CallId id) {
  if (flight.state == State::kLooking) return;
  Announce(flight, id);
  if (flight.state == State::kUploading) {
    // Whoever was asked before has had his time, and there was nobody else.
    if (flight.due.has_value()) return;
    if (absl::Status asked = AskForUpload(flight); !asked.ok()) EndAll(flight, asked);
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

void FlightTable::Cancel(CallId id, Gone gone) {
  if (gone == Gone::kLost && AwaitReturn(id)) return;
  if (const auto found = calls_.find(id); found != calls_.end() && found->second.lost) return;
  if (Flight* flight = Unsubscribe(id); flight != nullptr) Leave(*flight);
  StartTasks();
}

// A flight without its graph has nothing to come back to. Others that wait may leave before he is back.
bool FlightTable::AwaitReturn(CallId id) {
  const auto found = calls_.find(id);
  if (found == calls_.end() || found->second.lost) return false;
  Waiting& waiting = found->second;
  const Flight& flight = *Find(waiting.flight);
  const bool works =
      flight.state == State::kQueued || flight.state == State::kRunning || flight.state == State::kWaiting;
  if (!works || flight.request->debug) return false;
  timers_.erase({waiting.until, {Timer::kCall, id}});
  waiting.until = std::min(waiting.call.deadline, clock_->Now() + options_.lost_patience);
  timers_.insert({waiting.until, {Timer::kCall, id}});
  waiting.call.subscriber = std::make_shared<Nobody>();
  waiting.lost = true;
  return true;
}

// Who names the job is one of those that were lost: one of them is there again.
void FlightTable::TakePlaceOfLost(const Flight& flight) {
  const auto lost = std::find_if(flight.waiters.begin(), flight.waiters.end(),
                                 [this](CallId waiter) { return calls_.at(waiter).lost; });
  if (lost != flight.waiters.end()) Unsubscribe(*lost);
}

// ---- The store's word ------------------------------------------------------------------------

void FlightTable::Looked(FlightId id, KnownKeyPtr known, Where where) {
  Flight* flight = Find(id);
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
    claims_->LookFurther(id, *flight->request, calls_.at(*flight->waiters.begin()).call.hints,
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
    Waiting& waiting = calls_.at(waiter);
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
    if (waiter != flight.leader) Announce(flight, waiter);
  }
}

// Asks the next caller that has a graph and whose upload there is room for. An error where nobody's is on its
// way then.
absl::Status FlightTable::AskForUpload(Flight& flight) {
  bool pending = false;
  for (const CallId waiter : flight.waiters) pending = pending || calls_.at(waiter).asked;
  bool full = false;
  for (const CallId waiter : flight.waiters) {
    Waiting& waiting = calls_.at(waiter);
    if (!waiting.uploads || waiting.asked) continue;
    // What is slow takes nobody's place, but where there is nothing else to wait for.
    bool room = HasRoomToAsk(flight, waiting.call);
    while (!room && !pending &&
           Displace(flight.request->caller.tenant, waiting.call.upload_bytes, Short::kBytes)) {
      room = HasRoomToAsk(flight, waiting.call);
    }
    full = full || !room;
    if (!room) continue;
    waiting.asked = true;
    ChargeAsked(flight, flight.asked_bytes + waiting.call.upload_bytes);
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
  if (flight.due.has_value()) timers_.erase({*flight.due, {Timer::kFlight, flight.id}});
  flight.due = due;
  if (due.has_value()) timers_.insert({*due, {Timer::kFlight, flight.id}});
}

bool FlightTable::Unpacks(CallId id) {
  const auto found = calls_.find(id);
  if (found == calls_.end() || !found->second.asked) return false;
  const Flight& flight = *Find(found->second.flight);
  if (flight.state != State::kUploading) return false;
  unpacking_[id] = {flight.request->caller.tenant, found->second.call.upload_bytes};
  return true;
}

void FlightTable::Uploaded(CallId id, absl::StatusOr<GraphPtr> graph) {
  EndUnpacking(id);
  TakeUpload(id, std::move(graph));
  StartTasks();
}

void FlightTable::TakeUpload(CallId id, absl::StatusOr<GraphPtr> graph) {
  const auto found = calls_.find(id);
  if (found == calls_.end()) return;
  Flight& flight = *Find(found->second.flight);
  if (flight.state != State::kUploading || !found->second.asked) return;
  if (!graph.ok()) {
    EndCall(id, graph.status());
    Leave(flight);
    return;
  }
  SetDue(flight, std::nullopt);
  ChargeAsked(flight, 0);
  for (const CallId waiter : flight.waiters) ChargeUnpacking(waiter);
  if (absl::Status charged = ChargeGraph(flight, (*graph)->size()); !charged.ok()) {
    EndAll(flight, charged);
    return;
  }
  flight.request->graph = *std::move(graph);
  found->second.keeps_graph = true;
  if (found->second.looked || flight.request->debug) {
    Enqueue(flight, id);
  } else {
    // It joined after the look; the store may have what fits it.
    EndFlight(flight, std::vector<CallId>(flight.waiters.begin(), flight.waiters.end()));
  }
}

// ---- Places and work -------------------------------------------------------------------------

// Whether anything new is begun at all.
absl::Status FlightTable::CheckBegins() const {
  if (draining_) return RefusalOfStopping();
  return drained_ ? RefusalOfDrained() : absl::OkStatus();
}

absl::Status FlightTable::TakePlace(Flight& flight) {
  KILN_RETURN_IF_ERROR(CheckBegins());
  const FlightRequest& request = *flight.request;
  if (!flight.elsewhere) {
    KILN_RETURN_IF_ERROR(CheckQuota(flight));
    KILN_RETURN_IF_ERROR(CheckWait(flight));
  }
  while (PlacesAreTaken() || graphs_bytes_ + request.bytes > options_.graphs_bytes_max) {
    const Short what = PlacesAreTaken() ? Short::kPlaces : Short::kBytes;
    if (!Displace(request.caller.tenant, request.bytes, what)) return QueueIsFull(flight);
  }
  callers_.Take(request.caller.tenant, std::exchange(flight.caller_bytes, 0));
  flight.place = true;
  ++places_;
  graphs_bytes_ += request.bytes;
  Placed& placed = placed_[request.caller.tenant];
  placed.flights.insert(flight.id);
  placed.bytes += request.bytes;
  return absl::OkStatus();
}

// The place was taken for the size that the first caller gave, and another's upload may be larger.
absl::Status FlightTable::ChargeGraph(Flight& flight, uint64_t bytes) {
  if (bytes <= flight.request->graph_bytes) return absl::OkStatus();
  GivePlaceBack(flight);
  flight.request->bytes += bytes - flight.request->graph_bytes;
  flight.request->graph_bytes = bytes;
  return TakePlace(flight);
}

// It is there, whatever may be.
void FlightTable::ChargeHeld(Flight& flight, uint64_t bytes) {
  if (!flight.place || bytes <= flight.held_bytes) return;
  const uint64_t more = bytes - std::exchange(flight.held_bytes, bytes);
  graphs_bytes_ += more;
  placed_.at(flight.request->caller.tenant).bytes += more;
}

// Beside places: what is kept of a call while it is looked up and waits.
absl::Status FlightTable::CheckCallers(const std::string& tenant, uint64_t bytes) const {
  if (callers_.Fits(tenant, bytes)) return absl::OkStatus();
  return RefusalOfManyCallers(compile_seconds_.value() > 0 ? compile_seconds_.value()
                                                           : kUnknownCompileSeconds);
}

// The place is for one graph: what uploads on their way take beyond it is charged beside it.
void FlightTable::ChargeAsked(Flight& flight, uint64_t asked_bytes) {
  flight.asked_bytes = asked_bytes;
  const uint64_t graph = flight.request->graph_bytes;
  const uint64_t beside = asked_bytes > graph ? asked_bytes - graph : 0;
  const uint64_t before = std::exchange(flight.upload_bytes, beside);
  graphs_bytes_ = graphs_bytes_ - before + beside;
  uint64_t& of_tenant = placed_.at(flight.request->caller.tenant).bytes;
  of_tenant = of_tenant - before + beside;
}

// Its flight has stopped to, and it is there until it is unpacked.
void FlightTable::ChargeUnpacking(CallId id) {
  const auto found = unpacking_.find(id);
  if (found == unpacking_.end() || std::exchange(found->second.charged, true)) return;
  graphs_bytes_ += found->second.bytes;
  placed_[found->second.tenant].bytes += found->second.bytes;
}

void FlightTable::EndUnpacking(CallId id) {
  const auto over = unpacking_.extract(id);
  if (over.empty() || !over.mapped().charged) return;
  TakeFrom(over.mapped().tenant, over.mapped().bytes);
}

bool FlightTable::HasRoomToAsk(const Flight& flight, const FlightCall& call) const {
  const uint64_t graph = flight.request->graph_bytes;
  const uint64_t asked = flight.asked_bytes + call.upload_bytes;
  const uint64_t beside = asked > graph ? asked - graph : 0;
  return beside <= flight.upload_bytes ||
         graphs_bytes_ - flight.upload_bytes + beside <= options_.graphs_bytes_max;
}

// Takes a place from the tenant that holds most of what is short, where that is more than the newcomer comes
// to.
bool FlightTable::Displace(const std::string& tenant, uint64_t bytes, Short what) {
  const bool places = what == Short::kPlaces;
  const auto held = [places](const Placed& placed) { return places ? placed.flights.size() : placed.bytes; };
  const auto own = placed_.find(tenant);
  uint64_t most = (own == placed_.end() ? 0 : held(own->second)) + (places ? 1 : bytes);
  Flight* latest = nullptr;
  for (const auto& [other, placed] : placed_) {
    if (held(placed) <= most) continue;
    const auto waits = std::find_if(placed.flights.rbegin(), placed.flights.rend(), [this](FlightId id) {
      const State state = StateOfFlight(id);
      return state == State::kQueued || state == State::kUploading || state == State::kWaiting;
    });
    if (waits == placed.flights.rend()) continue;
    most = held(placed);
    latest = Find(*waits);
  }
  if (latest == nullptr) return false;
  EndAll(*latest, QueueIsFull(*latest));
  return true;
}

absl::Status FlightTable::QueueIsFull(const Flight& flight) {
  const double mean = compile_seconds_.value() > 0 ? compile_seconds_.value() : kUnknownCompileSeconds;
  const double rounds = static_cast<double>(places_) / static_cast<double>(options_.tasks.workers);
  const double again = std::max(rounds * mean, SecondsBehindExpected(flight));
  return ComesAgain(flight, RefusalOfFullQueue(places_ - begun_, again));
}

// Until those of its tenant are served who were told before to come again.
double FlightTable::SecondsBehindExpected(const Flight& flight) {
  const Caller caller = CallerOf(flight);
  const size_t expected = expected_.Of(caller.tenant, clock_->Now());
  return expected == 0 ? 0 : tasks_.SecondsOfNew(caller, static_cast<double>(expected) * SecondsOf(flight));
}

absl::Status FlightTable::ComesAgain(const Flight& flight, absl::Status refusal) {
  if (const auto told = PushbackOf(refusal); told.has_value()) {
    expected_.Expect(flight.request->caller.tenant, std::chrono::duration<double>(*told).count(),
                     clock_->Now());
  }
  return refusal;
}

// Clients whose time is over before there is some left do not wait for it.
absl::Status FlightTable::CheckQuota(const Flight& flight) const {
  const std::string& tenant = flight.request->caller.tenant;
  const std::optional<double> until = quotas_.SecondsUntilLeft(tenant, clock_->Now());
  return until.has_value() ? RefusalOfUsedQuota(tenant, options_.quotas.at(tenant), *until)
                           : absl::OkStatus();
}

// What its compile takes of workers, by what others of its tenant and class took: a graph that is smaller
// takes less, and of one that is larger no more is said.
double FlightTable::SecondsOf(const Flight& flight) const {
  const Caller caller = CallerOf(flight);
  const double bytes = static_cast<double>(flight.request->bytes), typical = compile_bytes_of_.Of(caller);
  return compile_seconds_of_.Of(caller) * (typical > 0 ? std::min(1.0, bytes / typical) : 1);
}

// Who would not be served in time is told so now, and not when its time is over.
absl::Status FlightTable::CheckWait(const Flight& flight) {
  return CheckTime(flight, tasks_.SecondsOfNew(CallerOf(flight), SecondsOf(flight)));
}

// Where nothing else waits it is tried: there is nothing better to do, and what it takes is learnt.
absl::Status FlightTable::CheckTime(const Flight& flight, double needs) {
  const MonotonicTime deadline = LatestDeadline(flight);
  if (deadline == MonotonicTime::max()) return absl::OkStatus();
  if (tasks_.waiting_for_workers() <= flight.waiting.size()) return absl::OkStatus();
  const double left = std::max(0.0, SecondsBetween(clock_->Now(), deadline));
  if (needs <= left) return absl::OkStatus();
  const double again = std::max(needs, SecondsBehindExpected(flight)) - left;
  return ComesAgain(flight, RefusalOfLongQueue(needs, again));
}

// A task of it has been taken for a worker or a GPU, whose time has a limit of its own. What has begun is
// given up where all that it is known to need ends too late; the first that has begun never is, so that what
// tasks take is learnt whatever is believed of it.
absl::Status FlightTable::CheckAtFront(const Flight& flight, TaskQueue::Kind kind) {
  if (kind == TaskQueue::Kind::kTune || kind == TaskQueue::Kind::kForward) return absl::OkStatus();
  if (!flight.begun) {
    KILN_RETURN_IF_ERROR(CheckQuota(flight));
    return CheckQueued(flight);
  }
  if (IsFirstBegun(flight)) return absl::OkStatus();
  const Caller caller = CallerOf(flight);
  double seconds = tasks_.Typical(kind, caller);
  for (const TaskId id : flight.waiting) {
    const TaskQueue::Kind other = doing_.at(id).task.kind;
    if (other != TaskQueue::Kind::kTune) seconds += tasks_.Typical(other, caller);
  }
  return CheckTime(flight, tasks_.SecondsOfNext(caller, seconds));
}

absl::Status FlightTable::CheckQueued(const Flight& flight) {
  return CheckTime(flight, tasks_.SecondsOfNext(CallerOf(flight), SecondsOf(flight)));
}

// Of a queued flight: when there is just enough left of it, as far as is known now.
void FlightTable::WatchTime(Flight& flight) {
  const MonotonicTime deadline = LatestDeadline(flight);
  if (deadline == MonotonicTime::max()) return;
  const double needs = tasks_.SecondsOfNext(CallerOf(flight), SecondsOf(flight));
  const MonotonicTime due =
      deadline - std::chrono::microseconds(static_cast<int64_t>(needs * 1e6)) + kTimeLate;
  if (due > clock_->Now()) SetDue(flight, due);
}

bool FlightTable::IsFirstBegun(const Flight& flight) const {
  return std::none_of(flights_.begin(), flights_.end(), [&](const auto& other) {
    const State state = other.second->state;
    return other.first < flight.id && (state == State::kRunning || state == State::kWaiting);
  });
}

MonotonicTime FlightTable::LatestDeadline(const Flight& flight) const {
  MonotonicTime latest = MonotonicTime::min();
  for (const CallId waiter : flight.waiters) latest = std::max(latest, calls_.at(waiter).call.deadline);
  return latest;
}

void FlightTable::GivePlaceBack(Flight& flight) {
  if (!flight.place) return;
  flight.place = false;
  --places_;
  const uint64_t bytes =
      flight.request->bytes + std::exchange(flight.held_bytes, 0) + std::exchange(flight.upload_bytes, 0);
  flight.asked_bytes = 0;
  placed_.at(flight.request->caller.tenant).flights.erase(flight.id);
  TakeFrom(flight.request->caller.tenant, bytes);
}

void FlightTable::TakeFrom(const std::string& tenant, uint64_t bytes) {
  graphs_bytes_ -= bytes;
  const auto placed = placed_.find(tenant);
  placed->second.bytes -= bytes;
  if (placed->second.flights.empty() && placed->second.bytes == 0) placed_.erase(placed);
}

void FlightTable::Enqueue(Flight& flight, CallId leader) {
  flight.leader = leader;
  flight.request->hints = calls_.at(leader).call.hints;
  flight.request->deadline = LatestDeadline(flight);
  flight.request->caller.work_class = flight.work_class;
  flight.state = State::kQueued;
  flight.position = static_cast<uint32_t>(queued_ + begun_);
  ++queued_;
  if (!flight.elsewhere) WatchTime(flight);
  Push(flight, {{flight.elsewhere ? TaskQueue::Kind::kForward : TaskQueue::Kind::kPlan, 0, false}});
  for (const CallId waiter : flight.waiters) {
    Announce(flight, waiter);
    KeepGraph(waiter);
  }
}

void FlightTable::Push(Flight& flight, const std::vector<FlightTask>& tasks) {
  for (const FlightTask& task : tasks) {
    TaskQueue::Task pushed;
    pushed.kind = task.kind;
    pushed.caller = CallerOf(flight);
    pushed.program = flight.request->program;
    pushed.urgent = task.urgent;
    pushed.begins = flight.state == State::kQueued;
    if (flight.state == State::kQueued && !flight.elsewhere)
      pushed.brings = std::max(0.0, SecondsOf(flight) - tasks_.Typical(task.kind, pushed.caller));
    const TaskId id = tasks_.Push(std::move(pushed));
    flight.waiting.insert(id);
    doing_[id] = {flight.id, task, ""};
  }
}

void FlightTable::DropWaiting(Flight& flight) {
  for (const TaskId id : flight.waiting) {
    tasks_.Remove(id);
    doing_.erase(id);
  }
  flight.waiting.clear();
}

void FlightTable::Chore(uint64_t number, const Caller& caller, TaskQueue::Kind kind) {
  TaskQueue::Task task;
  task.kind = kind;
  task.caller = caller;
  task.program = ++last_flight_;
  const TaskId id = tasks_.Push(std::move(task));
  doing_[id] = {0, {kind, number, false}, kind == TaskQueue::Kind::kTune ? caller.tenant : ""};
  StartTasks();
}

bool FlightTable::MayMeasureFor(const std::string& tenant) const {
  const bool idle =
      queued_ == 0 && tasks_.waiting_for_gpus() == 0 && tasks_.gpus_busy() < options_.tasks.gpus;
  return idle && !drained_ && !quotas_.SecondsUntilLeft(tenant, clock_->Now()).has_value();
}

void FlightTable::Withdraw(uint64_t number) {
  const auto found = std::find_if(doing_.begin(), doing_.end(), [number](const auto& doing) {
    return doing.second.flight == 0 && doing.second.task.number == number;
  });
  if (found == doing_.end() || !tasks_.Remove(found->first)) return;
  doing_.erase(found);
}

// After every input that may end a flight: what it held may be what others wait for.
void FlightTable::StartTasks() {
  while (const std::optional<TaskId> id = tasks_.Take(MayBegin())) {
    const Doing& doing = doing_.at(*id);
    const FlightTask task = doing.task;
    Flight* const flight = Find(doing.flight);
    if (flight == nullptr) {
      workers_->Start(*id, 0, nullptr, task);
      continue;
    }
    flight->waiting.erase(*id);
    // The timer may be late.
    if (LatestDeadline(*flight) <= clock_->Now()) {
      doing_.erase(*id);
      tasks_.Ended(*id, 0, /*typical=*/false);
      EndOverdue(*flight);
      continue;
    }
    if (absl::Status refusal = CheckAtFront(*flight, task.kind); !refusal.ok()) {
      doing_.erase(*id);
      tasks_.Ended(*id, 0, /*typical=*/false);
      EndAll(*flight, refusal);
      continue;
    }
    Begin(*flight);
    ++flight->at_work;
    workers_->Start(*id, flight->id, flight->request, task);
  }
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
  const auto found = doing_.find(id);
  if (found == doing_.end() || !tasks_.Runs(id)) return;
  const Doing doing = found->second;
  doing_.erase(found);
  tasks_.Ended(id, seconds, typical);
  if (Flight* flight = Find(doing.flight); flight != nullptr) {
    quotas_.Spend(flight->request->caller.tenant, seconds, clock_->Now());
    if (doing.task.kind != TaskQueue::Kind::kTune) flight->worker_seconds += seconds;
  } else if (!doing.measures_for.empty()) {
    quotas_.Spend(doing.measures_for, seconds, clock_->Now());
  }
  StartTasks();
}

void FlightTable::Asked(FlightId id, const std::vector<FlightTask>& tasks) {
  Flight* flight = Find(id);
  if (flight == nullptr || flight->state != State::kRunning) return;
  Push(*flight, tasks);
  StartTasks();
}

void FlightTable::Advanced(FlightId id, FlightNext next) {
  Flight* flight = Find(id);
  if (flight == nullptr || flight->at_work == 0) return;
  --flight->at_work;
  ChargeHeld(*flight, next.held_bytes);
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
    Push(*flight, next.tasks);
    Settle(*flight);
  }
  StartTasks();
}

// Of one that came back from another daemon without a program.
absl::Status FlightTable::GoOnHere(Flight& flight) {
  if (!std::exchange(flight.elsewhere, false)) return absl::OkStatus();
  flight.phase = "planning";
  return CheckQuota(flight);
}

// Nothing of it is at work: it waits for its turn.
void FlightTable::Settle(Flight& flight) {
  if (flight.at_work > 0) return;
  flight.state = State::kWaiting;
  if (flight.waiting.empty()) EndFailed(flight, absl::InternalError("the compile came to no end"));
}

void FlightTable::Progress(FlightId id, absl::string_view phase, FlightEventPtr event) {
  Flight* flight = Find(id);
  if (flight == nullptr || (flight->state != State::kRunning && flight->state != State::kWaiting)) return;
  flight->phase = std::string(phase);
  if (event == nullptr) return;
  const v1::CompileEvent& message = event->message();
  if (message.has_planned()) flight->kernels_total = message.planned().kernels();
  if (message.has_emitted()) flight->kernels_done = message.emitted().done();
  if (!message.has_debug()) flight->progress[message.kind_case()] = event;
  for (const CallId waiter : flight->waiters) calls_.at(waiter).call.subscriber->Event(event);
}

void FlightTable::Made(Flight& flight, std::shared_ptr<const Artifact> artifact, uint32_t workers_lost) {
  if (!flight.elsewhere) {
    compile_seconds_.Add(flight.worker_seconds);
    const Caller caller = CallerOf(flight);
    compile_seconds_of_.Add(caller, flight.worker_seconds);
    compile_bytes_of_.Add(caller, static_cast<double>(flight.request->bytes));
  }
  flight.state = State::kStoring;
  flight.artifact = std::move(artifact);
  flight.done = DoneEvent(flight.artifact->signed_manifest, /*durable=*/false, workers_lost);
  // First: who is answered may fetch at once.
  store_->Write(flight.id, flight.artifact);
  const std::vector<CallId> waiters(flight.waiters.begin(), flight.waiters.end());
  for (const CallId waiter : waiters) AnswerFromArtifact(flight, waiter);
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
  GivePlaceBack(*flight);
  const FlightEventPtr stored = StoredEvent(status);
  std::vector<CallId> unserved;
  const std::vector<CallId> waiters(flight->waiters.begin(), flight->waiters.end());
  for (const CallId waiter : waiters) {
    const Waiting& waiting = calls_.at(waiter);
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
    calls_.at(waiter).flight = next.id;
    AddWaiter(next, waiter);
  }
  store_->Look(next.id, *request);
}

// ---- Ends ------------------------------------------------------------------------------------

FlightTable::Flight* FlightTable::Unsubscribe(CallId id) {
  const auto found = calls_.find(id);
  if (found == calls_.end()) return nullptr;
  Flight* flight = Find(found->second.flight);
  const Waiting& waiting = found->second;
  timers_.erase({waiting.until, {Timer::kCall, id}});
  callers_.Take(flight->request->caller.tenant, waiting.call.bytes);
  if (waiting.asked && flight->asked_bytes > 0) {
    ChargeAsked(*flight, flight->asked_bytes - waiting.call.upload_bytes);
    ChargeUnpacking(id);
  }
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
  AnswerFromOutdated(flight);
  const std::vector<CallId> waiters(flight.waiters.begin(), flight.waiters.end());
  for (const CallId waiter : waiters) EndCall(waiter, status);
  EndOfAll(flight);
}

// Nobody waits for it. What it has at work keeps its place until that has ended.
void FlightTable::EndOfAll(Flight& flight) {
  DropWaiting(flight);
  if (flight.state == State::kRunning || flight.state == State::kWaiting) workers_->Stop(flight.id);
  if (flight.at_work == 0) {
    Erase(flight);
    return;
  }
  flight.state = State::kDying;
  Hide(flight);
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
    if (absl::Status asked = AskForUpload(flight); !asked.ok()) EndAll(flight, asked);
    return;
  }
  EndOfAll(flight);
}

void FlightTable::Tick() {
  const MonotonicTime now = clock_->Now();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const auto [kind, id] = timers_.begin()->second;
    timers_.erase(timers_.begin());
    if (kind == Timer::kFlight) {
      Flight& flight = *Find(id);
      flight.due.reset();
      if (flight.state == State::kUploading) {
        if (absl::Status asked = AskForUpload(flight); !asked.ok()) EndAll(flight, asked);
      } else if (const absl::Status refusal = CheckQueued(flight); !refusal.ok()) {
        EndAll(flight, refusal);
      } else {
        WatchTime(flight);
      }
      continue;
    }
    Flight& flight = *Find(calls_.at(id).flight);
    EndCall(id, absl::DeadlineExceededError("the compile took longer than the caller waits"));
    Leave(flight);
  }
  StartTasks();
}

std::optional<MonotonicTime> FlightTable::NextTick() const {
  if (timers_.empty()) return std::nullopt;
  return timers_.begin()->first;
}

void FlightTable::Drain() {
  draining_ = true;
  // Those that wait for what other daemons make, which may be minutes.
  std::vector<FlightId> waiting;
  for (const auto& [id, flight] : flights_) {
    if (flight->state == State::kLooking && flight->claims) waiting.push_back(id);
  }
  for (const FlightId id : waiting) EndAll(*Find(id), RefusalOfStopping());
  // Who was lost does not come back to a daemon that stops.
  std::vector<CallId> lost;
  for (const auto& [id, call] : calls_) {
    if (call.lost) lost.push_back(id);
  }
  for (const CallId id : lost) {
    if (Flight* const flight = Unsubscribe(id); flight != nullptr) Leave(*flight);
  }
}

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
  // Of one whose graph has come with the flight before: that too, until it has a place.
  const FlightRequest& kept = *flight->request;
  flight->caller_bytes = kept.header_bytes + (kept.graph != nullptr ? kept.graph->size() : 0);
  callers_.Add(kept.caller.tenant, flight->caller_bytes);
  if (!flight->slot.empty()) {
    by_slot_[flight->slot] = flight->id;
    if (options_.joinable != nullptr) options_.joinable->Add(flight->slot);
  }
  by_job_[flight->request->job_id] = flight->id;
  Flight& made = *flight;
  flights_[made.id] = std::move(flight);
  return made;
}

// Nobody can join it any more.
void FlightTable::Hide(const Flight& flight) {
  if (const auto found = by_slot_.find(flight.slot); found != by_slot_.end() && found->second == flight.id) {
    by_slot_.erase(found);
    if (options_.joinable != nullptr) options_.joinable->Remove(flight.slot);
  }
  if (const auto found = by_job_.find(flight.request->job_id);
      found != by_job_.end() && found->second == flight.id) {
    by_job_.erase(found);
  }
}

void FlightTable::Erase(Flight& flight) {
  if (flight.claims) claims_->Over(flight.id);
  SetDue(flight, std::nullopt);
  if (flight.state == State::kQueued) --queued_;
  if (flight.begun) --begun_;
  DropWaiting(flight);
  GivePlaceBack(flight);
  callers_.Take(flight.request->caller.tenant, flight.caller_bytes);
  Hide(flight);
  flights_.erase(flight.id);
}

// ---- For people ------------------------------------------------------------------------------

std::string FlightTable::JobOf(const std::string& slot) const {
  const auto found = by_slot_.find(slot);
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
    job.set_tenant(flight->request->caller.tenant);
    job.set_job(flight->request->caller.job);
    job.set_graph_bytes(flight->request->bytes);
  }
  std::sort(jobs.begin(), jobs.end(),
            [](const v1::JobInfo& a, const v1::JobInfo& b) { return a.seconds() > b.seconds(); });
  return jobs;
}

std::map<std::string, FlightTable::TenantLoad> FlightTable::Tenants() const {
  std::map<std::string, TenantLoad> loads;
  for (const auto& [tenant, seconds] : quotas_.Taken(clock_->Now()))
    loads[tenant].seconds_last_hour = seconds;
  for (const auto& [id, flight] : flights_) {
    TenantLoad& load = loads[flight->request->caller.tenant];
    const bool here = flight->state != State::kLooking && flight->state != State::kUploading;
    ++(!here ? load.waiting : flight->state == State::kQueued ? load.queued : load.running);
  }
  for (const auto& [tenant, placed] : placed_) loads[tenant].graphs_bytes = placed.bytes;
  return loads;
}

FlightTable::State FlightTable::StateOfFlight(FlightId id) const {
  const auto found = flights_.find(id);
  return found == flights_.end() ? State::kNone : found->second->state;
}

FlightId FlightTable::FlightOfCall(CallId id) const {
  const auto found = calls_.find(id);
  return found == calls_.end() ? 0 : found->second.flight;
}

FlightRequestPtr FlightTable::RequestOfJob(const std::string& job_id) const {
  const auto found = by_job_.find(job_id);
  return found == by_job_.end() ? nullptr : flights_.at(found->second)->request;
}

MonotonicTime FlightTable::DeadlineOf(FlightId id) const {
  const auto found = flights_.find(id);
  return found == flights_.end() ? MonotonicTime::min() : LatestDeadline(*found->second);
}

FlightId FlightTable::FlightOfKey(const std::string& slot) const {
  const auto found = by_slot_.find(slot);
  return found == by_slot_.end() ? 0 : found->second;
}

}  // namespace kiln
