// The compile of one flight, from the graph to the artifact, as a state machine that the ends of its tasks
// drive: plan on a worker → per kernel: the store's kernel records, the missing ones emitted on all free
// workers; with max-autotune, meanwhile: what the store has not of the program's measurements, measured on a
// GPU → manifest. It holds no thread but in the steps below: what it needs next it says by `FlightNext`.
//
// What it asks of workers is in worker_requests.h, what it measures in flight_tuning.h.
//
// Threads: several steps may run at a time, each on any thread; Stop at any time.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/build/artifact.h"
#include "server/flight/flight_compiler.h"
#include "server/flight/flight_event.h"
#include "server/flight/flight_request.h"
#include "server/flight/flight_task.h"
#include "server/flight/flight_tuning.h"
#include "server/flight/worker_requests.h"
#include "server/pool/worker_pool.h"

namespace kiln {

class FlightCompile {
 public:
  // Calls from any thread, which return at once.
  struct Outside {
    // The phase, and an event or null.
    std::function<void(absl::string_view phase, FlightEventPtr event)> progress;
    std::function<void(std::vector<FlightTask> tasks)> ask;  // beside a step that goes on
  };
  // `compiler` outlives it.
  FlightCompile(FlightCompiler* compiler, FlightRequestPtr request, Outside outside);

  // For the worker, without `done`; a plan or an emit starts with it. It lives no longer than this.
  WorkerTask TaskFor(uint64_t number) { return asked_.TaskFor(number); }
  // A step, when the worker has ended.
  FlightNext After(uint64_t number, WorkerResult result);
  // A step that waits for the tier, after one that `tries_tuning`.
  FlightNext TryTuning();
  // Blocks while it measures, on a thread of the GPU's; then a step.
  void TuneOnGpu() { tuning_.TryOnGpu(); }
  FlightNext AfterTuning();
  // Nobody waits: what is at work ends early.
  void Stop() { asked_.Stop(); }

 private:
  using Next = WorkerRequests::Next;

  FlightNext Say(Next next);

  v1::Frame EmitFrame(const std::string& kernel, const v1::KernelNotes& notes) const;
  v1::Frame KernelFrame(int kernel) const;
  Next Planned(WorkerResult result);
  Next StartEmits();
  bool TakeKernel(const std::string& key, EmittedKernel* kernel);
  Next Emitted(int kernel, WorkerResult result);
  bool PartEnded(bool tuning) ABSL_LOCKS_EXCLUDED(mutex_);
  Next TuneWithoutGpu();
  Next PlannedTracedLayout(WorkerResult result);
  Next TuningEnded();
  // What follows when a round of emits and the tuning beside it have both ended.
  Next GoOn();
  Next Finish();

  void Progress(absl::string_view phase, v1::CompileEvent event);
  void SendDebug(v1::DebugFile file);
  void SendPlanDebug();
  void SendKernelDebug(const v1::PlannedKernel& kernel, const v1::EmitReply& reply);

  FlightCompiler* const compiler_;
  const FlightRequestPtr request_;
  const Outside outside_;
  WorkerRequests asked_;
  std::atomic<bool> failed_{false};

  absl::Mutex mutex_;
  size_t emits_left_ ABSL_GUARDED_BY(mutex_) = 0;
  bool tunes_ ABSL_GUARDED_BY(mutex_) = false;

  // Written by one step at a time, before the tasks that read it are asked for.
  struct Kernels {
    std::vector<std::string> keys;       // by kernel of the plan
    std::vector<EmittedKernel> emitted;  // likewise; each is its task's
    absl::flat_hash_set<int> later;      // those whose schedules are still to be found
    FlightTuning::EmittedByKey known;    // what this flight has emitted, for its second round
    std::vector<Holds::Hold> holds;      // of the objects that it takes from the store
    std::atomic<uint32_t> done{0};
  };
  v1::Target target_;
  MonotonicTime emitting_;
  v1::PlanReply plan_;
  Kernels kernels_;
  bool measures_ = false;  // there is something to measure
  bool second_round_ = false;

  FlightTuning tuning_;  // GoOn's when it has ended
};

}  // namespace kiln
