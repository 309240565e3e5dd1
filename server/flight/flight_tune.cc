// What max-autotune measures of a plan, and what the plan's kernels become by it. See flight_compiler.h.
#include <atomic>
#include <functional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "server/build/image_layout.h"
#include "server/flight/flight_compiler.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

// The serialized kernel with that schedule.
absl::StatusOr<std::string> WithThreads(const std::string& bytes, const v1::ThreadSchedule& threads) {
  v1::Kernel kernel;
  KILN_RETURN_IF_ERROR(ParseProto(bytes, "kernel", &kernel));
  *kernel.mutable_schedule()->mutable_threads() = threads;
  return SerializeDeterministic(kernel);
}

absl::flat_hash_map<std::string, int> KernelsByDigest(const v1::PlanReply& plan) {
  absl::flat_hash_map<std::string, int> kernels;
  for (int k = 0; k < plan.kernels_size(); ++k) kernels[Sha256(plan.kernels(k).kernel())] = k;
  return kernels;
}

// Names the kernels that were measured, and gives them the schedules that won.
void GiveSchedules(v1::PlanReply* plan, v1::Tuning* tuning) {
  const absl::flat_hash_map<std::string, int> kernels = KernelsByDigest(*plan);
  for (v1::Measurement& measured : *tuning->mutable_measurements()) {
    if (!measured.subject().has_kernel()) continue;
    const auto found = kernels.find(measured.subject().kernel().digest());
    if (found == kernels.end()) continue;
    v1::PlannedKernel* kernel = plan->mutable_kernels(found->second);
    measured.set_name(kernel->notes().name());
    if (!measured.winner().has_threads()) continue;
    absl::StatusOr<std::string> scheduled = WithThreads(kernel->kernel(), measured.winner().threads());
    if (!scheduled.ok()) {
      spdlog::warn("kernel {} keeps its schedule: {}", kernel->notes().name(), scheduled.status().ToString());
      continue;
    }
    kernel->set_kernel(*std::move(scheduled));
  }
}

Tuner::Subjects LibrarySubjects(const v1::PlanReply& plan) {
  Tuner::Subjects subjects;
  for (const v1::Subject& subject : plan.subjects()) {
    if (!subject.has_kernel()) *subjects.Add() = subject;
  }
  return subjects;
}

// What is measured of them is the code of this compiler.
Tuner::Subjects KernelSubjects(const v1::PlanReply& plan, const std::string& compiler) {
  Tuner::Subjects subjects;
  for (const v1::Subject& subject : plan.subjects()) {
    if (!subject.has_kernel()) continue;
    *subjects.Add() = subject;
    subjects.rbegin()->mutable_kernel()->set_compiler(compiler);
  }
  return subjects;
}

// Not joinable where the system gives no thread.
std::thread TryThread(const std::function<void()>& work) {
  try {
    return std::thread(work);
  } catch (const std::system_error& error) {
    spdlog::warn("measure first, emit then: {}", error.what());
    return std::thread();
  }
}

// By position.
absl::flat_hash_set<int> MeasuredKernels(const v1::PlanReply& plan) {
  const absl::flat_hash_map<std::string, int> by_digest = KernelsByDigest(plan);
  absl::flat_hash_set<int> measured;
  for (const v1::Subject& subject : plan.subjects()) {
    const auto found = by_digest.find(subject.kernel().digest());
    if (subject.has_kernel() && found != by_digest.end()) measured.insert(found->second);
  }
  return measured;
}

}  // namespace

absl::StatusOr<std::vector<EmittedKernel>> FlightCompiler::EmitAndTune(const CompilationPtr& flight,
                                                                       const v1::Target& target,
                                                                       v1::PlanReply* plan,
                                                                       v1::Tuning* tuning) {
  if (plan->subjects().empty() && !plan->has_images()) {
    SendPlanDebug(flight, plan);
    return EmitAll(flight, *plan, target, {}, {});
  }
  EmittedByKey known;  // the measuring thread's until it ends
  v1::PlanReply other;
  if (flight->request->debug) {  // what is shown is of the plan that is used, and emitted for it
    *tuning = Tune(flight, *plan, target, [&] { return flight->stopped.load(); }, &other, &known);
    if (tuning->images().as_traced()) *plan = std::move(other);
    SendPlanDebug(flight, plan);
    GiveSchedules(plan, tuning);
    return EmitAll(flight, *plan, target, {}, {});
  }
  // A kernel whose schedule is still to be found is emitted when it is known.
  const absl::flat_hash_set<int> later = MeasuredKernels(*plan);
  std::atomic<bool> in_vain{false};
  const auto measure = [&] {
    *tuning = Tune(flight, *plan, target, [&] { return in_vain || flight->stopped; }, &other, &known);
  };
  // A GPU measures while processors compile.
  std::thread measuring = TryThread(measure);
  if (!measuring.joinable()) measure();
  absl::StatusOr<std::vector<EmittedKernel>> kernels = EmitAll(flight, *plan, target, {}, later);
  in_vain = !kernels.ok();
  if (measuring.joinable()) measuring.join();
  const bool replanned = tuning->images().as_traced();
  if (!kernels.ok() || (later.empty() && !replanned)) return kernels;
  for (int k = 0; k < plan->kernels_size(); ++k) {
    if (!later.contains(k)) known[KeyOfKernel(plan->kernels(k).kernel(), target)] = std::move((*kernels)[k]);
  }
  if (replanned) *plan = std::move(other);
  GiveSchedules(plan, tuning);
  return EmitAll(flight, *plan, target, known, {});
}

