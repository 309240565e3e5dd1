#include "server/flight/flight_compiler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compiler/graph/caller_notes.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/kernel_abi.h"
#include "compiler/support/limits.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "kiln/v1/record.pb.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr size_t kStrikesMax = 4096;
constexpr uint32_t kStrikesAllowed = 2;
constexpr uint32_t kKillsAllowed = 4;

// A refusal that would only repeat.
bool IsLasting(const absl::Status& status) {
  return absl::IsUnimplemented(status) || absl::IsInvalidArgument(status);
}

// Kernels of one flight that are with the workers. Owned by the flight's runner and by every
// task, because the last task may still be unlocking when the runner goes on.
struct EmitState {
  absl::Mutex mutex;
  size_t left ABSL_GUARDED_BY(mutex) = 0;
  std::vector<WorkerResult> results ABSL_GUARDED_BY(mutex);
  bool AllDone() const ABSL_SHARED_LOCKS_REQUIRED(mutex) { return left == 0; }
};

}  // namespace

void FlightCompiler::Progress(const CompilationPtr& flight, absl::string_view phase, v1::CompileEvent event) {
  const bool none = event.kind_case() == v1::CompileEvent::KIND_NOT_SET;
  flight->progress(phase, none ? nullptr : std::make_shared<const FlightEvent>(std::move(event)));
}

void FlightCompiler::SendDebug(const CompilationPtr& flight, v1::DebugFile file) {
  if (!IsPlainName(file.name())) {
    spdlog::warn("a worker's debug file has no plain name");
    return;
  }
  v1::CompileEvent event;
  *event.mutable_debug() = std::move(file);
  Progress(flight, "showing", std::move(event));
}

void FlightCompiler::SendPlanDebug(const CompilationPtr& flight, v1::PlanReply* plan) {
  for (v1::DebugFile& file : *plan->mutable_debug_files()) SendDebug(flight, std::move(file));
  plan->clear_debug_files();
}

void FlightCompiler::SendKernelDebug(const CompilationPtr& flight, const v1::PlannedKernel& kernel,
                                     const v1::EmitReply& reply) {
  const std::string path = absl::StrCat("kernels/", kernel.notes().name());
  v1::DebugFile listing;
  listing.set_name(absl::StrCat(path, ".listing.txt"));
  listing.set_contents(reply.listing());
  SendDebug(flight, std::move(listing));
  if (reply.elf().empty()) return;
  v1::DebugFile object;
  object.set_name(absl::StrCat(path, ".o"));
  object.set_contents(reply.elf());
  SendDebug(flight, std::move(object));
}

absl::StatusOr<std::shared_ptr<const Artifact>> FlightCompiler::Compile(const CompilationPtr& flight) {
  if (flight->stopped) return absl::CancelledError("nobody waits for the answer");
  stats_->compiles++;
  absl::StatusOr<std::shared_ptr<const Artifact>> artifact = CompileOnce(flight);
  const FlightRequest& request = *flight->request;
  if (artifact.ok()) {
    Forget(request.compile_key);
    return artifact;
  }
  stats_->failures++;
  spdlog::info("compile {} \"{}\" failed: {}", ToHex(request.compile_key.substr(0, 6)), request.notes.title(),
               artifact.status().ToString());
  if (IsLasting(artifact.status())) keys_->PutRefusal(request, artifact.status(), /*quarantine=*/false);
  return artifact;
}

