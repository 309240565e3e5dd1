// The coordinator of a running daemon: a FlightTable on a strand, what does its tasks (the pool's workers, a
// thread a GPU), the threads that take in what these bring and that read and write the store, and what is
// known of keys. `lookups` answers what starts nothing; Compile, Attach, Unpack, Uploaded and Cancel are
// inputs of the table (flight_table.h), posted to the strand.
//
// Where there is a shared tier, a flight whose key the store lacks is looked up there, by threads that do
// nothing else, as tier_flights decides; where there is an upstream, by upstream_flights.
//
// No call blocks but those for people. Thread-safe. Limits: the table's; `kDiskThreads` steps and calls are
// at the disk.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kiln/v1/admin.pb.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/config.pb.h"
#include "server/flight/flight_compile.h"
#include "server/flight/flight_compiler.h"
#include "server/flight/flight_table.h"
#include "server/flight/gangs.h"
#include "server/flight/hit_index.h"
#include "server/flight/lookups.h"
#include "server/flight/readable_namespaces.h"
#include "server/flight/stored_keys.h"
#include "server/flight/tier_flights.h"
#include "server/flight/tier_keys.h"
#include "server/flight/upstream_flights.h"
#include "server/observe/stats.h"
#include "server/pool/worker_pool.h"
#include "server/schedule/clock.h"
#include "server/schedule/strand.h"
#include "server/schedule/thread_executor.h"

namespace kiln {

class Coordinator final : public Workers, public FlightStore {
 public:
  // All outlive the coordinator. `tier` and `upstream` are nullptr where there is none, and one of them is.
  // UNAVAILABLE where the system gives no threads.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(const v1::Config& config,
                                                             const Signatures* signatures, Store* store,
                                                             SharedTier* tier, Upstream* upstream,
                                                             HitIndex* index, WorkerPool* pool, Tuner* tuner,
                                                             Stats* stats);
  // After the last caller is gone. Stops what runs, and waits for it.
  ~Coordinator() override;

  // Any thread.
  Lookups& lookups() { return *lookups_; }

  CallId NewCall() { return ++last_call_; }
  void Compile(CallId id, FlightRequest request, FlightCall call);
  void Attach(CallId id, const std::string& ns, const std::string& job_id, FlightCall call);
  void Uploaded(CallId id, absl::StatusOr<GraphPtr> graph);
  // `lost`: whether the call's connection broke; asked on the strand, where gRPC has no lock.
  void Cancel(CallId id, std::function<bool()> lost);
  // A task of no flight, in its turn. Its `done` is called once, on another thread. Returns the task's
  // number.
  uint64_t Submit(const Caller& caller, WorkerTask task);
  // Likewise for a GPU, on a thread of its own. `measure` is called once; false: it does not get its turn.
  uint64_t SubmitMeasuring(const Caller& caller, std::function<void(bool runs)> measure);
  // Where it still waits, its `done` says CANCELLED. Of one at work its `abandoned` decides.
  void Withdraw(uint64_t number);
  // On a thread of the disk's, where anybody wants the upload; else it is dropped.
  void Unpack(CallId id, std::function<absl::StatusOr<GraphPtr>()> unpack);
  // For what blocks: reading objects.
  void Work(std::function<void()> work) { disk_->Post(std::move(work)); }

  // As StoredKeys'; they block.
  absl::StatusOr<std::vector<uint64_t>> CheckFetch(const v1::FetchObjectsRequest& request) {
    return keys_.CheckFetch(request);
  }
  absl::StatusOr<EntryValue> ReadObject(const v1::FetchObjectsRequest& request, const std::string& digest);

  // For people; block until the strand has come to it.
  std::vector<v1::JobInfo> Jobs();
  struct Load {
    size_t flights = 0;
    size_t queued = 0;
    size_t begun = 0;
    bool drained = false;
  };
  Load load();
  std::map<std::string, FlightTable::TenantLoad> Tenants();
  // As FlightTable's.
  void SetDrained(bool drained);
  bool MayMeasureFor(const std::string& tenant);
  // As StoredKeys'; blocks.
  void MakeRoomFor(const std::string& ns, const std::string& compile_key, const std::string& new_variant) {
    keys_.MakeRoomFor(ns, compile_key, new_variant);
  }
  // After a removal or an import: forgets crashes and what memory knows of the key; of every key when empty.
  void Forget(const std::string& compile_key);
  // As StoredKeys'.
  void SetWaiting(WaitingPrograms* waiting) { keys_.SetWaiting(waiting); }

