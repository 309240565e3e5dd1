#include "server/flight/tuning_frames.h"

#include <utility>

#include "compiler/graph/schedule_text.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "kiln/v1/kernel.pb.h"
#include "server/build/artifact.h"
#include "server/pool/measuring_pool.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

absl::Status CheckSchedule(v1::KernelSchedule loops, v1::KernelSchedule schedule, const v1::Target& target) {
  const bool on_gpu = ArchitectureOf(target) != 0;
  if (on_gpu && !schedule.has_threads())
    return absl::InvalidArgumentError("schedule: not of a GPU's threads, for a GPU");
  if (!on_gpu && !schedule.has_vectors())
    return absl::InvalidArgumentError("schedule: not of a CPU's vectors, for a CPU");
  loops.clear_target();
  schedule.clear_target();
  if (SerializeDeterministic(loops) == SerializeDeterministic(schedule)) return absl::OkStatus();
  return absl::InvalidArgumentError("schedule: of other loops than the kernel's");
}

void NameCompiler(const std::string& compiler, v1::Tunable* tunable) {
  if (tunable->has_kernel() || tunable->has_gemm()) tunable->set_compiler(compiler);
}

}  // namespace

v1::Frame PlanFrame(const FlightRequest& asked, bool keep_traced_layout) {
  v1::Frame frame;
  v1::PlanRequest* request = frame.mutable_plan();
  *request->mutable_sections() = asked.sections;
  request->set_graph(*asked.graph);
  *request->mutable_hints() = asked.hints;
  request->set_keep_traced_layout(keep_traced_layout);
  if (asked.debug) {
    request->set_debug_dir("wanted");
    *request->mutable_notes() = asked.notes;
  }
  return frame;
}

absl::StatusOr<v1::PlanReply> PlanOf(WorkerResult result, const std::string& compiler) {
  KILN_RETURN_IF_ERROR(result.status);  // that of a crash, too
  KILN_RETURN_IF_ERROR(CheckPlan(result.reply.plan_reply()));
  v1::PlanReply plan = std::move(*result.reply.mutable_plan_reply());
  for (v1::Tunable& tunable : *plan.mutable_tunables()) NameCompiler(compiler, &tunable);
  // The same ones, by which layouts are weighed: of one key, or they would be measured twice.
  if (plan.has_images()) {
    for (v1::ImageConvolutions::Use& use : *plan.mutable_images()->mutable_measured())
      NameCompiler(compiler, use.mutable_tunable());
  }
  return plan;
}

absl::StatusOr<std::string> WithSchedule(const std::string& kernel, const v1::KernelSchedule& schedule,
                                         const v1::Target& target) {
  v1::Kernel scheduled;
  KILN_RETURN_IF_ERROR(ParseProto(kernel, "kernel", &scheduled));
  KILN_RETURN_IF_ERROR(CheckSchedule(scheduled.schedule(), schedule, target));
  *scheduled.mutable_schedule() = schedule;
  return SerializeDeterministic(scheduled);
}

absl::StatusOr<std::vector<v1::Frame>> FramesOfSchedules(const v1::KernelTunable& tunable,
                                                         const std::string& kernel,
                                                         const v1::KernelNotes& notes,
                                                         const v1::Target& target) {
  std::vector<v1::Frame> frames;
  for (const v1::KernelSchedule& schedule : tunable.schedules()) {
    KILN_ASSIGN_OR_RETURN(std::string scheduled, WithSchedule(kernel, schedule, target));
    v1::EmitRequest& request = *frames.emplace_back().mutable_emit();
    request.set_kernel(frames.size() == 1 ? kernel : std::move(scheduled));
    *request.mutable_target() = target;
    *request.mutable_notes() = notes;
  }
  return frames;
}

v1::Frame FrameOfGemm(const v1::Gemm& gemm, const v1::Target& target) {
  v1::Frame frame;
  *frame.mutable_emit()->mutable_gemm() = gemm;
  *frame.mutable_emit()->mutable_target() = target;
  return frame;
}

std::vector<v1::NativeKernel> NativesOf(const WorkerResult& result) {
  if (!result.status.ok()) {
    spdlog::warn("no kernel of our own for a gemm: {}", result.status.ToString());
    return {};
  }
  const auto& emitted = result.reply.emit_reply().natives();
  std::vector<v1::NativeKernel> natives(emitted.begin(), emitted.end());
  for (v1::NativeKernel& native : natives) {
    if (native.has_schedule()) native.set_name(ScheduleText(native.schedule()));
  }
  return natives;
}

}  // namespace kiln