absl::StatusOr<std::shared_ptr<const Artifact>> FlightCompiler::CompileOnce(const CompilationPtr& flight) {
  v1::Target target;
  KILN_RETURN_IF_ERROR(ParseProto(flight->request->sections.target(), "target", &target));
  const MonotonicTime planning = MonotonicNow();
  KILN_ASSIGN_OR_RETURN(v1::PlanReply plan, Plan(flight));
  const MonotonicTime emitting = MonotonicNow();
  v1::Tuning tuning;
  absl::StatusOr<std::vector<EmittedKernel>> emitted = EmitAndTune(flight, target, &plan, &tuning);
  KILN_RETURN_IF_ERROR(emitted.status());
  const std::vector<EmittedKernel> kernels = *std::move(emitted);
  if (flight->stopped) return absl::CancelledError("nobody waits for the answer");
  Progress(flight, "publishing", {});

  v1::RequestRecord record;
  record.set_namespace_(flight->request->ns);
  record.set_request_key(flight->request->request_key);
  *record.mutable_sections() = flight->request->sections;
  *record.mutable_notes() = flight->request->notes;
  *record.mutable_hints() = flight->request->hints;
  record.set_queue_seconds(SecondsBetween(flight->request->created, planning));
  record.set_plan_seconds(SecondsBetween(planning, emitting));
  record.set_emit_seconds(SecondsBetween(emitting, MonotonicNow()));
  ArtifactIngredients ingredients;
  ingredients.ns = flight->request->ns;
  ingredients.compile_key = flight->request->compile_key;
  ingredients.request_key = flight->request->request_key;
  ingredients.target = target;
  ingredients.kernels = kernels;
  if (!plan.subjects().empty() || plan.has_images()) ingredients.tuning = &tuning;
  ingredients.notes_record = SerializeDeterministic(record);
  ingredients.rebuild_ms = static_cast<uint32_t>(1e3 * (record.plan_seconds() + record.emit_seconds()));
  Artifact artifact = AssembleArtifact(ingredients, std::move(plan));
  artifact.holds = std::move(flight->holds);
  return std::make_shared<const Artifact>(std::move(artifact));
}

WorkerTask FlightCompiler::TaskFor(const Compilation& flight) {
  WorkerTask task;
  task.caller = flight.request->caller;
  task.program = flight.request->program;
  return task;
}

WorkerTask FlightCompiler::PlanTask(const CompilationPtr& flight) {
  WorkerTask task = TaskFor(*flight);
  v1::PlanRequest* request = task.request.mutable_plan();
  *request->mutable_sections() = flight->request->sections;
  request->set_graph(*flight->request->graph);
  *request->mutable_hints() = flight->request->hints;
  if (flight->request->debug) {
    request->set_debug_dir("wanted");
    *request->mutable_notes() = flight->request->notes;
  }
  task.time_limit = absl::Seconds(config_.workers().plan_seconds_max());
  task.abandoned = [flight] { return flight->stopped.load(); };
  return task;
}

absl::StatusOr<v1::PlanReply> FlightCompiler::Plan(const CompilationPtr& flight) {
  Progress(flight, "planning", {});
  while (true) {
    WorkerResult result = pool_->Await(PlanTask(flight));
    if (result.crashed) {
      KILN_RETURN_IF_ERROR(Strike(flight, result));
      continue;
    }
    KILN_RETURN_IF_ERROR(result.status);
    KILN_RETURN_IF_ERROR(CheckPlan(result.reply.plan_reply()));
    return std::move(*result.reply.mutable_plan_reply());
  }
}

absl::Status FlightCompiler::Strike(const CompilationPtr& flight, const WorkerResult& crash) {
  ++flight->workers_lost;
  if (crash.killed) {
    // Somebody's kill, or the kernel's for want of memory: no proof against the graph, but no reason to
    // go on for ever.
    if (++flight->workers_killed <= kKillsAllowed) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(
        flight->workers_killed, " compiler processes were killed while they worked on this graph"));
  }
  if (!IsLastStrike(flight->request->compile_key)) return absl::OkStatus();
  absl::Status refusal = absl::FailedPreconditionError(
      absl::StrCat("compiling this graph brought down ", kStrikesAllowed, " compiler processes (",
                   crash.status.message(), "); it is refused for a day or until \"kilnctl rm ",
                   ToHex(flight->request->compile_key.substr(0, 6)), "\""));
  keys_->PutRefusal(*flight->request, refusal, /*quarantine=*/true);
  return refusal;
}

bool FlightCompiler::IsLastStrike(const std::string& compile_key) {
  absl::MutexLock lock(&mutex_);
  const auto [strikes, first] = strikes_.emplace(compile_key, 0);
  if (++strikes->second >= kStrikesAllowed) {
    strikes_.erase(strikes);
    return true;
  }
  if (!first) return false;
  struck_.push_back(compile_key);
  // The oldest is forgiven; its key may have gone by itself.
  if (struck_.size() > kStrikesMax) {
    strikes_.erase(struck_.front());
    struck_.pop_front();
  }
  return false;
}

void FlightCompiler::Forget(const std::string& compile_key) {
  absl::MutexLock lock(&mutex_);
  strikes_.erase(compile_key);
  if (compile_key.empty()) strikes_.clear();
}

std::string FlightCompiler::KeyOfKernel(const std::string& kernel, const v1::Target& target) const {
  return KernelKey(kernel, target, KILN_KERNEL_ABI_VERSION, pool_->hello().compiler_fingerprint());
}