  // Nothing starts any more. True when everything ended before the limit.
  bool Drain(absl::Duration limit);

 private:
  Coordinator(const v1::Config& config, const Signatures* signatures, Store* store, SharedTier* tier,
              Upstream* upstream, HitIndex* index, WorkerPool* pool, Tuner* tuner, Stats* stats);

  std::unique_ptr<Lookups> NewLookups();
  std::unique_ptr<UpstreamFlights> NewUpstreamFlights(const v1::Config& config, const Signatures* signatures,
                                                      Upstream* upstream);

  // What the table asks for, on the strand.
  void Start(TaskId id, FlightId flight, FlightRequestPtr request, const FlightTask& task) override;
  void Stop(FlightId flight) override;
  void Look(FlightId flight, const FlightRequest& request) override;
  void Write(FlightId flight, std::shared_ptr<const Artifact> artifact) override;

  void SayLooked(FlightId flight, KnownKeyPtr known, FlightTable::Where where);
  // What tier_flights asks for, on the strand.
  std::unique_ptr<TierFlights> NewTierFlights();
  void LookInTier(FlightId flight, const TierKeys::Name& key, MonotonicTime deadline);
  void TakeFromTier(FlightId flight, const TierKeys::Name& key, std::shared_ptr<SharedTier::Found> found);
  void ClaimInTier(FlightId flight, const TierKeys::Name& key, MonotonicTime deadline);
  // Between the flight and the call of a gang's member, where its verdict is this daemon's.
  void Join(const FlightRequest& request, FlightCall* call);
  using CompilePtr = std::shared_ptr<FlightCompile>;  // shared by the table's flight and its tasks at work
  CompilePtr CompileOf(FlightId flight, const FlightRequestPtr& request);
  struct Chore {
    Caller caller;
    WorkerTask task;
    std::function<void(bool runs)> measure;  // instead of a task
    // It does not get its turn.
    void Cancel(const char* why) const;
  };
  uint64_t Add(std::shared_ptr<Chore> chore);
  void StartChore(TaskId id, uint64_t number);
  void StartMeasuring(TaskId id, Chore chore);
  void StartWork(TaskId id, FlightId flight, const CompilePtr& compile, const Caller& caller,
                 uint64_t number);
  void StartTuning(TaskId id, FlightId flight, const CompilePtr& compile, const Caller& caller);
  void CountSeconds(const Caller& caller, double seconds);
  // What follows a task's end, on a thread of the disk's; and, where that waits for the tier, on one of its.
  void Take(FlightId flight, const CompilePtr& compile, std::function<FlightNext()> step);
  void Advance(FlightId flight, const CompilePtr& compile, FlightNext next);
  bool NothingIsAtWork() const ABSL_SHARED_LOCKS_REQUIRED(work_mutex_) { return at_work_ == 0; }
  void CountWork(int more) ABSL_LOCKS_EXCLUDED(work_mutex_);

  SystemClock clock_;
  Store* const store_;
  WorkerPool* const pool_;
  Stats* const stats_;
  const std::unique_ptr<TierKeys> tier_;  // null: none
  const ReadableNamespaces readable_;
  StoredKeys keys_;
  FlightCompiler compiler_;
  const std::unique_ptr<UpstreamFlights> upstream_;  // null: none
  std::atomic<CallId> last_call_{0};
  std::atomic<uint64_t> last_chore_{0};

  JoinableKeys joinable_;  // of the table

  // The strand's.
  const std::unique_ptr<TierFlights> tier_flights_;  // null: no tier
  FlightTable table_;
  absl::flat_hash_map<FlightId, CompilePtr> compiles_;
  absl::flat_hash_map<uint64_t, Chore> chores_;  // that wait
  bool closing_ = false;                         // nothing starts any more

  absl::Mutex work_mutex_;
  size_t at_work_ ABSL_GUARDED_BY(work_mutex_) = 0;  // tasks started, and what they bring not yet taken in

  // In this order: a later one posts to those before it.
  std::unique_ptr<Strand> strand_;
  std::unique_ptr<ThreadExecutor> disk_;
  std::unique_ptr<ThreadExecutor> transfers_;  // from the tier, which take as long as they are large
  std::unique_ptr<ThreadExecutor> looks_;      // into the tier, which are short
  std::unique_ptr<ThreadExecutor> gpus_;
  std::unique_ptr<Gangs> gangs_;
  std::unique_ptr<Lookups> lookups_;
};

}  // namespace kiln
