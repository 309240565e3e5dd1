// What max-autotune measures of one plan, and what the plan's kernels become by it.
//
// It is tried without a GPU first, with what the store and the cluster have. Where that is not enough it
// lacks a second plan or a GPU, and is tried again with it; what was found out stays.
//
// Threads: one try at a time, each on any thread; what it found is asked for when the last has ended. Limits:
// the tuner's.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/tuning.pb.h"
#include "kiln/v1/worker.pb.h"
#include "server/build/artifact.h"
#include "server/flight/flight_compiler.h"
#include "server/flight/flight_request.h"
#include "server/flight/worker_requests.h"
#include "server/tune/tuner.h"

namespace kiln {

class FlightTuning {
 public:
  using EmittedByKey = absl::flat_hash_map<std::string, EmittedKernel>;
  // All but the functions outlive it. `target` and `plan` are there from the first try on, and stay as they
  // are until the last has ended.
  struct Parts {
    FlightCompiler* compiler;
    FlightRequestPtr request;
    const v1::Target* target;
    const v1::PlanReply* plan;
    WorkerRequests* workers;
    std::function<bool()> abandoned;
    std::function<void(v1::CompileEvent event)> progress;
  };
  explicit FlightTuning(Parts parts) : parts_(std::move(parts)) {}

  enum class Lacks { kNothing, kPlan, kGpu };
  // With what there is. It may wait for the tier.
  Lacks TryWithoutGpu();
  // The plan with the traced layout, after Lacks::kPlan.
  void TakePlan(absl::StatusOr<v1::PlanReply> traced_layout) { other_ = std::move(traced_layout); }
  // Blocks while it measures, on a thread of the GPU's.
  void TryOnGpu();
  // After the last try: what is still missing is said.
  void End();

  // ---- What was found ----
  const v1::Tuning& found() const { return tuning_; }
  bool prefers_traced_layout() const { return tuning_.images().as_traced(); }
  v1::PlanReply TakeTracedLayoutPlan() { return **std::move(other_); }
  EmittedByKey TakeKernels() { return std::move(kernels_); }  // emitted to be measured
  // Writes the schedules that won into `plan`, and names the kernels that were measured.
  void ApplySchedules(v1::PlanReply* plan);

 private:
  Lacks Tune(bool on_gpu);
  Lacks WeighImages(bool on_gpu);
  absl::StatusOr<v1::PlanReply> PlanTracedLayout();
  absl::StatusOr<std::vector<std::string>> ImagesOf(const v1::KernelTunable& tunable);
  std::future<std::vector<v1::NativeKernel>> NativesFor(const v1::Gemm& gemm);

  const Parts parts_;
  std::unique_ptr<Tuner::Session> session_;
  v1::Tuning tuning_;
  std::optional<absl::StatusOr<v1::PlanReply>> other_;  // with the traced layout; nothing: not requested
  EmittedByKey kernels_;
  const v1::PlanReply* chosen_ = nullptr;  // the plan or the other
};

// Those that have a schedule to be found, by position.
absl::flat_hash_set<int> MeasuredKernels(const v1::PlanReply& plan);

}  // namespace kiln
