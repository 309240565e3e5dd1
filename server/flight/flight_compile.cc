#include "server/flight/flight_compile.h"

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
    : compiler_(compiler), request_(std::move(request)), outside_(std::move(outside)) {
  compiler_->stats().compiles++;
  Use use;
  use.compiles = 1;
  compiler_->stats().uses.Count(request_->caller.tenant, request_->caller.job, use);
  compiler_->RememberMiss(*request_);
  Work plan;
  plan.request = [this] { return PlanFrame(/*keep_traced_layout=*/false); };
  plan.limit = absl::Seconds(compiler_->limits().plan_seconds_max());
  plan.after = [this](WorkerResult result) { return Planned(std::move(result)); };
  works_[0] = std::move(plan);
}

// ---- Tasks -----------------------------------------------------------------------------------

FlightTask FlightCompile::Add(Work work) {
  absl::MutexLock lock(&mutex_);
  work.task.number = ++last_work_;
  const FlightTask task = work.task;
  works_[task.number] = std::move(work);
  return task;
}

WorkerTask FlightCompile::TaskFor(uint64_t number) {
  WorkerTask task;
  task.tenant = request_->ns;
  task.abandoned = [this] { return stopped_.load(); };
  absl::MutexLock lock(&mutex_);
  if (planning_ == MonotonicTime()) planning_ = MonotonicNow();
  const auto found = works_.find(number);
  if (found == works_.end()) return task;  // stopped
  found->second.started = true;
  task.request = found->second.request;
  task.time_limit = found->second.limit;
  return task;
}

FlightNext FlightCompile::After(uint64_t number, WorkerResult result) {
  Work work;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = works_.find(number);
    if (found == works_.end()) return {};
    if (result.crashed && !found->second.once) {
      work.task = found->second.task;
    } else {
      work = std::move(found->second);
      works_.erase(found);
    }
  }
  if (!result.crashed) held_bytes_ += result.reply.ByteSizeLong();
  if (work.awaited != nullptr) {
    work.awaited->set_value(std::move(result));
    return {};
  }
  return Say(work.after == nullptr ? TryAgain(work.task, result) : work.after(std::move(result)));
}

FlightCompile::Next FlightCompile::TryAgain(const FlightTask& task, const WorkerResult& crash) {
  FlightCompiler::Losses losses;
  {
    absl::MutexLock lock(&mutex_);
    ++losses_.workers;
    if (crash.killed) ++losses_.killed;
    losses = losses_;
  }
  KILN_RETURN_IF_ERROR(compiler_->Strike(*request_, crash, losses));
  return FlightNext{{task}, std::nullopt, 0};
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
  absl::MutexLock lock(&mutex_);
  said.workers_lost = losses_.workers;
  said.held_bytes = held_bytes_;
  return said;
}

void FlightCompile::Stop() {
  stopped_ = true;
  absl::MutexLock lock(&mutex_);
  for (auto work = works_.begin(); work != works_.end();) {
    const auto now = work++;
    if (now->second.awaited == nullptr || now->second.started) continue;
    now->second.awaited->set_value({absl::CancelledError("nobody waits for the answer"), {}, false});
    works_.erase(now);
  }
}

// ---- Plan ------------------------------------------------------------------------------------

