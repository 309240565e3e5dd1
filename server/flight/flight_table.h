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
// outcome.
//
// One flight per CompileKey (FlightSlot); a debug call has one of its own that nobody joins. What is in
// flight is in in_flight.h; what becomes of it is decided in parts, which the table calls:
//
//   flight_subscriptions.h   who waits, and how calls and flights end
//   flight_entrance.h        which flight gets a place
//   flight_uploads.h         whose upload is asked for
//   flight_turns.h           which task is started when
//   flight_results.h         who is answered by what was made
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
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kiln/v1/admin.pb.h"
#include "server/flight/flight.h"
#include "server/flight/flight_call.h"
#include "server/flight/flight_claims.h"
#include "server/flight/flight_entrance.h"
#include "server/flight/flight_event.h"
#include "server/flight/flight_request.h"
#include "server/flight/flight_results.h"
#include "server/flight/flight_store.h"
#include "server/flight/flight_subscriptions.h"
#include "server/flight/flight_task.h"
#include "server/flight/flight_turns.h"
#include "server/flight/flight_uploads.h"
#include "server/flight/in_flight.h"
#include "server/flight/known_key.h"
#include "server/schedule/clock.h"
#include "server/schedule/task_queue.h"

namespace kiln {

class FlightTable {
 public:
  using Options = FlightOptions;
  using State = FlightState;

  // All outlive the table. `claims` is nullptr for a daemon by itself.
  FlightTable(const Options& options, const Clock* clock, Workers* workers, FlightStore* store,
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
  void Withdraw(uint64_t number) { here_.tasks.Withdraw(number); }  // a chore that has not been started
  void Stored(FlightId id, const absl::Status& status);
  void Tick();  // at NextTick, or at any time
  std::optional<MonotonicTime> NextTick() const { return here_.timers.next(); }
  void Drain();  // nothing starts any more; what runs, ends
  // No new flight is taken (UNAVAILABLE, with when to come again), until it is called with false. All that is
  // here goes on.
  void SetDrained(bool drained) { entrance_.SetDrained(drained); }

  // ---- For people and tests ----
  std::string JobOf(const std::string& slot) const;                // empty: nobody compiles it
  FlightRequestPtr RequestOfJob(const std::string& job_id) const;  // null: no such job
  MonotonicTime DeadlineOf(FlightId id) const;  // the latest of those that wait; what is gone: long ago
  std::vector<v1::JobInfo> Jobs() const { return here_.flights.Jobs(here_.clock->Now()); }
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
  bool drained() const { return entrance_.drained(); }
  size_t flights() const { return here_.flights.all().size(); }
  size_t calls() const { return here_.calls.all().size(); }
  size_t queued() const { return here_.queued; }  // flights of which nothing has run
  size_t begun() const { return here_.begun; }    // and the others that have been queued
  const TaskQueue& tasks() const { return here_.tasks.queue(); }
  size_t places() const { return here_.places.places(); }
  // Of those that hold places, what they hold, and uploads that are unpacked.
  uint64_t graphs_bytes() const { return here_.places.bytes(); }
  // Of calls, and of flights without a place.
  uint64_t callers_bytes() const { return here_.callers.total(); }
  State StateOfFlight(FlightId id) const;
  FlightId FlightOfCall(CallId id) const;  // 0: none
  FlightId FlightOfKey(const std::string& slot) const;

 private:
  void Join(Flight& flight, CallId id);
  void Leave(Flight& flight);
  void BeginCompile(Flight& flight);

  InFlight here_;
  FlightSubscriptions subscriptions_{&here_};
  FlightEntrance entrance_{&here_, &subscriptions_};
  FlightTurns turns_{&here_, &subscriptions_};
  FlightUploads uploads_{&here_, &subscriptions_, &entrance_, &turns_};
  FlightResults results_{&here_, &subscriptions_};
};

}  // namespace kiln
