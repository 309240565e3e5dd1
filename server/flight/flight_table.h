// Decides what happens to every call for a key, as a state machine: inputs come in one at a time, outputs go
// to the small interfaces below, and there is no thread, lock, clock or file in it.
//
//   call → known of the store, or of other daemons? answered
//        → a flight of its key? joins it
//        → else starts one:  looking → uploading → queued → running ⇄ waiting → storing → gone
//
// Where another daemon compiles the key, the flight's task is to give it the graph and take what comes back:
// it takes no worker, is charged to nobody, and runs beside all others; where nothing comes back it goes on
// here.
//
// A compile is tasks: the plan, then what each one's end asks for next (emits, tuning), until one brings the
// outcome. A flight runs while a task of it is at a worker or a GPU, or what a task brought is being taken
// in; while all that it needs waits for its turn it is waiting, and holds neither worker, GPU nor thread.
//
// One flight per CompileKey (FlightSlot); a debug call has one of its own that nobody joins. Callers are
// subscribers of their flight. One caller's upload serves all; where it leaves or is slow another is asked,
// who joins later too, as long as there is room for what all that were asked may send. When a variant is
// made, whom it fits is answered; those whose sizes it does not fit wait for the flight's end and go on in
// the key's next flight, with the graph that is here already, and so do all whose upload came from one that
// joined after the look. A flight that everybody left, or that has failed, gives its place back at once while
// it waits, and when its tasks have ended while it runs (state dying): nobody joins it meanwhile, and what
// waits of it never runs. One that has its graph goes on for lost_patience for each caller whose connection
// broke: he comes again, and attaches himself to it.
//
// Places: at most workers + queue_max flights, of those that wait for an upload, are compiled or stored, with
// graphs, headers and uploads on their way, to the end of their unpacking, of at most graphs_bytes_max. What
// workers have made of a graph counts as well: while that comes to more, what has begun is finished before
// anything else begins. One more is refused with RESOURCE_EXHAUSTED before it uploads, and told when to come
// again (`PushbackOf`), behind those of its tenant who were told before; where another tenant holds more than
// its own, of places or of bytes, that one's latest flights that hold nothing else are refused in its stead.
// Likewise refused is, before it uploads, again when it is its turn, and while it is queued for that:
// - whose tenant has used its quota of the hour (hourly_quotas.h): what has begun goes on;
// - who would not have its program before its deadline, while there is other work to be done: by the time
//   that its tenant's compiles of its class took lately and the tenant's share of the workers, an estimate
//   that errs on the short side.
// What is kept of calls beside places has a limit of its own (caller_bytes.h), beyond which a call is refused
// with RESOURCE_EXHAUSTED before anything else.
//
// Which task runs next is fair to tenants and their jobs (task_queue.h). A flight is background while all
// that have joined it are.
//
// A daemon that is drained by hand refuses in the same place with UNAVAILABLE, until that is undone.
//
// A flight for want of a variant that is not outdated (known_key.h) ends with that one where it makes no
// other: nobody is refused what he would have been served before.
//
// A caller gets events, and at the very last one End. Its status is about the call: RESOURCE_EXHAUSTED (no
// place), UNAVAILABLE (stopping), DEADLINE_EXCEEDED, NOT_FOUND (attach), what its upload said; what became of
// the compile is in the events. `durable` is said of what the store has taken.
//
// Threads: one at a time (a strand). Outputs return at once and never call back in; their results come later,
// as inputs. An input about what is gone is ignored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kiln/v1/admin.pb.h"
#include "kiln/v1/compile.pb.h"
#include "server/build/artifact.h"
#include "server/flight/caller_bytes.h"
#include "server/flight/flight_claims.h"
#include "server/flight/flight_event.h"
#include "server/flight/joinable_keys.h"
#include "server/flight/known_key.h"
#include "server/schedule/clock.h"
#include "server/schedule/expected_callers.h"
#include "server/schedule/fair_queue.h"
#include "server/schedule/hourly_quotas.h"
#include "server/schedule/recent_mean.h"
#include "server/schedule/recent_means.h"
#include "server/schedule/task_queue.h"

