// Decides what happens to a key: answered from the store, joined to the flight that is already
// compiling it, or compiled.
//
//   key → store → one flight per CompileKey → admission queue → plan on a worker → per kernel: the
//   store's kernel records, the missing ones emitted over all free workers; with max-autotune, meanwhile:
//   what the store has not of the program's measurements, measured → manifest → answer → one Put with a sync
//   → acknowledged
//
// One flight per CompileKey: everybody else who asks for that key waits for it. When it ends each
// waiter evaluates the new variant's guards against its own hints and starts at most one more flight.
// A flight's deadline is its latest waiter's; it is cancelled, worker and all, when the last one
// leaves. A program is handed out before it is durable and acknowledged after.
//
// A key has at most kVariantsPerKeyMax variants; one more takes the place of the least recently used.
//
// Refusals that would only repeat (UNIMPLEMENTED, INVALID_ARGUMENT) are stored. A key that brought
// down two workers is refused with FAILED_PRECONDITION for a day, or until it is removed.
//
// Thread-safe; calls block the caller's thread. Limits: admission config, kVariantsPerKeyMax.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "cache/store.h"
#include "kiln/v1/admin.pb.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/config.pb.h"
#include "server/flight/flight.h"
#include "server/observe/stats.h"
#include "server/pool/worker_pool.h"
#include "server/schedule/admission_queue.h"
#include "server/tune/tuner.h"

namespace kiln {

// One RPC that waits for an artifact.
struct Caller {
  std::string ns;
  v1::Hints hints;
  absl::Time deadline = absl::InfiniteFuture();
  std::function<bool()> gone;                         // asked about every 50 ms
  std::function<bool(const v1::CompileEvent&)> send;  // false: the caller is gone
};

// What a Compile brings. `read_graph` takes the upload (raw canonical bytes, already checked against
// the digest in `sections`) and is called at most once, and only if the graph is needed.
struct Upload {
  v1::RequestSections sections;
  v1::GraphNotes notes;
  std::function<absl::StatusOr<std::string>()> read_graph;
  bool want_debug = false;  // compile even what is stored, in a flight of its own, and send every stage
};

class Coordinator {
 public:
  // All outlive the coordinator.
  Coordinator(const v1::Config& config, Store* store, WorkerPool* pool, Tuner* tuner, AdmissionQueue* queue,
              Stats* stats);

  v1::LookupReply Lookup(const v1::LookupRequest& request);

  // Sends events until Done or Failed. The status is about the call: RESOURCE_EXHAUSTED (queue
  // full), UNAVAILABLE (stopping), DEADLINE_EXCEEDED, CANCELLED, what `read_graph` said. What became
  // of the compile is in the events.
  absl::Status Compile(const Caller& caller, const Upload& upload);
  // NOT_FOUND when no such job runs in the caller's namespace.
  absl::Status Attach(const Caller& caller, const std::string& job_id);

  // The packed objects of one variant. INVALID_ARGUMENT for a digest that the variant does not name,
  // NOT_FOUND when the variant or an object is gone (then look up again).
  struct FetchedObject {
    std::string digest;
    EntryValue packed;
  };
  using ObjectVisitor = std::function<bool(const FetchedObject&)>;  // false: stop
  absl::Status FetchObjects(const v1::FetchObjectsRequest& request, const ObjectVisitor& visit);

  void ReportUse(const v1::ReportUseRequest& request);

  std::vector<v1::JobInfo> Jobs() const;
  size_t flights() const;
  // After a removal: forgets crashes and the variants that memory knows of; of every key when empty.
  void Forget(const std::string& compile_key);

 private:
  using FlightPtr = std::shared_ptr<Flight>;  // owned by the map, the queue and every waiter at once

  struct Variant {
    std::string variant_id;
    v1::SignedManifest signed_manifest;
  };
  std::string KeyOf(const std::string& ns, const std::string& request_key) const;
  std::vector<std::string> VariantKeys(const std::string& compile_key) const;
  // NOT_FOUND, or INVALID_ARGUMENT where the guards of all that is stored refuse the hints.
  absl::StatusOr<Variant> FindVariant(const std::string& compile_key, const v1::Hints& hints);
  absl::Status FindFailure(const std::string& compile_key);  // OK: none

  // What a caller asks for, with the graph once there is one.
  struct Wanted {
    std::string compile_key;
    std::string request_key;
    v1::RequestSections sections;
    v1::GraphNotes notes;
    std::function<absl::StatusOr<std::string>()> read_graph;
    std::shared_ptr<const std::string> graph;  // shared with flights, see Flight
    bool debug = false;
  };
  absl::Status Serve(const Caller& caller, Wanted wanted);
  // Null with no refusal: there is no flight to join, and the graph or a fresh look at the store is needed.
  absl::StatusOr<FlightPtr> JoinOrStart(const Caller& caller, const Wanted& wanted, uint64_t epoch,
                                        bool* started);
  // Waits for `flight`. True when the caller was answered; false when the caller must try again.
  absl::StatusOr<bool> Await(const Caller& caller, const FlightPtr& flight, bool started);
  void Leave(const FlightPtr& flight);

