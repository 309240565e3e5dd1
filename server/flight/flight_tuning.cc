#include "server/flight/flight_tuning.h"

#include <utility>

#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "server/build/image_layout.h"
#include "server/flight/tuning_frames.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

absl::flat_hash_map<std::string, int> KernelsByDigest(const v1::PlanReply& plan) {
  absl::flat_hash_map<std::string, int> kernels;
  for (int k = 0; k < plan.kernels_size(); ++k) kernels[Sha256(plan.kernels(k).kernel())] = k;
  return kernels;
}

// The kernels of our own, or what libraries compute.
enum class Of { kKernels, kLibraries };

Tuner::Tunables Tunables(Of of, const v1::PlanReply& plan) {
  Tuner::Tunables tunables;
  for (const v1::Tunable& tunable : plan.tunables()) {
    if (tunable.has_kernel() == (of == Of::kKernels)) *tunables.Add() = tunable;
  }
  return tunables;
}

}  // namespace

void FlightTuning::ApplySchedules(v1::PlanReply* plan) {
  const absl::flat_hash_map<std::string, int> kernels = KernelsByDigest(*plan);
  for (v1::Measurement& measured : *tuning_.mutable_measurements()) {
    if (!measured.tunable().has_kernel()) continue;
    const auto found = kernels.find(measured.tunable().kernel().digest());
    if (found == kernels.end()) continue;
    v1::PlannedKernel* kernel = plan->mutable_kernels(found->second);
    measured.set_name(kernel->notes().name());
    if (!measured.winner().has_schedule()) continue;
    absl::StatusOr<std::string> scheduled =
        WithSchedule(kernel->kernel(), measured.winner().schedule(), *parts_.target);
    if (!scheduled.ok()) {
      spdlog::warn("kernel {} keeps its schedule: {}", kernel->notes().name(), scheduled.status().ToString());
      continue;
    }
    kernel->set_kernel(*std::move(scheduled));
  }
}

absl::flat_hash_set<int> MeasuredKernels(const v1::PlanReply& plan) {
  const absl::flat_hash_map<std::string, int> by_digest = KernelsByDigest(plan);
  absl::flat_hash_set<int> measured;
  for (const v1::Tunable& tunable : plan.tunables()) {
    const auto found = by_digest.find(tunable.kernel().digest());
    if (tunable.has_kernel() && found != by_digest.end()) measured.insert(found->second);
  }
  return measured;
}

// ---- Tries -----------------------------------------------------------------------------------

FlightTuning::Lacks FlightTuning::TryWithoutGpu() {
  if (session_ == nullptr) {
    parts_.progress({});
    Tuner::Job job;
    job.ns = parts_.request->ns;
    job.target = *parts_.target;
    job.abandoned = parts_.abandoned;
    job.progress = [this](uint32_t done, uint32_t total) {
      v1::CompileEvent event;
      event.mutable_tuned()->set_done(done);
      event.mutable_tuned()->set_total(total);
      parts_.progress(std::move(event));
    };
    job.images = [this](const v1::KernelTunable& tunable) { return ImagesOf(tunable); };
    job.natives = [this](const v1::Gemm& gemm) { return NativesFor(gemm); };
    session_ = std::make_unique<Tuner::Session>(parts_.compiler->tuner(), std::move(job));
  }
  session_->Begin(/*may_measure=*/false);
  return Tune(/*on_gpu=*/false);
}

void FlightTuning::TryOnGpu() {
  session_->Begin(/*may_measure=*/true);
  Tune(/*on_gpu=*/true);
  session_->End();
}

void FlightTuning::End() {
  const std::vector<v1::Tunable> missing = session_->missing();
  tuning_.mutable_waits()->Assign(missing.begin(), missing.end());
  if (!missing.empty()) tuning_.set_waits_for(WorkList::KindOf(*parts_.target));
}

