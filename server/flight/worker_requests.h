// The requests of one compile to workers, with retries. A request is named by the number of its task, and
// removed when a worker has answered.
//
// Thread-safe. Limits: who asks bounds what is asked.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "compiler/support/monotonic_time.h"
#include "kiln/v1/worker.pb.h"
#include "server/flight/flight_compiler.h"
#include "server/flight/flight_request.h"
#include "server/flight/flight_task.h"
#include "server/pool/worker_pool.h"

namespace kiln {

class WorkerRequests {
 public:
  using Next = absl::StatusOr<FlightNext>;  // an error is the outcome
  struct Work {
    FlightTask task;
    std::function<v1::Frame()> request;
    absl::Duration limit;
    // A step; or `awaited` is told, for tuning that waits.
    std::function<Next(WorkerResult)> after;
    std::shared_ptr<std::promise<WorkerResult>> awaited;  // shared with nobody; std::function copies
    bool once = false;                                    // a crash is told, and not tried again
    bool started = false;
  };

  // `compiler` outlives it. `ask`: as FlightCompile::Outside's.
  WorkerRequests(FlightCompiler* compiler, FlightRequestPtr request,
                 std::function<void(std::vector<FlightTask>)> ask)
      : compiler_(compiler), request_(std::move(request)), ask_(std::move(ask)) {}

  // The first plan, whose task is number 0.
  void AddFirst(Work work) ABSL_LOCKS_EXCLUDED(mutex_);
  FlightTask Add(Work work) ABSL_LOCKS_EXCLUDED(mutex_);
  // What a leased GPU waits for, before all that wait.
  std::vector<std::future<WorkerResult>> Ask(std::vector<v1::Frame> requests, absl::Duration limit)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // For the worker, without `done`. It lives no longer than this.
  WorkerTask TaskFor(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  // When the worker has ended; nothing where nothing follows.
  std::optional<Next> After(uint64_t number, WorkerResult result) ABSL_LOCKS_EXCLUDED(mutex_);
  // Nobody waits: what is at work ends early.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  bool stopped() const { return stopped_; }

  MonotonicTime first_begun() const ABSL_LOCKS_EXCLUDED(mutex_);  // the plan
  // What was lost, and what answers hold.
  void AddTo(FlightNext* next) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Next TryAgain(const FlightTask& task, const WorkerResult& crash) ABSL_LOCKS_EXCLUDED(mutex_);

  FlightCompiler* const compiler_;
  const FlightRequestPtr request_;
  const std::function<void(std::vector<FlightTask>)> ask_;
  std::atomic<bool> stopped_{false};
  std::atomic<uint64_t> held_bytes_{0};  // of answers

  mutable absl::Mutex mutex_;
  MonotonicTime first_begun_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Work> works_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  FlightCompiler::Losses losses_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kiln