namespace kiln {

using CallId = uint64_t;    // chosen by who calls, never twice
using FlightId = uint64_t;  // chosen by the table, never twice
using TaskId = TaskQueue::TaskId;
// Shared with the flights that start from the same upload, and with what compiles them.
using GraphPtr = std::shared_ptr<const std::string>;

// One call that waits.
class Subscriber {
 public:
  virtual ~Subscriber() = default;
  virtual void Event(const FlightEventPtr& event) = 0;
  // kNow: upload, and hand the graph to `Uploaded`. kNever: a graph is here; yours is not needed any more.
  enum class Upload { kNow, kNever };
  virtual void Graph(Upload wanted) = 0;
  virtual void End(const absl::Status& status) = 0;
};

// All that the work of a flight may know of the calls.
struct FlightRequest {
  std::string ns;
  std::string compile_key;
  std::string request_key;
  Caller caller;       // the first one; its class is that of the flight when it is queued
  std::string job_id;  // 16 random bytes
  bool debug = false;  // stages as text, kernels emitted anew with their listings
  v1::RequestSections sections;
  v1::GraphNotes notes;
  v1::Gang gang;                                  // of the callers, where another daemon has its verdict
  uint64_t bytes = 0;                             // of the graph, before it is here, and of the header
  uint64_t graph_bytes = 0;                       // of those the graph's, as the caller says
  uint64_t header_bytes = 0;                      // of those the header's, in memory
  std::vector<std::string> hops;                  // daemons that the request has passed
  v1::Hints hints;                                // of the caller for whom it compiles
  GraphPtr graph;                                 // null until it is here
  MonotonicTime deadline = MonotonicTime::max();  // of who waits when it is queued
  // Set by the table, as are job_id, hints, graph and deadline.
  uint64_t program = 0;  // in the order of arrival
  MonotonicTime created;
  size_t variants_known = 0;  // stored ones of the key, none of which fits
};
using FlightRequestPtr = std::shared_ptr<const FlightRequest>;  // shared by the table and who compiles

// Calls of one slot are answered together: those of a key. Where another daemon has the verdict of a gang,
// only it knows what other sizes are served: then they are of one gang and equal hints as well.
std::string FlightSlot(const std::string& compile_key, const v1::Gang& gang, const v1::Hints& hints);

// A task of a flight's. Number 0 is its first plan, or is given to another daemon (kForward); the others are
// chosen by who compiles.
struct FlightTask {
  TaskQueue::Kind kind = TaskQueue::Kind::kPlan;
  uint64_t number = 0;
  bool urgent = false;
};

// What the end of a task brings.
struct FlightNext {
  std::vector<FlightTask> tasks;  // to be done now
  std::optional<absl::StatusOr<std::shared_ptr<const Artifact>>> outcome;
  uint32_t workers_lost = 0;  // so far
  uint64_t held_bytes = 0;    // of what workers have made of it, so far
  bool tries_tuning = false;  // not told to the table: FlightCompile::TryTuning comes before
};

// Does tasks. Each Start ends with one input `Ended`, when the worker or GPU is free again, and then, for a
// flight's, one `Advanced`; Progress and Asked come before it.
class Workers {
 public:
  virtual ~Workers() = default;
  // `request` is null for a task of no flight.
  virtual void Start(TaskId id, FlightId flight, FlightRequestPtr request, const FlightTask& task) = 0;
  // Nothing of it is wanted any more: what runs may end early, and nothing else starts.
  virtual void Stop(FlightId flight) = 0;
};

// What is kept. Each Look ends with `Looked`, each Write with `Stored`.
class FlightStore {
 public:
  virtual ~FlightStore() = default;
  virtual void Look(FlightId flight, const FlightRequest& request) = 0;
  virtual void Write(FlightId flight, std::shared_ptr<const Artifact> artifact) = 0;
};

struct FlightCall {
  v1::Hints hints;
  v1::Gang gang;  // the caller's, where another daemon has its verdict
  Caller::Class work_class = Caller::Class::kInteractive;
  MonotonicTime deadline = MonotonicTime::max();
  uint64_t bytes = 0;                      // in memory, of this
  uint64_t upload_bytes = 0;               // the most that its upload takes on its way, packed and as it is
  std::shared_ptr<Subscriber> subscriber;  // shared with the transport
};

class FlightTable {
 public:
  struct Options {
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
  enum class State { kNone, kLooking, kUploading, kQueued, kRunning, kWaiting, kStoring, kDying };

