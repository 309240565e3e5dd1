// The coordinator's flights: from an admitted job to a published artifact. See coordinator.h.
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
#include "server/flight/coordinator.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr size_t kRecentMax = 4096;
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

bool Coordinator::Abandoned(const FlightPtr& flight) const {
  absl::ReaderMutexLock lock(&mutex_);
  return flight->abandoned || absl::Now() >= flight->deadline;
}

void Coordinator::Progress(const FlightPtr& flight, absl::string_view phase, v1::CompileEvent event) {
  absl::MutexLock lock(&mutex_);
  flight->phase = std::string(phase);
  if (event.kind_case() != v1::CompileEvent::KIND_NOT_SET) flight->events.push_back(std::move(event));
  flight->changed.SignalAll();
}

void Coordinator::SendDebug(const FlightPtr& flight, v1::DebugFile file) {
  if (!IsPlainName(file.name())) {
    spdlog::warn("a worker's debug file has no plain name");
    return;
  }
  v1::CompileEvent event;
  *event.mutable_debug() = std::move(file);
  absl::MutexLock lock(&mutex_);
  flight->events.push_back(std::move(event));
  flight->changed.SignalAll();
}

void Coordinator::SendPlanDebug(const FlightPtr& flight, v1::PlanReply* plan) {
  for (v1::DebugFile& file : *plan->mutable_debug_files()) SendDebug(flight, std::move(file));
  plan->clear_debug_files();
}

