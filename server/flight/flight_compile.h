// The compile of one flight, from the graph to the artifact, as a state machine that the ends of its tasks
// drive: plan on a worker → per kernel: the store's kernel records, the missing ones emitted on all free
// workers; with max-autotune, meanwhile: what the store has not of the program's measurements, measured on a
// GPU → manifest. It holds no thread but in the steps below: what it needs next it says by `FlightNext`.
//
// Tuning is tried without a GPU first, with what the store and the cluster have. Where that is not enough it
// asks for what is missing, a second plan or a turn on a GPU, and starts over with it; what was found out
// stays.
//
// Threads: several steps may run at a time, each on any thread; Stop at any time.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/build/artifact.h"
#include "server/flight/flight_compiler.h"
#include "server/flight/flight_event.h"
#include "server/flight/flight_request.h"
#include "server/flight/flight_task.h"
#include "server/pool/worker_pool.h"
#include "server/tune/tuner.h"

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
  WorkerTask TaskFor(uint64_t number);
  // A step, when the worker has ended.
  FlightNext After(uint64_t number, WorkerResult result);
  // A step that waits for the tier, after one that `tries_tuning`.
  FlightNext TryTuning();
  // Blocks while it measures, on a thread of the GPU's; then a step.
  void TuneOnGpu();
  FlightNext AfterTuning();
  // Nobody waits: what is at work ends early.
  void Stop();

 private:
  using Next = absl::StatusOr<FlightNext>;  // an error is the outcome
  using EmittedByKey = absl::flat_hash_map<std::string, EmittedKernel>;
  // What a worker is to do, as often as it has to be tried.
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
  enum class Lacks { kNothing, kPlan, kGpu };

  FlightTask Add(Work work) ABSL_LOCKS_EXCLUDED(mutex_);
  Next TryAgain(const FlightTask& task, const WorkerResult& crash) ABSL_LOCKS_EXCLUDED(mutex_);
  FlightNext Say(Next next) ABSL_LOCKS_EXCLUDED(mutex_);

  v1::Frame PlanFrame(bool keep_traced_layout) const;
  v1::Frame EmitFrame(const std::string& kernel, const v1::KernelNotes& notes) const;
  v1::Frame KernelFrame(int kernel) const;
  Next Planned(WorkerResult result);
  Next StartEmits();
  bool TakeKernel(const std::string& key, EmittedKernel* kernel);
  Next Emitted(int kernel, WorkerResult result);
  bool PartEnded(bool tuning) ABSL_LOCKS_EXCLUDED(mutex_);
  // What follows when a round of emits and the tuning beside it have both ended.
  Next GoOn();
  Next Finish();

  // flight_tune.cc
  Next TuneWithoutGpu();
  Next TuningEnded();
  Lacks Tune(bool on_gpu);
  Lacks WeighImages(bool on_gpu);
  Next PlannedAsTraced(WorkerResult result);
  absl::StatusOr<v1::PlanReply> PlanAsTraced();
  absl::StatusOr<std::vector<std::string>> ImagesOf(const v1::KernelTunable& tunable);
  std::future<std::vector<v1::NativeKernel>> NativesFor(const v1::MatrixProduct& product);
  // What a leased GPU waits for, before all that wait.
  std::vector<std::future<WorkerResult>> AskWorkers(std::vector<v1::Frame> requests, absl::Duration limit)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::flat_hash_set<int> MeasuredKernels() const;  // of the plan, by position
  void GiveSchedules();

  void Progress(absl::string_view phase, v1::CompileEvent event);
  void SendDebug(v1::DebugFile file);
  void SendPlanDebug();
  void SendKernelDebug(const v1::PlannedKernel& kernel, const v1::EmitReply& reply);

  FlightCompiler* const compiler_;
  const FlightRequestPtr request_;
  const Outside outside_;
  std::atomic<bool> stopped_{false};
  std::atomic<bool> failed_{false};
  std::atomic<uint64_t> held_bytes_{0};  // of answers

  absl::Mutex mutex_;
  MonotonicTime planning_ ABSL_GUARDED_BY(mutex_);  // when the plan was first begun
  absl::flat_hash_map<uint64_t, Work> works_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_work_ ABSL_GUARDED_BY(mutex_) = 0;
  FlightCompiler::Losses losses_ ABSL_GUARDED_BY(mutex_);
  size_t emits_left_ ABSL_GUARDED_BY(mutex_) = 0;
  bool tunes_ ABSL_GUARDED_BY(mutex_) = false;

  // Written by one step at a time, before the tasks that read it are asked for.
  v1::Target target_;
  MonotonicTime emitting_;
  v1::PlanReply plan_;
  std::vector<std::string> keys_;       // by kernel of the plan
  std::vector<EmittedKernel> kernels_;  // likewise; each is its task's
  absl::flat_hash_set<int> later_;      // kernels whose schedules are still to be found
  EmittedByKey known_;                  // what this flight has emitted, for its second round
  std::vector<Holds::Hold> holds_;      // of the objects that it takes from the store
  bool measures_ = false;               // there is something to measure
  bool second_round_ = false;
  std::atomic<uint32_t> kernels_done_{0};

  // Tuning's, of which one step runs at a time; GoOn's when it has ended.
  std::unique_ptr<Tuner::Session> session_;
  v1::Tuning tuning_;
  std::optional<absl::StatusOr<v1::PlanReply>> other_;  // with images as traced; nothing: not asked for
  EmittedByKey tuned_kernels_;                          // emitted to be measured
  const v1::PlanReply* chosen_ = nullptr;               // plan_ or other_
};

}  // namespace kiln
