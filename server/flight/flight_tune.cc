// What max-autotune measures of a plan, and what the plan's kernels become by it. See flight_compile.h.
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "server/build/image_layout.h"
#include "server/flight/flight_compile.h"
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

// Names the kernels that were measured, and gives them the schedules that won.
void FlightCompile::GiveSchedules() {
  const absl::flat_hash_map<std::string, int> kernels = KernelsByDigest(plan_);
  for (v1::Measurement& measured : *tuning_.mutable_measurements()) {
    if (!measured.tunable().has_kernel()) continue;
    const auto found = kernels.find(measured.tunable().kernel().digest());
    if (found == kernels.end()) continue;
    v1::PlannedKernel* kernel = plan_.mutable_kernels(found->second);
    measured.set_name(kernel->notes().name());
    if (!measured.winner().has_schedule()) continue;
    absl::StatusOr<std::string> scheduled =
        WithSchedule(kernel->kernel(), measured.winner().schedule(), target_);
    if (!scheduled.ok()) {
      spdlog::warn("kernel {} keeps its schedule: {}", kernel->notes().name(), scheduled.status().ToString());
      continue;
    }
    kernel->set_kernel(*std::move(scheduled));
  }
}

absl::flat_hash_set<int> FlightCompile::MeasuredKernels() const {
  const absl::flat_hash_map<std::string, int> by_digest = KernelsByDigest(plan_);
  absl::flat_hash_set<int> measured;
  for (const v1::Tunable& tunable : plan_.tunables()) {
    const auto found = by_digest.find(tunable.kernel().digest());
    if (tunable.has_kernel() && found != by_digest.end()) measured.insert(found->second);
  }
  return measured;
}

// ---- Tries -----------------------------------------------------------------------------------

FlightNext FlightCompile::TryTuning() { return Say(TuneWithoutGpu()); }

// With what there is, and asks for what is missing.
FlightCompile::Next FlightCompile::TuneWithoutGpu() {
  if (session_ == nullptr) {
    Progress("tuning", {});
    Tuner::Job job;
    job.ns = request_->ns;
    job.target = target_;
    job.abandoned = [this] { return stopped_ || failed_; };
    job.progress = [this](uint32_t done, uint32_t total) {
      v1::CompileEvent event;
      event.mutable_tuned()->set_done(done);
      event.mutable_tuned()->set_total(total);
      Progress("tuning", std::move(event));
    };
    job.images = [this](const v1::KernelTunable& tunable) { return ImagesOf(tunable); };
    job.natives = [this](const v1::MatrixProduct& product) { return NativesFor(product); };
    session_ = std::make_unique<Tuner::Session>(compiler_->tuner(), std::move(job));
  }
  session_->Begin(/*may_measure=*/false);
  FlightNext next;
  switch (Tune(/*on_gpu=*/false)) {
    case Lacks::kNothing: return TuningEnded();
    case Lacks::kGpu: {
      Work work;
      work.task.kind = TaskQueue::Kind::kTune;
      next.tasks.push_back(Add(std::move(work)));
      return next;
    }
    case Lacks::kPlan: {
      Work work;
      work.request = [this] { return PlanFrame(/*keep_traced_layout=*/true); };
      work.limit = absl::Seconds(compiler_->limits().plan_seconds_max());
      work.after = [this](WorkerResult result) { return PlannedAsTraced(std::move(result)); };
      work.once = true;  // without it the first plan is as good as ever
      next.tasks.push_back(Add(std::move(work)));
      return next;
    }
  }
  return next;
}

void FlightCompile::TuneOnGpu() {
  session_->Begin(/*may_measure=*/true);
  Tune(/*on_gpu=*/true);
  session_->End();
}

FlightNext FlightCompile::AfterTuning() { return Say(TuningEnded()); }

FlightCompile::Next FlightCompile::TuningEnded() {
  const std::vector<v1::Tunable> missing = session_->missing();
  tuning_.mutable_waits()->Assign(missing.begin(), missing.end());
  if (!missing.empty()) tuning_.set_waits_for(WorkList::KindOf(target_));
  return PartEnded(/*tuning=*/true) ? GoOn() : Next(FlightNext());
}

FlightCompile::Lacks FlightCompile::Tune(bool on_gpu) {
  chosen_ = &plan_;
  tuning_.Clear();
  session_->Tune(Tunables(Of::kLibraries, plan_), &tuning_);
  if (session_->lacks_gpu()) return Lacks::kGpu;
  if (plan_.has_images()) {
    if (const Lacks lacks = WeighImages(on_gpu); lacks != Lacks::kNothing) return lacks;
  }
  session_->Tune(Tunables(Of::kKernels, *chosen_), &tuning_);
  return session_->lacks_gpu() ? Lacks::kGpu : Lacks::kNothing;
}