std::vector<WorkerResult> FlightCompiler::Emit(const CompilationPtr& flight,
                                               std::vector<v1::EmitRequest> requests,
                                               const std::function<void()>& emitted) {
  auto state = std::make_shared<EmitState>();
  {
    absl::MutexLock lock(&state->mutex);
    state->left = requests.size();
    state->results.resize(requests.size());
  }
  for (size_t k = 0; k < requests.size(); ++k) {
    WorkerTask task = TaskFor(*flight);
    *task.request.mutable_emit() = std::move(requests[k]);
    task.time_limit = absl::Seconds(config_.workers().emit_seconds_max());
    task.abandoned = [flight] { return flight->stopped.load(); };
    task.done = [k, state, emitted](WorkerResult result) {
      if (result.status.ok()) emitted();
      absl::MutexLock lock(&state->mutex);
      state->results[k] = std::move(result);
      --state->left;
    };
    pool_->Submit(std::move(task));
  }
  absl::MutexLock lock(&state->mutex);
  state->mutex.Await(absl::Condition(state.get(), &EmitState::AllDone));
  return std::move(state->results);
}

absl::StatusOr<std::vector<EmittedKernel>> FlightCompiler::EmitAll(const CompilationPtr& flight,
                                                                   const v1::PlanReply& plan,
                                                                   const v1::Target& target,
                                                                   const EmittedByKey& known,
                                                                   const absl::flat_hash_set<int>& later) {
  std::vector<EmittedKernel> kernels(plan.kernels_size());
  std::vector<std::string> keys;
  for (const v1::PlannedKernel& kernel : plan.kernels()) keys.push_back(KeyOfKernel(kernel.kernel(), target));
  std::vector<size_t> missing;
  for (int i = 0; i < plan.kernels_size(); ++i) {
    if (later.contains(i)) continue;
    // A debug flight shows the machine code, which is not kept: it emits everything anew.
    absl::StatusOr<EmittedKernel> stored = absl::NotFoundError("");
    const auto found = known.find(keys[i]);
    if (!flight->request->debug && found == known.end()) stored = keys_->ReadKernel(keys[i], &flight->holds);
    if (found != known.end()) {
      kernels[i] = found->second;
    } else if (stored.ok()) {
      kernels[i] = *std::move(stored);
      stats_->kernels_reused++;
    } else {
      missing.push_back(i);
    }
  }
  v1::CompileEvent planned;
  planned.mutable_planned()->set_kernels(plan.kernels_size());
  flight->kernels_total = plan.kernels_size();
  flight->kernels_done = static_cast<uint32_t>(plan.kernels_size() - missing.size() - later.size());
  Progress(flight, "emitting", std::move(planned));
  const auto emitted = [this, flight] {
    v1::CompileEvent event;
    event.mutable_emitted()->set_done(++flight->kernels_done);
    event.mutable_emitted()->set_total(flight->kernels_total);
    Progress(flight, "emitting", std::move(event));
  };

  while (!missing.empty()) {
    std::vector<v1::EmitRequest> requests;
    for (const size_t i : missing) {
      v1::EmitRequest& request = requests.emplace_back();
      request.set_kernel(plan.kernels(i).kernel());
      *request.mutable_target() = target;
      request.set_want_listing(flight->request->debug);
      *request.mutable_notes() = plan.kernels(i).notes();
      if (flight->request->debug)
        *request.mutable_notes() = WithSources(request.notes(), flight->request->notes.source_lines());
    }
    const std::vector<WorkerResult> results = Emit(flight, std::move(requests), emitted);
    std::vector<size_t> again;
    for (size_t k = 0; k < missing.size(); ++k) {
      const size_t i = missing[k];
      if (results[k].crashed) {
        KILN_RETURN_IF_ERROR(Strike(flight, results[k]));
        again.push_back(i);
        continue;
      }
      KILN_RETURN_IF_ERROR(results[k].status);
      if (flight->request->debug) SendKernelDebug(flight, plan.kernels(i), results[k].reply.emit_reply());
      KILN_ASSIGN_OR_RETURN(kernels[i],
                            PackKernel(keys[i], plan.kernels(i).kernel(), results[k].reply.emit_reply()));
      stats_->kernels_emitted++;
    }
    missing = std::move(again);
  }
  return kernels;
}

}  // namespace kiln