  // All outlive the table. `claims` is nullptr for a daemon by itself.
  FlightTable(Options options, const Clock* clock, Workers* workers, FlightStore* store,
              FlightClaims* claims = nullptr);

  // ---- Inputs ----
  // Of `request` only the first caller's is kept: all that ask for a key ask for the same.
  void Compile(CallId id, FlightRequest request, FlightCall call);
  // NOT_FOUND when no such job runs in the namespace, or it is another slot's. It has no graph to upload.
  void Attach(CallId id, const std::string& ns, const std::string& job_id, FlightCall call);
  // All of it is here. False: nobody wants it. Else it is unpacked, whoever leaves meanwhile, and is charged
  // until `Uploaded`.
  bool Unpacks(CallId id);
  void Uploaded(CallId id, absl::StatusOr<GraphPtr> graph);
  // The caller left, or its connection broke, and it may come again: it is told nothing more.
  enum class Gone { kLeft, kLost };
  void Cancel(CallId id, Gone gone = Gone::kLeft);
  enum class Where { kHere, kEverywhere, kElsewhere };
  void Looked(FlightId id, KnownKeyPtr known, Where where = Where::kHere);
  void Progress(FlightId id, absl::string_view phase, FlightEventPtr event);  // null: the phase alone
  // The worker or GPU was taken for `seconds`. `typical`: others of its kind will be as long.
  void Ended(TaskId id, double seconds, bool typical);
  void Advanced(FlightId id, FlightNext next);
  void Asked(FlightId id, const std::vector<FlightTask>& tasks);  // by a task at work
  // A task of no flight: Start, then Ended. A measurement is its tenant's seconds.
  void Chore(uint64_t number, const Caller& caller, TaskQueue::Kind kind = TaskQueue::Kind::kEmit);
  void Withdraw(uint64_t number);  // a chore that has not been started
  void Stored(FlightId id, const absl::Status& status);
  void Tick();  // at NextTick, or at any time
  std::optional<MonotonicTime> NextTick() const;
  void Drain();  // nothing starts any more; what runs, ends
  // No new flight is taken (UNAVAILABLE, with when to come again), until it is called with false. All that is
  // here goes on.
  void SetDrained(bool drained) { drained_ = drained; }

  // ---- For people and tests ----
  std::string JobOf(const std::string& slot) const;                // empty: nobody compiles it
  FlightRequestPtr RequestOfJob(const std::string& job_id) const;  // null: no such job
  MonotonicTime DeadlineOf(FlightId id) const;  // the latest of those that wait; what is gone: long ago
  std::vector<v1::JobInfo> Jobs() const;
  struct TenantLoad {
    uint32_t waiting = 0;  // flights whose graph is not here yet
    uint32_t queued = 0;
    uint32_t running = 0;
    uint64_t graphs_bytes = 0;
    double seconds_last_hour = 0;  // of workers and GPUs
  };
  std::map<std::string, TenantLoad> Tenants() const;  // those that have any of it
  // Whether a GPU could measure for a tenant without anybody here waiting for it.
  bool MayMeasureFor(const std::string& tenant) const;
  bool drained() const { return drained_; }
  size_t flights() const { return flights_.size(); }
  size_t calls() const { return calls_.size(); }
  size_t queued() const { return queued_; }  // flights of which nothing has run
  size_t begun() const { return begun_; }    // and the others that have been queued
  const TaskQueue& tasks() const { return tasks_; }
  size_t places() const { return places_; }
  // Of those that hold places, what they hold, and uploads that are unpacked.
  uint64_t graphs_bytes() const { return graphs_bytes_; }
  uint64_t callers_bytes() const { return callers_.total(); }  // of calls, and of flights without a place
  State StateOfFlight(FlightId id) const;
  FlightId FlightOfCall(CallId id) const;  // 0: none
  FlightId FlightOfKey(const std::string& slot) const;