FlightCompile::Lacks FlightCompile::WeighImages(bool on_gpu) {
  bool lacks_plan = false;
  const kiln::PlanAsTraced plan_as_traced = [&]() -> absl::StatusOr<v1::PlanReply> {
    if (!other_.has_value() && on_gpu) other_ = PlanAsTraced();
    if (other_.has_value()) return *other_;
    lacks_plan = true;
    return absl::UnavailableError("not planned yet");
  };
  v1::PlanReply other;
  const v1::ImageLayout layout = ChooseImageLayout(plan_, plan_as_traced, *session_, &other);
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

FlightCompile::Next FlightCompile::PlannedAsTraced(WorkerResult result) {
  other_ = PlanOf(std::move(result), compiler_->fingerprint());
  FlightNext next;
  next.tries_tuning = true;
  return next;
}

absl::StatusOr<v1::PlanReply> FlightCompile::PlanAsTraced() {
  std::vector<v1::Frame> requests;
  requests.push_back(PlanFrame(/*keep_traced_layout=*/true));
  const absl::Duration limit = absl::Seconds(compiler_->limits().plan_seconds_max());
  return PlanOf(AskWorkers(std::move(requests), limit)[0].get(), compiler_->fingerprint());
}

std::vector<std::future<WorkerResult>> FlightCompile::AskWorkers(std::vector<v1::Frame> requests,
                                                                 absl::Duration limit) {
  std::vector<std::future<WorkerResult>> results;
  std::vector<FlightTask> tasks;
  for (v1::Frame& request : requests) {
    Work work;
    work.task.kind = request.has_plan() ? TaskQueue::Kind::kPlan : TaskQueue::Kind::kEmit;
    work.task.urgent = true;
    work.awaited = std::make_shared<std::promise<WorkerResult>>();
    work.once = true;
    work.limit = limit;
    work.request = [request = std::move(request)] { return request; };
    results.push_back(work.awaited->get_future());
    tasks.push_back(Add(std::move(work)));
  }
  outside_.ask(std::move(tasks));
  // Who stopped it before knew nothing of them.
  if (stopped_) Stop();
  return results;
}

// The first is the planned kernel's own.
absl::StatusOr<std::vector<std::string>> FlightCompile::ImagesOf(const v1::KernelTunable& tunable) {
  const absl::flat_hash_map<std::string, int> kernels = KernelsByDigest(*chosen_);
  const auto found = kernels.find(tunable.digest());
  if (found == kernels.end()) return absl::InternalError("a measured kernel that the plan has not");
  const v1::PlannedKernel& planned = chosen_->kernels(found->second);
  KILN_ASSIGN_OR_RETURN(std::vector<v1::Frame> requests,
                        FramesOfSchedules(tunable, planned.kernel(), planned.notes(), target_));
  const std::vector<v1::Frame> asked = requests;
  std::vector<std::future<WorkerResult>> results =
      AskWorkers(std::move(requests), absl::Seconds(compiler_->limits().emit_seconds_max()));
  std::vector<std::string> images;
  for (size_t k = 0; k < results.size(); ++k) {
    const WorkerResult result = results[k].get();
    KILN_RETURN_IF_ERROR(result.status);  // that of a crash, too: the kernel is not measured
    const v1::EmitReply& reply = result.reply.emit_reply();
    const std::string& kernel = asked[k].emit().kernel();
    const std::string key = compiler_->KeyOfKernel(*request_, kernel, target_);
    KILN_ASSIGN_OR_RETURN(tuned_kernels_[key], PackKernel(key, kernel, reply));
    images.push_back(reply.object());
    compiler_->stats().kernels_emitted++;
  }
  return images;
}

std::future<std::vector<v1::NativeKernel>> FlightCompile::NativesFor(const v1::MatrixProduct& product) {
  std::vector<v1::Frame> requests;
  requests.push_back(FrameOfProduct(product, target_));
  std::future<WorkerResult> asked =
      std::move(AskWorkers(std::move(requests), absl::Seconds(compiler_->limits().emit_seconds_max()))[0]);
  // Runs when it is asked for its value.
  return std::async(std::launch::deferred,
                    [asked = std::move(asked)]() mutable { return NativesOf(asked.get()); });
}

}  // namespace kiln
