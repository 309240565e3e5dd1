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
// What it decides about is kept beside it: flights (flight_index.h), the calls that wait for them
// (flight_calls.h), tasks (flight_tasks.h), places and bytes (flight_places.h).
//
// Places: at most workers + queue_max flights, of those that wait for an upload, are compiled or stored, with
// graphs, headers and uploads on their way, to the end of their unpacking, of at most graphs_bytes_max. What
// workers have made of a graph counts as well: while that comes to more, what has begun is finished before
// anything else begins. One more is refused with RESOURCE_EXHAUSTED before it uploads, and told when to come
// again (`PushbackOf`), behind those of its tenant who were told before; where another tenant holds more than
// its own, of places or of bytes, that one's latest flights that hold nothing else are refused in its stead.
// Likewise refused is, before it uploads, again when it is its turn, and while it is queued for that, whose
// tenant has used its quota of the hour, and who would not have its program in time (flight_admission.h).
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

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kiln/v1/admin.pb.h"
#include "server/build/artifact.h"
#include "server/flight/caller_bytes.h"
#include "server/flight/flight.h"
#include "server/flight/flight_admission.h"
#include "server/flight/flight_call.h"
#include "server/flight/flight_calls.h"
#include "server/flight/flight_claims.h"
#include "server/flight/flight_event.h"
#include "server/flight/flight_index.h"
#include "server/flight/flight_places.h"
#include "server/flight/flight_request.h"
#include "server/flight/flight_task.h"
#include "server/flight/flight_tasks.h"
#include "server/flight/flight_timers.h"
#include "server/flight/joinable_keys.h"
#include "server/flight/known_key.h"
#include "server/schedule/clock.h"
#include "server/schedule/hourly_quotas.h"
#include "server/schedule/task_queue.h"

namespace kiln {

// What is kept. Each Look ends with `Looked`, each Write with `Stored`.
class FlightStore {
 public:
  virtual ~FlightStore() = default;
  virtual void Look(FlightId flight, const FlightRequest& request) = 0;
  virtual void Write(FlightId flight, std::shared_ptr<const Artifact> artifact) = 0;
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
  using State = FlightState;

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
  void Withdraw(uint64_t number) { tasks_.Withdraw(number); }  // a chore that has not been started
  void Stored(FlightId id, const absl::Status& status);
  void Tick();  // at NextTick, or at any time
  std::optional<MonotonicTime> NextTick() const { return timers_.next(); }
  void Drain();  // nothing starts any more; what runs, ends
  // No new flight is taken (UNAVAILABLE, with when to come again), until it is called with false. All that is
  // here goes on.
  void SetDrained(bool drained) { drained_ = drained; }

  // ---- For people and tests ----
  std::string JobOf(const std::string& slot) const;                // empty: nobody compiles it
  FlightRequestPtr RequestOfJob(const std::string& job_id) const;  // null: no such job
  MonotonicTime DeadlineOf(FlightId id) const;  // the latest of those that wait; what is gone: long ago
  std::vector<v1::JobInfo> Jobs() const { return flights_.Jobs(clock_->Now()); }
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
  size_t flights() const { return flights_.all().size(); }
  size_t calls() const { return calls_.all().size(); }
  size_t queued() const { return queued_; }  // flights of which nothing has run
  size_t begun() const { return begun_; }    // and the others that have been queued
  const TaskQueue& tasks() const { return tasks_.queue(); }
  size_t places() const { return places_.places(); }
  // Of those that hold places, what they hold, and uploads that are unpacked.
  uint64_t graphs_bytes() const { return places_.bytes(); }
  uint64_t callers_bytes() const { return callers_.total(); }  // of calls, and of flights without a place
  State StateOfFlight(FlightId id) const;
  FlightId FlightOfCall(CallId id) const;  // 0: none
  FlightId FlightOfKey(const std::string& slot) const;

 private:
  // Calls.
  absl::Status CheckCallers(const std::string& tenant, uint64_t bytes) const;
  Flight& NewFlight(FlightRequest request, std::string slot);
  void Subscribe(Flight& flight, CallId id, FlightCall call, bool uploads);
  Flight* Unsubscribe(CallId id);
  void AddWaiter(Flight& flight, CallId id);
  void Join(Flight& flight, CallId id);
  bool AwaitReturn(CallId id);
  void TakePlaceOfLost(const Flight& flight);
  // The store's word.
  void BeginCompile(Flight& flight);
  void AnswerFromKnown(Flight& flight, const KnownKey& known, Outdated outdated = Outdated::kSkip);
  void AnswerFromOutdated(Flight& flight);
  // The upload.
  void AwaitUpload(Flight& flight);
  absl::Status AskForUpload(Flight& flight);
  void TakeUpload(CallId id, absl::StatusOr<GraphPtr> graph);
  void SetDue(Flight& flight, std::optional<MonotonicTime> due);
  // A place.
  absl::Status CheckBegins() const;
  absl::Status TakePlace(Flight& flight);
  absl::Status ChargeGraph(Flight& flight, uint64_t bytes);
  bool Displace(const std::string& tenant, uint64_t bytes, FlightPlaces::Short what);
  absl::Status QueueIsFull(const Flight& flight);
  // The work.
  void Enqueue(Flight& flight, CallId leader);
  void WatchTime(Flight& flight);
  void StartTasks();
  absl::Status CheckAtFront(const Flight& flight, TaskQueue::Kind kind);
  bool IsFirstBegun(const Flight& flight) const;
  void Begin(Flight& flight);
  void EndOverdue(Flight& flight);
  absl::Status GoOnHere(Flight& flight);
  void Settle(Flight& flight);
  void Made(Flight& flight, std::shared_ptr<const Artifact> artifact, uint32_t workers_lost);
  void AnswerFromArtifact(Flight& flight, CallId id);
  // Ends.
  void EndCall(CallId id, const absl::Status& status);
  void EndFlight(Flight& flight, const std::vector<CallId>& unserved);
  void EndFailed(Flight& flight, const absl::Status& status);
  void EndAll(Flight& flight, const absl::Status& status);
  void EndOfAll(Flight& flight);
  void Leave(Flight& flight);
  void Erase(Flight& flight);

  const Options options_;
  const Clock* const clock_;
  Workers* const workers_;
  FlightStore* const store_;
  FlightClaims* const claims_;

  FlightTimers timers_;
  FlightIndex flights_;
  FlightCalls calls_{&timers_};
  FlightTasks tasks_;
  FlightPlaces places_;
  FlightAdmission admission_;
  CallerBytes callers_;
  size_t queued_ = 0;
  size_t begun_ = 0;
  bool draining_ = false;
  bool drained_ = false;
};

}  // namespace kiln