void Coordinator::SendKernelDebug(const FlightPtr& flight, const v1::PlannedKernel& kernel,
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

void Coordinator::Finish(const FlightPtr& flight, absl::Status status) {
  absl::MutexLock lock(&mutex_);
  flight->status = std::move(status);
  flight->finished = true;
  if (auto found = flights_.find(flight->slot); found != flights_.end() && found->second == flight) {
    flights_.erase(found);
  }
  ++epoch_;
  flight->changed.SignalAll();
}

void Coordinator::RunFlight(const FlightPtr& flight) {
  if (Abandoned(flight)) {
    Finish(flight, absl::CancelledError("nobody waits for the answer"));
    return;
  }
  stats_->compiles++;
  absl::Status status = CompileFlight(flight);
  if (!status.ok()) {
    stats_->failures++;
    spdlog::info("compile {} \"{}\" failed: {}", ToHex(flight->compile_key.substr(0, 6)),
                 flight->notes.title(), status.ToString());
    if (IsLasting(status)) StoreFailure(flight, status, /*quarantine=*/false);
  }
  Finish(flight, std::move(status));
}

absl::Status Coordinator::CompileFlight(const FlightPtr& flight) {
  v1::Target target;
  KILN_RETURN_IF_ERROR(ParseProto(flight->sections.target(), "target", &target));
  const absl::Time planning = absl::Now();
  KILN_ASSIGN_OR_RETURN(v1::PlanReply plan, Plan(flight));
  const absl::Time emitting = absl::Now();
  v1::Tuning tuning;
  absl::StatusOr<std::vector<EmittedKernel>> emitted = EmitAndTune(flight, target, &plan, &tuning);
  KILN_RETURN_IF_ERROR(emitted.status());
  const std::vector<EmittedKernel> kernels = *std::move(emitted);
  if (Abandoned(flight)) return absl::CancelledError("nobody waits for the answer");
  Progress(flight, "publishing", {});

  v1::RequestRecord record;
  record.set_namespace_(flight->ns);
  record.set_request_key(flight->request_key);
  *record.mutable_sections() = flight->sections;
  *record.mutable_notes() = flight->notes;
  *record.mutable_hints() = flight->hints;
  record.set_queue_seconds(absl::ToDoubleSeconds(planning - flight->created));
  record.set_plan_seconds(absl::ToDoubleSeconds(emitting - planning));
  record.set_emit_seconds(absl::ToDoubleSeconds(absl::Now() - emitting));
  ArtifactIngredients ingredients;
  ingredients.ns = flight->ns;
  ingredients.compile_key = flight->compile_key;
  ingredients.request_key = flight->request_key;
  ingredients.target = target;
  ingredients.kernels = kernels;
  if (!plan.subjects().empty() || plan.has_images()) ingredients.tuning = &tuning;
  ingredients.notes_record = SerializeDeterministic(record);
  ingredients.rebuild_ms = static_cast<uint32_t>(1e3 * (record.plan_seconds() + record.emit_seconds()));
  return Publish(flight, std::make_shared<const Artifact>(AssembleArtifact(ingredients, std::move(plan))));
}

WorkerTask Coordinator::PlanTask(const FlightPtr& flight) {
  WorkerTask task;
  v1::PlanRequest* request = task.request.mutable_plan();
  *request->mutable_sections() = flight->sections;
  request->set_graph(*flight->graph);
  *request->mutable_hints() = flight->hints;
  if (flight->debug) {
    request->set_debug_dir("wanted");
    *request->mutable_notes() = flight->notes;
  }
  task.time_limit = absl::Seconds(config_.workers().plan_seconds_max());
  task.abandoned = [this, flight] { return Abandoned(flight); };
  return task;
}

absl::StatusOr<v1::PlanReply> Coordinator::Plan(const FlightPtr& flight) {
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

absl::Status Coordinator::Strike(const FlightPtr& flight, const WorkerResult& crash) {
  ++flight->workers_lost;
  if (crash.killed) {
    // Somebody's kill, or the kernel's for want of memory: no proof against the graph, but no reason to
    // go on for ever.
    if (++flight->workers_killed <= kKillsAllowed) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(
        flight->workers_killed, " compiler processes were killed while they worked on this graph"));
  }
  {
    absl::MutexLock lock(&mutex_);
    if (strikes_.size() >= kStrikesMax) strikes_.clear();
    if (++strikes_[flight->compile_key] < kStrikesAllowed) return absl::OkStatus();
    strikes_.erase(flight->compile_key);
  }
  absl::Status refusal = absl::FailedPreconditionError(absl::StrCat(
      "compiling this graph brought down ", kStrikesAllowed, " compiler processes (", crash.status.message(),
      "); it is refused for a day or until \"kilnctl rm ", ToHex(flight->compile_key.substr(0, 6)), "\""));
  StoreFailure(flight, refusal, /*quarantine=*/true);
  return refusal;
}

absl::StatusOr<EmittedKernel> Coordinator::StoredKernel(const std::string& kernel_key) {
  KILN_ASSIGN_OR_RETURN(EntryValue value, store_->artifacts().Get({EntryKind::kKernel, kernel_key}));
  EmittedKernel kernel;
  KILN_RETURN_IF_ERROR(ParseProto(*value, "kernel record", &kernel.record));
  if (kernel.record.kernel_key() != kernel_key) return absl::DataLossError("a kernel record of another key");
  // Memory may hold what the disk refused, or has lost: that goes along with the new artifact.
  for (const v1::ObjectRef* object : {&kernel.record.object(), &kernel.record.loop_ir()}) {
    const EntryId id = {EntryKind::kObject, object->digest()};
    if (store_->catalog().Find(id).ok()) continue;
    KILN_ASSIGN_OR_RETURN(kernel.objects[object->digest()], store_->artifacts().Get(id));
  }
  return kernel;
}

std::string Coordinator::KeyOfKernel(const std::string& kernel, const v1::Target& target) const {
  return KernelKey(kernel, target, KILN_KERNEL_ABI_VERSION, pool_->hello().compiler_fingerprint());
}

std::vector<WorkerResult> Coordinator::Emit(const FlightPtr& flight, std::vector<v1::EmitRequest> requests,
                                            const std::function<void()>& emitted) {
  auto state = std::make_shared<EmitState>();
  {
    absl::MutexLock lock(&state->mutex);
    state->left = requests.size();
    state->results.resize(requests.size());
  }
  for (size_t k = 0; k < requests.size(); ++k) {
    WorkerTask task;
    *task.request.mutable_emit() = std::move(requests[k]);
    task.time_limit = absl::Seconds(config_.workers().emit_seconds_max());
    task.abandoned = [this, flight] { return Abandoned(flight); };
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

absl::StatusOr<std::vector<EmittedKernel>> Coordinator::EmitAll(const FlightPtr& flight,
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
    if (!flight->debug && found == known.end()) stored = StoredKernel(keys[i]);
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
  {
    absl::MutexLock lock(&mutex_);
    flight->kernels_total = plan.kernels_size();
    flight->kernels_done = plan.kernels_size() - missing.size() - later.size();
  }
  Progress(flight, "emitting", std::move(planned));
  const auto emitted = [this, flight] {
    v1::CompileEvent event;
    {
      absl::MutexLock lock(&mutex_);
      event.mutable_emitted()->set_done(++flight->kernels_done);
      event.mutable_emitted()->set_total(flight->kernels_total);
    }
    Progress(flight, "emitting", std::move(event));
  };

  while (!missing.empty()) {
    std::vector<v1::EmitRequest> requests;
    for (const size_t i : missing) {
      v1::EmitRequest& request = requests.emplace_back();
      request.set_kernel(plan.kernels(i).kernel());
      *request.mutable_target() = target;
      request.set_want_listing(flight->debug);
      *request.mutable_notes() = plan.kernels(i).notes();
      if (flight->debug)
        *request.mutable_notes() = WithSources(request.notes(), flight->notes.source_lines());
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
      if (flight->debug) SendKernelDebug(flight, plan.kernels(i), results[k].reply.emit_reply());
      KILN_ASSIGN_OR_RETURN(kernels[i],
                            PackKernel(keys[i], plan.kernels(i).kernel(), results[k].reply.emit_reply()));
      stats_->kernels_emitted++;
    }
    missing = std::move(again);
  }
  return kernels;
}

void Coordinator::MakeRoom(const std::string& compile_key, const std::string& new_key) {
  std::vector<std::string> keys = VariantKeys(compile_key);
  keys.erase(std::remove(keys.begin(), keys.end(), new_key), keys.end());
  if (keys.size() < kVariantsPerKeyMax) return;
  const auto last_used = [this](const std::string& key) {
    const absl::StatusOr<CatalogEntry> entry = store_->catalog().Find({EntryKind::kManifest, key});
    return entry.ok() ? std::max(entry->created_unix_seconds, entry->last_used_unix_seconds) : int64_t{0};
  };
  std::vector<std::pair<int64_t, std::string>> by_use;
  for (std::string& key : keys) {
    const int64_t used = last_used(key);
    by_use.emplace_back(used, std::move(key));
  }
  std::sort(by_use.begin(), by_use.end());
  std::vector<EntryId> doomed;
  for (size_t i = 0; i + kVariantsPerKeyMax <= by_use.size(); ++i) {
    doomed.push_back(EntryId{EntryKind::kManifest, by_use[i].second});
  }
  if (absl::Status status = store_->artifacts().Delete(doomed); !status.ok()) {
    spdlog::warn("remove the oldest variant: {}", status.ToString());
  }
  absl::MutexLock lock(&mutex_);
  for (const EntryId& id : doomed)
    recent_.erase(std::remove(recent_.begin(), recent_.end(), id.key), recent_.end());
}

absl::Status Coordinator::Publish(const FlightPtr& flight, const std::shared_ptr<const Artifact>& artifact) {
  const std::string key = ManifestEntryKey(artifact->compile_key, artifact->variant_id);
  {
    absl::MutexLock lock(&mutex_);
    unpublished_[key] = artifact;
    flight->artifact = artifact;
    strikes_.erase(flight->compile_key);
    flight->changed.SignalAll();
  }
  MakeRoom(artifact->compile_key, key);
  const absl::Status put = store_->artifacts().Put(artifact->entries);
  if (!put.ok()) spdlog::warn("store an artifact: {}", put.ToString());
  absl::MutexLock lock(&mutex_);
  unpublished_.erase(key);
  recent_.push_back(key);
  if (recent_.size() > kRecentMax) recent_.pop_front();
  flight->stored = put;
  return absl::OkStatus();
}

}  // namespace kiln
