// Compiles one flight, from the graph to the artifact: plan on a worker → per kernel: the store's kernel
// records, the missing ones emitted over all free workers; with max-autotune, meanwhile: what the store has
// not of the program's measurements, measured → manifest.
//
// Refusals that would only repeat (UNIMPLEMENTED, INVALID_ARGUMENT) are stored before they are told. A key
// that brought down two workers is refused with FAILED_PRECONDITION for a day, or until it is removed.
//
// Thread-safe; a compile blocks its caller's thread.
#pragma once

#include <atomic>
#include <cstdint>
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
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "cache/store.h"
#include "kiln/v1/config.pb.h"
#include "server/build/artifact.h"
#include "server/flight/flight_event.h"
#include "server/flight/flight_table.h"
#include "server/flight/stored_keys.h"
#include "server/observe/stats.h"
#include "server/pool/worker_pool.h"
#include "server/tune/tuner.h"

namespace kiln {

// One compile in flight. Shared by its runner, who may stop it, and its tasks with the workers.
struct Compilation {
  FlightRequestPtr request;
  // The phase, and an event or null. Any thread.
  std::function<void(absl::string_view phase, FlightEventPtr event)> progress;
  std::atomic<bool> stopped{false};  // nobody waits

  // The runner's own.
  uint32_t workers_killed = 0;  // from outside, while they worked for this flight
  uint32_t workers_lost = 0;    // those, and others that crashed
  uint32_t kernels_total = 0;
  std::atomic<uint32_t> kernels_done{0};
  std::vector<Holds::Hold> holds;  // of the objects that it takes from the store
};

class FlightCompiler {
 public:
  // All outlive the compiler.
  FlightCompiler(const v1::Config& config, Store* store, StoredKeys* keys, WorkerPool* pool, Tuner* tuner,
                 Stats* stats)
      : config_(config), store_(store), keys_(keys), pool_(pool), tuner_(tuner), stats_(stats) {}

  using CompilationPtr = std::shared_ptr<Compilation>;
  // CANCELLED when it was stopped; otherwise what waiters are told of the graph.
  absl::StatusOr<std::shared_ptr<const Artifact>> Compile(const CompilationPtr& flight);

  // After a removal: forgets crashes; of every key when empty.
  void Forget(const std::string& compile_key);

 private:
  absl::StatusOr<std::shared_ptr<const Artifact>> CompileOnce(const CompilationPtr& flight);
  absl::StatusOr<v1::PlanReply> Plan(const CompilationPtr& flight);
  static WorkerTask TaskFor(const Compilation& flight);  // without what is asked
  WorkerTask PlanTask(const CompilationPtr& flight);
  using EmittedByKey = absl::flat_hash_map<std::string, EmittedKernel>;
  // All requests at once, on whatever workers are free; `emitted` is told of each that succeeded.
  std::vector<WorkerResult> Emit(const CompilationPtr& flight, std::vector<v1::EmitRequest> requests,
                                 const std::function<void()>& emitted);
  // `known`: what this flight emitted before. `later`: the plan's kernels that are left out, and their
  // results empty.
  absl::StatusOr<std::vector<EmittedKernel>> EmitAll(const CompilationPtr& flight, const v1::PlanReply& plan,
                                                     const v1::Target& target, const EmittedByKey& known,
                                                     const absl::flat_hash_set<int>& later);
  // flight_tune.cc. Both at a time; `tuning` is set where there is something to measure, the plan is replaced
  // where another layout of images won, and its kernels get the schedules that won.
  absl::StatusOr<std::vector<EmittedKernel>> EmitAndTune(const CompilationPtr& flight,
                                                         const v1::Target& target, v1::PlanReply* plan,
                                                         v1::Tuning* tuning);
  // What was emitted to be measured stays in `emitted`. Where the result has images as traced, `other` is the
  // plan that has them so.
  v1::Tuning Tune(const CompilationPtr& flight, const v1::PlanReply& plan, const v1::Target& target,
                  const MeasuringPool::Abandoned& abandoned, v1::PlanReply* other, EmittedByKey* emitted);
  // Of one try: without it the first plan is as good as ever.
  absl::StatusOr<v1::PlanReply> PlanAsTraced(const CompilationPtr& flight,
                                             const MeasuringPool::Abandoned& abandoned);
  absl::StatusOr<std::vector<std::string>> ImagesOf(const CompilationPtr& flight,
                                                    const v1::KernelSubject& subject,
                                                    const v1::PlannedKernel& planned,
                                                    const v1::Target& target, EmittedByKey* emitted);
  std::vector<v1::NativeKernel> NativesFor(const CompilationPtr& flight, const v1::MatrixProduct& product,
                                           const v1::Target& target,
                                           const MeasuringPool::Abandoned& abandoned);
  std::string KeyOfKernel(const std::string& kernel, const v1::Target& target) const;
  absl::Status Strike(const CompilationPtr& flight, const WorkerResult& crash);
  bool IsLastStrike(const std::string& compile_key);
  void Progress(const CompilationPtr& flight, absl::string_view phase, v1::CompileEvent event);
  void SendDebug(const CompilationPtr& flight, v1::DebugFile file);
  void SendPlanDebug(const CompilationPtr& flight, v1::PlanReply* plan);
  void SendKernelDebug(const CompilationPtr& flight, const v1::PlannedKernel& kernel,
                       const v1::EmitReply& reply);

  const v1::Config config_;
  Store* const store_;
  StoredKeys* const keys_;
  WorkerPool* const pool_;
  Tuner* const tuner_;
  Stats* const stats_;

  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, uint32_t> strikes_ ABSL_GUARDED_BY(mutex_);  // crashes, by CompileKey
  std::deque<std::string> struck_ ABSL_GUARDED_BY(mutex_);  // keys of strikes_, the oldest first
};

}  // namespace kiln