v1::Frame FlightCompile::PlanFrame(bool keep_traced_layout) const {
  v1::Frame frame;
  v1::PlanRequest* request = frame.mutable_plan();
  *request->mutable_sections() = request_->sections;
  request->set_graph(*request_->graph);
  *request->mutable_hints() = request_->hints;
  request->set_keep_traced_layout(keep_traced_layout);
  if (request_->debug) {
    request->set_debug_dir("wanted");
    *request->mutable_notes() = request_->notes;
  }
  return frame;
}

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
  later_ = MeasuredKernels();
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
  kernels_ = std::vector<EmittedKernel>(static_cast<size_t>(size));
  keys_.clear();
  std::vector<int> missing;
  for (int k = 0; k < size; ++k) {
    const std::string& key =
        keys_.emplace_back(compiler_->KeyOfKernel(*request_, plan_.kernels(k).kernel(), target_));
    if (later_.contains(k)) continue;
    // A debug flight shows the machine code, which is not kept: it emits everything anew.
    if (!request_->debug && TakeKernel(key, &kernels_[static_cast<size_t>(k)])) continue;
    missing.push_back(k);
  }
  v1::CompileEvent planned;
  planned.mutable_planned()->set_kernels(static_cast<uint32_t>(size));
  kernels_done_ = static_cast<uint32_t>(static_cast<size_t>(size) - missing.size() - later_.size());
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
    Work work;
    work.task.kind = TaskQueue::Kind::kEmit;
    work.request = [this, k] { return KernelFrame(k); };
    work.limit = absl::Seconds(compiler_->limits().emit_seconds_max());
    work.after = [this, k](WorkerResult result) { return Emitted(k, std::move(result)); };
    next.tasks.push_back(Add(std::move(work)));
  }
  return next;
}

// What this flight has emitted before, or the store has.
bool FlightCompile::TakeKernel(const std::string& key, EmittedKernel* kernel) {
  if (const auto found = known_.find(key); found != known_.end()) {
    *kernel = found->second;
    return true;
  }
  absl::StatusOr<EmittedKernel> stored = compiler_->keys().ReadKernel(request_->ns, key, &holds_);
  if (!stored.ok()) return false;
  *kernel = *std::move(stored);
  compiler_->stats().kernels_reused++;
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
  KILN_ASSIGN_OR_RETURN(kernels_[k], PackKernel(keys_[k], planned.kernel(), reply));
  compiler_->stats().kernels_emitted++;
  v1::CompileEvent event;
  event.mutable_emitted()->set_done(++kernels_done_);
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

FlightCompile::Next FlightCompile::GoOn() {
  const bool replanned = tuning_.images().as_traced();
  const bool again = measures_ && !second_round_ && (request_->debug || replanned || !later_.empty());
  if (!again) return Finish();
  second_round_ = true;
  known_ = std::move(tuned_kernels_);
  for (size_t k = 0; k < kernels_.size(); ++k) {
    if (!later_.contains(static_cast<int>(k))) known_[keys_[k]] = std::move(kernels_[k]);
  }
  later_.clear();
  if (replanned) plan_ = **std::move(other_);
  SendPlanDebug();
  GiveSchedules();
  return StartEmits();
}

FlightCompile::Next FlightCompile::Finish() {
  if (stopped_) return absl::CancelledError("nobody waits for the answer");
  Progress("publishing", {});
  v1::RequestRecord record;
  record.set_namespace_(request_->ns);
  record.set_request_key(request_->request_key);
  *record.mutable_sections() = request_->sections;
  *record.mutable_notes() = request_->notes;
  *record.mutable_hints() = request_->hints;
  record.set_compiler_fingerprint(compiler_->fingerprint());
  {
    absl::MutexLock lock(&mutex_);
    record.set_queue_seconds(SecondsBetween(request_->job.created, planning_));
    record.set_plan_seconds(SecondsBetween(planning_, emitting_));
  }
  record.set_emit_seconds(SecondsBetween(emitting_, MonotonicNow()));
  ArtifactIngredients ingredients;
  ingredients.signatures = &compiler_->signatures();
  ingredients.ns = request_->ns;
  ingredients.compile_key = request_->compile_key;
  ingredients.request_key = request_->request_key;
  ingredients.target = target_;
  ingredients.kernels = kernels_;
  if (measures_) ingredients.tuning = &tuning_;
  ingredients.notes_record = SerializeDeterministic(record);
  ingredients.rebuild_ms = static_cast<uint32_t>(1e3 * (record.plan_seconds() + record.emit_seconds()));
  Artifact artifact = AssembleArtifact(ingredients, std::move(plan_));
  artifact.holds = std::move(holds_);
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