 private:
  struct Flight;
  struct Placed {  // of one tenant
    absl::btree_set<FlightId> flights;
    uint64_t bytes = 0;
  };
  struct Unpacking {
    std::string tenant;
    uint64_t bytes = 0;
    bool charged = false;  // by itself: its flight does not any more
  };
  struct Doing {
    FlightId flight = 0;  // 0: a chore
    FlightTask task;
    std::string measures_for;  // of a chore: the tenant who is charged
  };
  struct Waiting {
    FlightCall call;
    FlightId flight = 0;
    bool uploads = true;       // false: attached, without a graph
    bool looked = false;       // the store has nothing for it, or had not when it was asked
    bool asked = false;        // to upload
    bool keeps_graph = false;  // has uploaded, or was told that it need not
    bool announced = false;
    bool served = false;  // has the program, and waits for the store
    bool lost = false;    // nobody is there; the flight goes on until `until`
    MonotonicTime until;  // of its timer: the call's deadline
  };
  struct Flight {
    FlightId id = 0;
    State state = State::kLooking;
    std::string slot;                        // in by_slot_; a debug flight's is nobody else's
    std::shared_ptr<FlightRequest> request;  // changes until it is queued; then shared with who compiles
    absl::btree_set<CallId> waiters;         // in order of arrival
    CallId leader = 0;                       // for whom it compiles, where that caller is still here
    Caller::Class work_class = Caller::Class::kBackground;
    std::shared_ptr<const Artifact> artifact;
    KnownKeyPtr known;  // of the store, where it has what is outdated
    FlightEventPtr done;
    bool place = false;
    uint64_t held_bytes = 0;    // with a place, beside its request's
    uint64_t caller_bytes = 0;  // without a place, in callers_
    uint64_t asked_bytes = 0;   // the most that uploads on their way take
    uint64_t upload_bytes = 0;  // of those what is charged beside the request's graph
    bool begun = false;
    bool claims = false;     // was looked up further
    bool elsewhere = false;  // another daemon compiles it: none of this one's limits of time are its
    uint32_t position = 0;
    std::string phase = "starting";                 // while it runs
    absl::btree_map<int, FlightEventPtr> progress;  // the last of each kind, for who joins later
    uint32_t kernels_done = 0;
    uint32_t kernels_total = 0;
    absl::btree_set<TaskId> waiting;  // tasks
    size_t at_work = 0;               // tasks that have not ended, or brought what comes next
    double worker_seconds = 0;
    std::optional<MonotonicTime> due;  // for a look at it: its upload takes long, its time while queued is up
  };
  enum class Timer { kCall, kFlight };

