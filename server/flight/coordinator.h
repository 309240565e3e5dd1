// The coordinator of a running daemon: a FlightTable on a strand, what does its tasks (flight_workers.h), the
// threads that take in what these bring and that read and write the store, and what is known of keys.
// `lookups` answers what starts nothing; Compile, Attach, Unpack, Uploaded and Cancel are inputs of the table
// (flight_table.h), posted to the strand.
//
// Where there is a shared tier, a flight whose key the store lacks is looked up there, by threads that do
// nothing else (tier_steps.h), as tier_flights decides; where there is an upstream, by upstream_flights.
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
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kiln/v1/admin.pb.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/config.pb.h"
#include "server/flight/flight_claims.h"
#include "server/flight/flight_compiler.h"
#include "server/flight/flight_store.h"
#include "server/flight/flight_table.h"
#include "server/flight/flight_threads.h"
#include "server/flight/flight_workers.h"
#include "server/flight/gangs.h"
#include "server/flight/hit_index.h"
#include "server/flight/lookups.h"
#include "server/flight/readable_namespaces.h"
#include "server/flight/stored_keys.h"
#include "server/flight/tier_keys.h"
#include "server/flight/tier_steps.h"
#include "server/flight/upstream_flights.h"
#include "server/observe/stats.h"
#include "server/pool/worker_pool.h"
#include "server/schedule/clock.h"

namespace kiln {

class Coordinator final : public FlightStore {
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
  // Tasks of no flight, as Chores'.
  uint64_t Submit(const Caller& caller, WorkerTask task) {
    return workers_.chores().Submit(caller, std::move(task));
  }
  uint64_t SubmitMeasuring(const Caller& caller, std::function<void(bool runs)> measure) {
    return workers_.chores().SubmitMeasuring(caller, std::move(measure));
  }
  void Withdraw(uint64_t number) { workers_.chores().Withdraw(number); }
  // On a thread of the disk's, where anybody wants the upload; else it is dropped.
  void Unpack(CallId id, std::function<absl::StatusOr<GraphPtr>()> unpack);
  // For what blocks: reading objects.
  void Work(std::function<void()> work) { threads_.disk->Post(std::move(work)); }

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
                                                      Store* store, Upstream* upstream);
  FlightClaims* Claims();  // null: of a daemon by itself

  // FlightStore, on the strand.
  void Look(FlightId flight, const FlightRequest& request) override;
  void Write(FlightId flight, std::shared_ptr<const Artifact> artifact) override;

  void SayLooked(FlightId flight, KnownKeyPtr known, FlightTable::Where where);
  // Between the flight and the call of a gang's member, where its verdict is this daemon's.
  void Join(const FlightRequest& request, FlightCall* call);

  SystemClock clock_;
  Stats* const stats_;
  const std::unique_ptr<TierKeys> tier_;  // null: none
  const ReadableNamespaces readable_;
  StoredKeys keys_;
  FlightCompiler compiler_;
  const std::unique_ptr<UpstreamFlights> upstream_;  // null: none
  std::atomic<CallId> last_call_{0};

  JoinableKeys joinable_;  // of the table

  // The strand's.
  const std::unique_ptr<TierSteps> tier_steps_;  // null: no tier
  FlightWorkers workers_;
  FlightTable table_;

  FlightThreads threads_;
  std::unique_ptr<Gangs> gangs_;
  std::unique_ptr<Lookups> lookups_;
};

}  // namespace kiln