  // The flight itself, on a runner of the admission queue.
  void RunFlight(const FlightPtr& flight);
  absl::Status CompileFlight(const FlightPtr& flight);
  absl::StatusOr<v1::PlanReply> Plan(const FlightPtr& flight);
  WorkerTask PlanTask(const FlightPtr& flight);
  using EmittedByKey = absl::flat_hash_map<std::string, EmittedKernel>;
  // All requests at once, on whatever workers are free; `emitted` is told of each that succeeded.
  std::vector<WorkerResult> Emit(const FlightPtr& flight, std::vector<v1::EmitRequest> requests,
                                 const std::function<void()>& emitted);
  // `known`: what this flight emitted before. `later`: the plan's kernels that are left out, and their
  // results empty.
  absl::StatusOr<std::vector<EmittedKernel>> EmitAll(const FlightPtr& flight, const v1::PlanReply& plan,
                                                     const v1::Target& target, const EmittedByKey& known,
                                                     const absl::flat_hash_set<int>& later);
  // flight_tune.cc. Both at a time; `tuning` is set where there is something to measure, the plan is replaced
  // where another layout of images won, and its kernels get the schedules that won.
  absl::StatusOr<std::vector<EmittedKernel>> EmitAndTune(const FlightPtr& flight, const v1::Target& target,
                                                         v1::PlanReply* plan, v1::Tuning* tuning);
  // What was emitted to be measured stays in `emitted`. Where the result has images as traced, `other` is the
  // plan that has them so.
  v1::Tuning Tune(const FlightPtr& flight, const v1::PlanReply& plan, const v1::Target& target,
                  const MeasuringPool::Abandoned& abandoned, v1::PlanReply* other, EmittedByKey* emitted);
  // Of one try: without it the first plan is as good as ever.
  absl::StatusOr<v1::PlanReply> PlanAsTraced(const FlightPtr& flight,
                                             const MeasuringPool::Abandoned& abandoned);
  absl::StatusOr<std::vector<std::string>> ImagesOf(const FlightPtr& flight, const v1::KernelSubject& subject,
                                                    const v1::PlannedKernel& planned,
                                                    const v1::Target& target, EmittedByKey* emitted);
  std::vector<v1::NativeKernel> NativesFor(const v1::MatrixProduct& product, const v1::Target& target,
                                           const MeasuringPool::Abandoned& abandoned);
  std::string KeyOfKernel(const std::string& kernel, const v1::Target& target) const;
  absl::StatusOr<EmittedKernel> StoredKernel(const std::string& kernel_key);
  // Takes the least recently used variants out where the new one would be one too many.
  void MakeRoom(const std::string& compile_key, const std::string& new_key);
  absl::Status Publish(const FlightPtr& flight, const std::shared_ptr<const Artifact>& artifact);
  absl::Status Strike(const FlightPtr& flight, const WorkerResult& crash);
  void StoreFailure(const FlightPtr& flight, const absl::Status& status, bool quarantine);
  void Progress(const FlightPtr& flight, absl::string_view phase, v1::CompileEvent event);
  void SendDebug(const FlightPtr& flight, v1::DebugFile file);
  void SendPlanDebug(const FlightPtr& flight, v1::PlanReply* plan);
  void SendKernelDebug(const FlightPtr& flight, const v1::PlannedKernel& kernel, const v1::EmitReply& reply);
  bool Abandoned(const FlightPtr& flight) const;
  void Finish(const FlightPtr& flight, absl::Status status);

  const v1::Config config_;
  Store* const store_;
  WorkerPool* const pool_;
  Tuner* const tuner_;
  AdmissionQueue* const queue_;
  Stats* const stats_;

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, FlightPtr> flights_ ABSL_GUARDED_BY(mutex_);  // by CompileKey
  // Counts ended flights: who found nothing in the store before an end must look again after it.
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  // Artifacts that the store does not yet have, by manifest entry key; shared, see Artifact.
  absl::flat_hash_map<std::string, std::shared_ptr<const Artifact>> unpublished_ ABSL_GUARDED_BY(mutex_);
  // Manifest entry keys that memory holds though the catalog, which lists the disk, may not.
  std::deque<std::string> recent_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, uint32_t> strikes_ ABSL_GUARDED_BY(mutex_);  // crashes, by CompileKey
};

}  // namespace kiln