  Flight* Find(FlightId id);
  Flight& NewFlight(FlightRequest request, std::string slot);
  void Subscribe(Flight& flight, CallId id, FlightCall call, bool uploads);
  void AddWaiter(Flight& flight, CallId id);
  Caller CallerOf(const Flight& flight) const;
  void Join(Flight& flight, CallId id);
  absl::Status CheckBegins() const;
  absl::Status TakePlace(Flight& flight);
  absl::Status ChargeGraph(Flight& flight, uint64_t bytes);
  void ChargeHeld(Flight& flight, uint64_t bytes);
  bool MayBegin() const { return graphs_bytes_ <= options_.graphs_bytes_max || begun_ == 0; }
  bool PlacesAreTaken() const { return places_ >= options_.tasks.workers + options_.queue_max; }
  enum class Short { kPlaces, kBytes };
  bool Displace(const std::string& tenant, uint64_t bytes, Short what);
  absl::Status CheckCallers(const std::string& tenant, uint64_t bytes) const;
  void ChargeAsked(Flight& flight, uint64_t asked_bytes);
  void ChargeUnpacking(CallId id);
  void EndUnpacking(CallId id);
  bool HasRoomToAsk(const Flight& flight, const FlightCall& call) const;
  absl::Status QueueIsFull(const Flight& flight);
  double SecondsBehindExpected(const Flight& flight);
  absl::Status ComesAgain(const Flight& flight, absl::Status refusal);
  absl::Status CheckQuota(const Flight& flight) const;
  absl::Status CheckWait(const Flight& flight);
  absl::Status CheckTime(const Flight& flight, double needs);
  absl::Status GoOnHere(Flight& flight);
  absl::Status CheckAtFront(const Flight& flight, TaskQueue::Kind kind);
  absl::Status CheckQueued(const Flight& flight);
  bool IsFirstBegun(const Flight& flight) const;
  double SecondsOf(const Flight& flight) const;
  MonotonicTime LatestDeadline(const Flight& flight) const;
  void GivePlaceBack(Flight& flight);
  void TakeFrom(const std::string& tenant, uint64_t bytes);
  bool AwaitReturn(CallId id);
  void TakePlaceOfLost(const Flight& flight);
  void Announce(Flight& flight, CallId id);
  void KeepGraph(CallId id);
  void BeginCompile(Flight& flight);
  void AwaitUpload(Flight& flight);
  absl::Status AskForUpload(Flight& flight);
  void TakeUpload(CallId id, absl::StatusOr<GraphPtr> graph);
  void SetDue(Flight& flight, std::optional<MonotonicTime> due);
  void WatchTime(Flight& flight);
  void Enqueue(Flight& flight, CallId leader);
  void Push(Flight& flight, const std::vector<FlightTask>& tasks);
  void DropWaiting(Flight& flight);
  void StartTasks();
  void Begin(Flight& flight);
  void EndOverdue(Flight& flight);
  void Settle(Flight& flight);
  void Made(Flight& flight, std::shared_ptr<const Artifact> artifact, uint32_t workers_lost);
  void AnswerFromKnown(Flight& flight, const KnownKey& known, Outdated outdated = Outdated::kSkip);
  void AnswerFromOutdated(Flight& flight);
  void AnswerFromArtifact(Flight& flight, CallId id);
  void EndFlight(Flight& flight, const std::vector<CallId>& unserved);
  void Leave(Flight& flight);
  void EndCall(CallId id, const absl::Status& status);
  void EndFailed(Flight& flight, const absl::Status& status);
  void EndAll(Flight& flight, const absl::Status& status);
  void EndOfAll(Flight& flight);
  Flight* Unsubscribe(CallId id);
  void Hide(const Flight& flight);
  void Erase(Flight& flight);

  const Options options_;
  const Clock* const clock_;
  Workers* const workers_;
  FlightStore* const store_;
  FlightClaims* const claims_;

  absl::flat_hash_map<FlightId, std::unique_ptr<Flight>> flights_;
  absl::flat_hash_map<std::string, FlightId> by_slot_;  // those that can be joined
  absl::flat_hash_map<std::string, FlightId> by_job_;
  absl::flat_hash_map<CallId, Waiting> calls_;
  TaskQueue tasks_;
  absl::flat_hash_map<TaskId, Doing> doing_;  // those of tasks_
  absl::btree_set<std::pair<MonotonicTime, std::pair<Timer, uint64_t>>> timers_;
  FlightId last_flight_ = 0;
  size_t queued_ = 0;
  size_t begun_ = 0;
  size_t places_ = 0;
  uint64_t graphs_bytes_ = 0;
  absl::btree_map<std::string, Placed> placed_;  // by tenant
  absl::flat_hash_map<CallId, Unpacking> unpacking_;
  CallerBytes callers_;
  HourlyQuotas quotas_;
  ExpectedCallers expected_;
  RecentMean compile_seconds_;      // of workers, for one flight; 0: none was made yet
  RecentMeans compile_seconds_of_;  // likewise, for each tenant and class
  RecentMeans compile_bytes_of_;    // of their requests
  bool draining_ = false;
  bool drained_ = false;
};

const char* FlightStateName(FlightTable::State state);

}  // namespace kiln