FlightTuning::Lacks FlightTuning::Tune(bool on_gpu) {
  const v1::PlanReply& plan = *parts_.plan;
  chosen_ = &plan;
  tuning_.Clear();
  session_->Tune(Tunables(Of::kLibraries, plan), &tuning_);
  if (session_->lacks_gpu()) return Lacks::kGpu;
  if (plan.has_images()) {
    if (const Lacks lacks = WeighImages(on_gpu); lacks != Lacks::kNothing) return lacks;
  }
  session_->Tune(Tunables(Of::kKernels, *chosen_), &tuning_);
  return session_->lacks_gpu() ? Lacks::kGpu : Lacks::kNothing;
}

FlightTuning::Lacks FlightTuning::WeighImages(bool on_gpu) {
  bool lacks_plan = false;
  const kiln::PlanTracedLayout plan_traced_layout = [&]() -> absl::StatusOr<v1::PlanReply> {
    if (!other_.has_value() && on_gpu) other_ = PlanTracedLayout();
    if (other_.has_value()) return *other_;
    lacks_plan = true;
    return absl::UnavailableError("not planned yet");
  };
  v1::PlanReply other;
  const v1::ImageLayout layout = ChooseImageLayout(*parts_.plan, plan_traced_layout, *session_, &other);
  if (session_->lacks_gpu()) return Lacks::kGpu;
  if (lacks_plan) return Lacks::kPlan;
  if (layout.as_traced()) {
    chosen_ = &**other_;
    tuning_.Clear();
    session_->Tune(Tunables(Of::kLibraries, *chosen_), &tuning_);
    if (session_->lacks_gpu()) return Lacks::kGpu;
  }
  *tuning_.mutable_images() = layout;
  return Lacks::kNothing;
}

// ---- What workers do for it ------------------------------------------------------------------

absl::StatusOr<v1::PlanReply> FlightTuning::PlanTracedLayout() {
  std::vector<v1::Frame> requests;
  requests.push_back(PlanFrame(*parts_.request, /*keep_traced_layout=*/true));
  const absl::Duration limit = absl::Seconds(parts_.compiler->limits().plan_seconds_max());
  return PlanOf(parts_.workers->Ask(std::move(requests), limit)[0].get(), parts_.compiler->fingerprint());
}

// The first is the planned kernel's own.
absl::StatusOr<std::vector<std::string>> FlightTuning::ImagesOf(const v1::KernelTunable& tunable) {
  const absl::flat_hash_map<std::string, int> kernels = KernelsByDigest(*chosen_);
  const auto found = kernels.find(tunable.digest());
  if (found == kernels.end()) return absl::InternalError("a measured kernel that the plan has not");
  const v1::PlannedKernel& planned = chosen_->kernels(found->second);
  KILN_ASSIGN_OR_RETURN(std::vector<v1::Frame> requests,
                        FramesOfSchedules(tunable, planned.kernel(), planned.notes(), *parts_.target));
  const std::vector<v1::Frame> asked = requests;
  std::vector<std::future<WorkerResult>> results =
      parts_.workers->Ask(std::move(requests), absl::Seconds(parts_.compiler->limits().emit_seconds_max()));
  std::vector<std::string> images;
  for (size_t k = 0; k < results.size(); ++k) {
    const WorkerResult result = results[k].get();
    KILN_RETURN_IF_ERROR(result.status);  // that of a crash, too: the kernel is not measured
    const v1::EmitReply& reply = result.reply.emit_reply();
    const std::string& kernel = asked[k].emit().kernel();
    const std::string key = parts_.compiler->KeyOfKernel(*parts_.request, kernel, *parts_.target);
    KILN_ASSIGN_OR_RETURN(kernels_[key], PackKernel(key, kernel, reply));
    images.push_back(reply.object());
    parts_.compiler->stats().kernels.emitted++;
  }
  return images;
}

std::future<std::vector<v1::NativeKernel>> FlightTuning::NativesFor(const v1::Gemm& gemm) {
  std::vector<v1::Frame> requests;
  requests.push_back(FrameOfGemm(gemm, *parts_.target));
  std::future<WorkerResult> asked = std::move(parts_.workers->Ask(
      std::move(requests), absl::Seconds(parts_.compiler->limits().emit_seconds_max()))[0]);
  // Runs when it is asked for its value.
  return std::async(std::launch::deferred,
                    [asked = std::move(asked)]() mutable { return NativesOf(asked.get()); });
}

}  // namespace kiln
