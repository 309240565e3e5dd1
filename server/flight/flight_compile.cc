#include "server/flight/flight_compile.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/graph/caller_notes.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "kiln/v1/record.pb.h"
#include "server/flight/tuning_frames.h"
#include "spdlog/spdlog.h"

namespace kiln {

FlightCompile::FlightCompile(FlightCompiler* compiler, FlightRequestPtr request, Outside outside)
    : compiler_(compiler),
      request_(std::move(request)),
      outside_(std::move(outside)),
      asked_(compiler, request_, outside_.ask),
      tuning_({compiler, request_, &target_, &plan_, &asked_, [this] { return asked_.stopped() || failed_; },
               [this](v1::CompileEvent event) { Progress("tuning", std::move(event)); }}) {
  compiler_->stats().flights.compiled++;
  Use use;
  use.compiles = 1;
  compiler_->stats().uses.Count(request_->caller.tenant, request_->caller.job, use);
  compiler_->RememberMiss(*request_);
  WorkerRequests::Work plan;
  plan.request = [this] { return PlanFrame(*request_, /*keep_traced_layout=*/false); };
  plan.limit = absl::Seconds(compiler_->limits().plan_seconds_max());
  plan.after = [this](WorkerResult result) { return Planned(std::move(result)); };
  asked_.AddFirst(std::move(plan));
}

// ---- Steps -----------------------------------------------------------------------------------

FlightNext FlightCompile::After(uint64_t number, WorkerResult result) {
  std::optional<Next> next = asked_.After(number, std::move(result));
  return next.has_value() ? Say(*std::move(next)) : FlightNext();
}

// The first failure is the outcome.
FlightNext FlightCompile::Say(Next next) {
  FlightNext said;
  if (next.ok()) {
    said = *std::move(next);
  } else {
    if (failed_.exchange(true)) return {};
    compiler_->Record(*request_, next.status());
    said.outcome = next.status();
  }
  asked_.AddTo(&said);
  return said;
}

// ---- Plan ------------------------------------------------------------------------------------

FlightCompile::Next FlightCompile::Planned(WorkerResult result) {
  KILN_ASSIGN_OR_RETURN(plan_, PlanOf(std::move(result), compiler_->fingerprint()));
  KILN_RETURN_IF_ERROR(ParseProto(request_->sections.target(), "target", &target_));
  emitting_ = MonotonicNow();
  if (plan_.tunables().empty() && !plan_.has_images()) {
    SendPlanDebug();
    return StartEmits();
  }
  measures_ = true;
  {
    absl::MutexLock lock(&mutex_);
    tunes_ = true;
  }
  // What is shown is of the plan that is used, and emitted for it. Else a GPU measures while processors
  // compile, and a kernel whose schedule is still to be found is emitted when it is known.
  FlightNext next;
  next.tries_tuning = true;
  if (request_->debug) return next;
  kernels_.later = MeasuredKernels(plan_);
  KILN_ASSIGN_OR_RETURN(FlightNext emits, StartEmits());
  outside_.ask(std::move(emits.tasks));
  return next;
}

// ---- Emit ------------------------------------------------------------------------------------

v1::Frame FlightCompile::EmitFrame(const std::string& kernel, const v1::KernelNotes& notes) const {
  v1::Frame frame;
  v1::EmitRequest* request = frame.mutable_emit();
  request->set_kernel(kernel);
  *request->mutable_target() = target_;
  *request->mutable_notes() = notes;
  return frame;
}

FlightCompile::Next FlightCompile::StartEmits() {
  const int size = plan_.kernels_size();
  kernels_.emitted = std::vector<EmittedKernel>(static_cast<size_t>(size));
  kernels_.keys.clear();
  std::vector<int> missing;
  for (int k = 0; k < size; ++k) {
    const std::string& key =
        kernels_.keys.emplace_back(compiler_->KeyOfKernel(*request_, plan_.kernels(k).kernel(), target_));
    if (kernels_.later.contains(k)) continue;
    // A debug flight shows the machine code, which is not kept: it emits everything again.
    if (!request_->debug && TakeKernel(key, &kernels_.emitted[static_cast<size_t>(k)])) continue;
    missing.push_back(k);
  }
  v1::CompileEvent planned;
  planned.mutable_planned()->set_kernels(static_cast<uint32_t>(size));
  kernels_.done = static_cast<uint32_t>(static_cast<size_t>(size) - missing.size() - kernels_.later.size());
  Progress("emitting", std::move(planned));
  bool ended;
  {
    absl::MutexLock lock(&mutex_);
    emits_left_ = missing.size();
    ended = emits_left_ == 0 && !tunes_;
  }
  if (ended) return GoOn();
  FlightNext next;
  for (const int k : missing) {
    WorkerRequests::Work work;
    work.task.kind = TaskQueue::Kind::kEmit;
    work.request = [this, k] { return KernelFrame(k); };
    work.limit = absl::Seconds(compiler_->limits().emit_seconds_max());
    work.after = [this, k](WorkerResult result) { return Emitted(k, std::move(result)); };
    next.tasks.push_back(asked_.Add(std::move(work)));
  }
  return next;
}

// What this flight has emitted before, or the store has.
bool FlightCompile::TakeKernel(const std::string& key, EmittedKernel* kernel) {
  if (const auto found = kernels_.known.find(key); found != kernels_.known.end()) {
    *kernel = found->second;
    return true;
  }
  absl::StatusOr<EmittedKernel> stored = compiler_->keys().ReadKernel(request_->ns, key, &kernels_.holds);
  if (!stored.ok()) return false;
  *kernel = *std::move(stored);
  compiler_->stats().kernels.reused++;
  return true;
}

v1::Frame FlightCompile::KernelFrame(int kernel) const {
  const v1::PlannedKernel& planned = plan_.kernels(kernel);
  if (!request_->debug) return EmitFrame(planned.kernel(), planned.notes());
  v1::Frame frame = EmitFrame(planned.kernel(), WithSources(planned.notes(), request_->notes.source_lines()));
  frame.mutable_emit()->set_want_listing(true);
  return frame;
}

FlightCompile::Next FlightCompile::Emitted(int kernel, WorkerResult result) {
  KILN_RETURN_IF_ERROR(result.status);
  const v1::PlannedKernel& planned = plan_.kernels(kernel);
  const v1::EmitReply& reply = result.reply.emit_reply();
  if (request_->debug) SendKernelDebug(planned, reply);
  const size_t k = static_cast<size_t>(kernel);
  KILN_ASSIGN_OR_RETURN(kernels_.emitted[k], PackKernel(kernels_.keys[k], planned.kernel(), reply));
  compiler_->stats().kernels.emitted++;
  v1::CompileEvent event;
  event.mutable_emitted()->set_done(++kernels_.done);
  event.mutable_emitted()->set_total(static_cast<uint32_t>(plan_.kernels_size()));
  Progress("emitting", std::move(event));
  return PartEnded(/*tuning=*/false) ? GoOn() : Next(FlightNext());
}

// True for the last of them.
bool FlightCompile::PartEnded(bool tuning) {
  absl::MutexLock lock(&mutex_);
  if (tuning) {
    tunes_ = false;
  } else {
    --emits_left_;
  }
  return emits_left_ == 0 && !tunes_;
}

// ---- Tuning ----------------------------------------------------------------------------------

FlightNext FlightCompile::TryTuning() { return Say(TuneWithoutGpu()); }

// With what there is, and asks for what is missing.
FlightCompile::Next FlightCompile::TuneWithoutGpu() {
  WorkerRequests::Work work;
  switch (tuning_.TryWithoutGpu()) {
    case FlightTuning::Lacks::kNothing: return TuningEnded();
    case FlightTuning::Lacks::kGpu: work.task.kind = TaskQueue::Kind::kTune; break;
    case FlightTuning::Lacks::kPlan:
      work.request = [this] { return PlanFrame(*request_, /*keep_traced_layout=*/true); };
      work.limit = absl::Seconds(compiler_->limits().plan_seconds_max());
      work.after = [this](WorkerResult result) { return PlannedTracedLayout(std::move(result)); };
      work.once = true;  // without it the first plan is as good as ever
      break;
  }
  FlightNext next;
  next.tasks.push_back(asked_.Add(std::move(work)));
  return next;
}

FlightCompile::Next FlightCompile::PlannedTracedLayout(WorkerResult result) {
  tuning_.TakePlan(PlanOf(std::move(result), compiler_->fingerprint()));
  FlightNext next;
  next.tries_tuning = true;
  return next;
}

FlightNext FlightCompile::AfterTuning() { return Say(TuningEnded()); }

FlightCompile::Next FlightCompile::TuningEnded() {
  tuning_.End();
  return PartEnded(/*tuning=*/true) ? GoOn() : Next(FlightNext());
}

// ---- Ends of a round -------------------------------------------------------------------------

FlightCompile::Next FlightCompile::GoOn() {
  const bool replanned = tuning_.prefers_traced_layout();
  const bool again = measures_ && !second_round_ && (request_->debug || replanned || !kernels_.later.empty());
  if (!again) return Finish();
  second_round_ = true;
  kernels_.known = tuning_.TakeKernels();
  for (size_t k = 0; k < kernels_.emitted.size(); ++k) {
    if (!kernels_.later.contains(static_cast<int>(k)))
      kernels_.known[kernels_.keys[k]] = std::move(kernels_.emitted[k]);
  }
  kernels_.later.clear();
  if (replanned) plan_ = tuning_.TakeTracedLayoutPlan();
  SendPlanDebug();
  tuning_.ApplySchedules(&plan_);
  return StartEmits();
}

FlightCompile::Next FlightCompile::Finish() {
  if (asked_.stopped()) return absl::CancelledError("nobody waits for the answer");
  Progress("publishing", {});
  v1::RequestRecord record;
  record.set_namespace_(request_->ns);
  record.set_request_key(request_->request_key);
  *record.mutable_sections() = request_->sections;
  *record.mutable_notes() = request_->notes;
  *record.mutable_hints() = request_->hints;
  record.set_compiler_fingerprint(compiler_->fingerprint());
  const MonotonicTime planning = asked_.first_begun();
  record.set_queue_seconds(SecondsBetween(request_->job.created, planning));
  record.set_plan_seconds(SecondsBetween(planning, emitting_));
  record.set_emit_seconds(SecondsBetween(emitting_, MonotonicNow()));
  ArtifactIngredients ingredients;
  ingredients.signatures = &compiler_->signatures();
  ingredients.ns = request_->ns;
  ingredients.compile_key = request_->compile_key;
  ingredients.request_key = request_->request_key;
  ingredients.target = target_;
  ingredients.kernels = kernels_.emitted;
  if (measures_) ingredients.tuning = &tuning_.found();
  ingredients.notes_record = SerializeDeterministic(record);
  ingredients.rebuild_ms = static_cast<uint32_t>(1e3 * (record.plan_seconds() + record.emit_seconds()));
  Artifact artifact = AssembleArtifact(ingredients, std::move(plan_));
  artifact.holds = std::move(kernels_.holds);
  compiler_->Record(*request_, absl::OkStatus());
  FlightNext next;
  next.outcome = std::make_shared<const Artifact>(std::move(artifact));
  return next;
}

// ---- What callers are shown ------------------------------------------------------------------

void FlightCompile::Progress(absl::string_view phase, v1::CompileEvent event) {
  const bool none = event.kind_case() == v1::CompileEvent::KIND_NOT_SET;
  outside_.progress(phase, none ? nullptr : std::make_shared<const FlightEvent>(std::move(event)));
}

void FlightCompile::SendDebug(v1::DebugFile file) {
  if (!IsPlainName(file.name())) {
    spdlog::warn("a worker's debug file has no plain name");
    return;
  }
  v1::CompileEvent event;
  *event.mutable_debug() = std::move(file);
  Progress("showing", std::move(event));
}

void FlightCompile::SendPlanDebug() {
  for (v1::DebugFile& file : *plan_.mutable_debug_files()) SendDebug(std::move(file));
  plan_.clear_debug_files();
}

void FlightCompile::SendKernelDebug(const v1::PlannedKernel& kernel, const v1::EmitReply& reply) {
  const std::string path = absl::StrCat("kernels/", kernel.notes().name());
  v1::DebugFile listing;
  listing.set_name(absl::StrCat(path, ".listing.txt"));
  listing.set_contents(reply.listing());
  SendDebug(std::move(listing));
  if (reply.elf().empty()) return;
  v1::DebugFile object;
  object.set_name(absl::StrCat(path, ".o"));
  object.set_contents(reply.elf());
  SendDebug(std::move(object));
}

}  // namespace kiln
