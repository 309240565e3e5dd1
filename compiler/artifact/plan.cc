#include "compiler/artifact/plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "compiler/artifact/fixed_symbols.h"
#include "compiler/artifact/program_builder.h"
#include "compiler/artifact/tunable_kernels.h"
#include "compiler/artifact/tunables.h"
#include "compiler/frontend/import.h"
#include "compiler/graph/caller_notes.h"
#include "compiler/ir/print.h"
#include "compiler/ir/verify_kernel.h"
#include "compiler/lower/check_bounds.h"
#include "compiler/lower/lowering.h"
#include "compiler/passes/pipeline.h"
#include "compiler/schedule/plan_memory.h"
#include "compiler/schedule/schedule.h"
#include "compiler/schedule/thread_schedule.h"
#include "compiler/schedule/vector_schedule.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "compiler/target/device.h"
#include "compiler/target/machine.h"
#include "compiler/target/vector_target.h"

namespace kiln {
namespace {

// The stages of one compile as text, in the order in which they happened. The sandbox lets a worker
// write no file, so they travel in the reply.
class DebugLog {
 public:
  DebugLog(bool wanted, v1::PlanReply* reply) : wanted_(wanted), reply_(*reply) {}

  bool wanted() const { return wanted_; }

  void Add(absl::string_view name, std::string text) {
    if (!wanted_) return;
    v1::DebugFile* file = reply_.add_debug_files();
    file->set_name(absl::StrFormat("%02d_%s.txt", count_++, name));
    file->set_contents(std::move(text));
  }

  void AddKernels(const Schedule& schedule, const v1::GraphNotes& caller) {
    if (!wanted_) return;
    for (const ScheduledStep& step : schedule.steps) {
      const auto* kernel = std::get_if<ScheduledKernel>(&step);
      if (kernel == nullptr) continue;
      v1::DebugFile* file = reply_.add_debug_files();
      file->set_name(absl::StrCat("kernels/", kernel->notes.name(), ".loops.txt"));
      file->set_contents(PrintKernel(kernel->kernel, WithSources(kernel->notes, caller.source_lines())));
    }
  }