// The first is the planned kernel's own.
absl::StatusOr<std::vector<std::string>> FlightCompiler::ImagesOf(const CompilationPtr& flight,
                                                                  const v1::KernelSubject& subject,
                                                                  const v1::PlannedKernel& planned,
                                                                  const v1::Target& target,
                                                                  EmittedByKey* emitted) {
  std::vector<v1::EmitRequest> requests;
  for (int k = 0; k < subject.schedules_size(); ++k) {
    v1::EmitRequest& request = requests.emplace_back();
    std::string kernel = planned.kernel();
    if (k > 0) {
      KILN_ASSIGN_OR_RETURN(kernel, WithThreads(kernel, subject.schedules(k)));
    }
    request.set_kernel(std::move(kernel));
    *request.mutable_target() = target;
    *request.mutable_notes() = planned.notes();
  }
  const std::vector<v1::EmitRequest> asked = requests;
  const std::vector<WorkerResult> results = Emit(flight, std::move(requests), [] {});
  std::vector<std::string> images;
  for (size_t k = 0; k < results.size(); ++k) {
    KILN_RETURN_IF_ERROR(results[k].status);  // that of a crash, too: the kernel is not measured
    const v1::EmitReply& reply = results[k].reply.emit_reply();
    const std::string key = KeyOfKernel(asked[k].kernel(), target);
    KILN_ASSIGN_OR_RETURN((*emitted)[key], PackKernel(key, asked[k].kernel(), reply));
    images.push_back(reply.object());
    stats_->kernels_emitted++;
  }
  return images;
}

absl::StatusOr<v1::PlanReply> FlightCompiler::PlanAsTraced(const CompilationPtr& flight,
                                                           const MeasuringPool::Abandoned& abandoned) {
  WorkerTask task = PlanTask(flight);
  task.request.mutable_plan()->set_images_as_traced(true);
  task.urgent = true;
  task.abandoned = abandoned;
  WorkerResult result = pool_->Await(std::move(task));
  KILN_RETURN_IF_ERROR(result.status);  // that of a crash, too
  KILN_RETURN_IF_ERROR(CheckPlan(result.reply.plan_reply()));
  return std::move(*result.reply.mutable_plan_reply());
}

v1::Tuning FlightCompiler::Tune(const CompilationPtr& flight, const v1::PlanReply& plan,
                                const v1::Target& target, const MeasuringPool::Abandoned& abandoned,
                                v1::PlanReply* other, EmittedByKey* emitted) {
  Progress(flight, "tuning", {});
  Tuner::Job job;
  job.target = target;
  job.abandoned = abandoned;
  job.progress = [this, flight](uint32_t done, uint32_t total) {
    v1::CompileEvent event;
    event.mutable_tuned()->set_done(done);
    event.mutable_tuned()->set_total(total);
    Progress(flight, "tuning", std::move(event));
  };
  const v1::PlanReply* chosen = &plan;
  absl::flat_hash_map<std::string, int> kernels;
  job.images = [&](const v1::KernelSubject& subject) -> absl::StatusOr<std::vector<std::string>> {
    const auto found = kernels.find(subject.digest());
    if (found == kernels.end()) return absl::InternalError("a measured kernel that the plan has not");
    return ImagesOf(flight, subject, chosen->kernels(found->second), target, emitted);
  };
  job.natives = [&](const v1::MatrixProduct& product) {
    return NativesFor(flight, product, target, abandoned);
  };
  Tuner::Session session(*tuner_, std::move(job));
  v1::Tuning tuning;
  session.Tune(LibrarySubjects(plan), &tuning);
  if (plan.has_images()) {
    const v1::ImageLayout layout =
        ChooseImageLayout(plan, [&] { return PlanAsTraced(flight, abandoned); }, session, other);
    if (layout.as_traced()) {
      chosen = other;
      tuning.Clear();
      session.Tune(LibrarySubjects(*chosen), &tuning);
    }
    *tuning.mutable_images() = layout;
  }
  kernels = KernelsByDigest(*chosen);
  session.Tune(KernelSubjects(*chosen, pool_->hello().compiler_fingerprint()), &tuning);
  return tuning;
}

// Without them the library's algorithms are measured all the same, so whatever befalls the worker is only
// said.
std::vector<v1::NativeKernel> FlightCompiler::NativesFor(const CompilationPtr& flight,
                                                         const v1::MatrixProduct& product,
                                                         const v1::Target& target,
                                                         const MeasuringPool::Abandoned& abandoned) {
  WorkerTask task = TaskFor(*flight);
  *task.request.mutable_emit()->mutable_product() = product;
  *task.request.mutable_emit()->mutable_target() = target;
  task.urgent = true;
  task.time_limit = absl::Seconds(config_.workers().emit_seconds_max());
  task.abandoned = abandoned;
  const WorkerResult result = pool_->Await(std::move(task));
  if (!result.status.ok()) {
    spdlog::warn("no kernel of our own for a product: {}", result.status.ToString());
    return {};
  }
  const auto& natives = result.reply.emit_reply().natives();
  return {natives.begin(), natives.end()};
}

}  // namespace kiln