 private:
  bool wanted_;
  v1::PlanReply& reply_;
  int count_ = 0;
};

// UNIMPLEMENTED where no back-end emits for the target.
absl::Status ScheduleKernel(const v1::Target& target, v1::Kernel* kernel) {
  if (IsGpu(target)) return ScheduleThreads(MachineOf(target), kernel);
  KILN_ASSIGN_OR_RETURN(const VectorTarget vectors, VectorTarget::FromProto(target));
  return ScheduleVectors(vectors, kernel);
}

// Verifies, and gives kernels their schedule: what their keys are made of is complete then.
absl::Status FinishKernels(const v1::Target& target, Schedule* schedule) {
  for (ScheduledStep& step : schedule->steps) {
    auto* kernel = std::get_if<ScheduledKernel>(&step);
    if (kernel == nullptr) continue;
    absl::Status status = VerifyKernel(kernel->kernel);
    if (status.ok()) status = ScheduleKernel(target, &kernel->kernel);
    if (!status.ok() && !absl::IsUnimplemented(status)) {
      return absl::InternalError(absl::StrCat("kernel ", kernel->notes.name(), ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

void NoteOrigins(Schedule* schedule) {
  for (ScheduledStep& step : schedule->steps) {
    auto* kernel = std::get_if<ScheduledKernel>(&step);
    if (kernel == nullptr) continue;
    kernel->notes.mutable_origins()->Assign(kernel->origins.begin(), kernel->origins.end());
  }
}

bool Measures(const v1::Options& options, const v1::Target& target) {
  return IsGpu(target) &&
         (options.mode() == v1::MODE_MAX_AUTOTUNE || options.mode() == v1::MODE_MAX_AUTOTUNE_NO_CUDAGRAPHS);
}

// What max-autotune measures. Of training the forward's layout is the backward's too, of which nothing is
// known here: `may_choose_layout` is of inference alone.
void AddTunables(const v1::Numerics& numerics, bool may_choose_layout, const Machine& machine,
                 const CodegenBackend* backend, v1::PlanReply* reply) {
  if (may_choose_layout) *reply->mutable_images() = ImageConvolutionsOf(reply->program(), numerics);
  for (v1::Tunable& tunable : TunablesOf(reply->program(), numerics))
    *reply->add_tunables() = std::move(tunable);
  if (backend == nullptr) return;
  for (v1::Tunable& tunable : TunableKernelsOf(*reply, *backend, machine))
    *reply->add_tunables() = std::move(tunable);
}

}  // namespace

absl::StatusOr<v1::PlanReply> PlanGraph(const v1::PlanRequest& request, const CodegenBackend* backend) {
  v1::PlanReply reply;
  DebugLog debug(!request.debug_dir().empty(), &reply);
  v1::GraphFacts facts;
  KILN_RETURN_IF_ERROR(ParseProto(request.sections().facts(), "graph facts", &facts));
  v1::Options options;
  KILN_RETURN_IF_ERROR(ParseProto(request.sections().options(), "options", &options));
  v1::Numerics numerics;
  KILN_RETURN_IF_ERROR(ParseProto(request.sections().numerics(), "numerics", &numerics));
  v1::Target target;
  KILN_RETURN_IF_ERROR(ParseProto(request.sections().target(), "target", &target));

  KILN_ASSIGN_OR_RETURN(Graph graph, ImportGraph(request.graph(), facts));
  reply.mutable_statistics()->set_nodes(static_cast<uint32_t>(graph.nodes.size()));
  if (debug.wanted()) debug.Add("graph", graph.ToString());

  SubstituteFixedSymbols(graph);
  Machine machine = MachineOf(target);
  machine.cpu_libraries.onednn = numerics.onednn();
  machine.gpu_libraries.tf32 = numerics.float32_matmul_precision() != "highest";
  PassOptions passes;
  passes.machine = machine;
  passes.fallback_random = options.fallback_random();
  bool chose_channels_last = false;
  passes.keep_traced_layout = request.keep_traced_layout();
  passes.chose_channels_last = &chose_channels_last;
  if (debug.wanted()) {
    passes.dump = [&](absl::string_view pass, const std::string& text) {
      debug.Add(absl::StrCat("after_", pass), text);
    };
  }
  KILN_RETURN_IF_ERROR(RunPasses(graph, passes));
  reply.mutable_statistics()->set_nodes_decomposed(static_cast<uint32_t>(graph.nodes.size()));

  const LowerOptions lower = {.machine = machine,
                              .fallback_random = options.fallback_random(),
                              .deterministic = numerics.deterministic()};
  KILN_ASSIGN_OR_RETURN(LoopGraph loops, LowerGraph(graph, lower));
  KILN_RETURN_IF_ERROR(CheckBounds(loops));
  loops.PlaceChecks();
  if (debug.wanted()) debug.Add("loops", loops.ToString());

  KILN_ASSIGN_OR_RETURN(Schedule schedule, ScheduleLoops(loops, {.machine = machine}));
  KILN_RETURN_IF_ERROR(FinishKernels(target, &schedule));
  NoteOrigins(&schedule);
  if (debug.wanted()) debug.Add("schedule", schedule.ToString(loops));

  KILN_ASSIGN_OR_RETURN(MemoryPlan memory, PlanMemory(loops, schedule));
  if (debug.wanted()) debug.Add("memory", memory.ToString());
  debug.AddKernels(schedule, request.notes());

  KILN_RETURN_IF_ERROR(BuildProgram(loops, schedule, memory, &reply));
  KILN_RETURN_IF_ERROR(loops.exprs.status());
  if (Measures(options, target)) {
    const bool may_choose_layout =
        graph.kind == v1::INFERENCE && (chose_channels_last || request.keep_traced_layout());
    AddTunables(numerics, may_choose_layout, machine, backend, &reply);
  }
  return reply;
}

}  // namespace kiln
