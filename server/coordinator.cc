#include "server/coordinator.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "compiler/graph/guards.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/kernel_abi.h"
#include "compiler/support/limits.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "kiln/v1/record.pb.h"
#include "openssl/rand.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr absl::Duration kGoneStep = absl::Milliseconds(50);
constexpr absl::Duration kQuarantine = absl::Hours(24);
constexpr int kRoundsMax = 32;
constexpr size_t kRecentMax = 4096;
constexpr size_t kStrikesMax = 4096;
constexpr uint32_t kStrikesAllowed = 2;
constexpr size_t kJobIdBytes = 16;

std::string NewJobId() {
  std::string id(kJobIdBytes, '\0');
  RAND_bytes(reinterpret_cast<unsigned char*>(id.data()), id.size());
  return id;
}

v1::CompileEvent FailedEvent(const absl::Status& status) {
  v1::CompileEvent event;
  event.mutable_failed()->set_code(static_cast<int>(status.code()));
  event.mutable_failed()->set_reason(std::string(status.message()));
  return event;
}

v1::CompileEvent DoneEvent(const v1::SignedManifest* manifest, bool durable) {
  v1::CompileEvent event;
  if (manifest != nullptr) *event.mutable_done()->mutable_manifest() = *manifest;
  event.mutable_done()->set_durable(durable);
  return event;
}

// A refusal that would only repeat.
bool IsLasting(const absl::Status& status) {
  return absl::IsUnimplemented(status) || absl::IsInvalidArgument(status);
}

absl::Status GoneStatus() { return absl::CancelledError("the caller left"); }

}  // namespace

Coordinator::Coordinator(const v1::Config& config, Store* store, WorkerPool* pool, AdmissionQueue* queue,
                         Stats* stats)
    : config_(config), store_(store), pool_(pool), queue_(queue), stats_(stats) {}

std::string Coordinator::KeyOf(const std::string& ns, const std::string& request_key) const {
  return CompileKey(ns, request_key, kProgramFormatVersion, pool_->hello().compiler_fingerprint());
}

// ---- The store -------------------------------------------------------------------------------

std::vector<std::string> Coordinator::VariantKeys(const std::string& compile_key) const {
  std::vector<std::string> keys;
  absl::StatusOr<std::vector<CatalogEntry>> stored = store_->catalog().Scan(EntryKind::kManifest, compile_key);
  if (stored.ok()) {
    for (const CatalogEntry& entry : *stored) keys.push_back(entry.id.key);
  } else {
    spdlog::warn("list variants: {}", stored.status().ToString());
  }
  {
    absl::ReaderMutexLock lock(&mutex_);
    for (const std::string& key : recent_) {
      if (absl::string_view(key).substr(0, compile_key.size()) == compile_key) keys.push_back(key);
    }
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

absl::StatusOr<Coordinator::Variant> Coordinator::FindVariant(const std::string& compile_key,
                                                              const v1::Hints& hints) {
  for (const std::string& key : VariantKeys(compile_key)) {
    absl::StatusOr<EntryValue> value = store_->inspection().Get({EntryKind::kManifest, key});
    if (!value.ok()) {
      if (!absl::IsNotFound(value.status())) spdlog::warn("read manifest: {}", value.status().ToString());
      continue;
    }
    Variant variant;
    v1::Manifest manifest;
    if (!ParseProto(**value, "manifest", &variant.signed_manifest).ok() ||
        !ParseProto(variant.signed_manifest.manifest(), "manifest", &manifest).ok() ||
        ManifestEntryKey(manifest.compile_key(), manifest.variant_id()) != key) {
      spdlog::warn("a stored manifest is not what its key says");
      continue;
    }
    if (!GuardsHold(manifest.guards(), hints)) continue;
    store_->catalog().RecordUse({EntryKind::kManifest, key});
    variant.variant_id = manifest.variant_id();
    return variant;
  }
  return absl::NotFoundError("no variant fits");
}

absl::Status Coordinator::FindFailure(const std::string& compile_key) {
  absl::StatusOr<EntryValue> value = store_->artifacts().Get({EntryKind::kFailure, compile_key});
  if (!value.ok()) return absl::OkStatus();
  v1::FailureRecord record;
  if (!ParseProto(**value, "failure", &record).ok() || record.code() <= 0 || record.code() > 16) {
    spdlog::warn("a stored failure does not parse");
    return absl::OkStatus();
  }
  const absl::Time created = absl::FromUnixSeconds(record.created_unix_seconds());
  if (record.quarantine() && absl::Now() - created > kQuarantine) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(record.code()), record.reason());
}

void Coordinator::StoreFailure(const FlightPtr& flight, const absl::Status& status, bool quarantine) {
  v1::FailureRecord record;
  record.set_code(static_cast<int>(status.code()));
  record.set_reason(std::string(status.message()));
  record.set_created_unix_seconds(absl::ToUnixSeconds(absl::Now()));
  record.set_quarantine(quarantine);
  v1::RequestRecord request;
  request.set_namespace_(flight->ns);
  request.set_request_key(flight->request_key);
  *request.mutable_sections() = flight->sections;
  *request.mutable_notes() = flight->notes;
  std::vector<Entry> batch;
  batch.push_back(
      MakeEntry(EntryKind::kFailure, flight->compile_key, MakeEntryValue(SerializeDeterministic(record))));
  batch.push_back(MakeEntry(EntryKind::kMeta, RequestRecordId(flight->compile_key).key,
                            MakeEntryValue(SerializeDeterministic(request))));
  if (absl::Status put = store_->artifacts().Put(batch); !put.ok()) {
    spdlog::warn("store a refusal: {}", put.ToString());
  }
}

v1::LookupReply Coordinator::Lookup(const v1::LookupRequest& request) {
  stats_->lookups++;
  v1::LookupReply reply;
  const std::string key = KeyOf(request.namespace_(), request.request_key());
  if (absl::StatusOr<Variant> variant = FindVariant(key, request.hints()); variant.ok()) {
    stats_->hits++;
    *reply.mutable_hit()->mutable_manifest() = std::move(variant->signed_manifest);
    return reply;
  }
  stats_->misses++;
  if (absl::Status failure = FindFailure(key); !failure.ok()) {
    reply.mutable_failed()->set_code(static_cast<int>(failure.code()));
    reply.mutable_failed()->set_reason(std::string(failure.message()));
    return reply;
  }
  absl::ReaderMutexLock lock(&mutex_);
  if (auto found = flights_.find(key); found != flights_.end()) {
    reply.mutable_in_flight()->set_job_id(found->second->job_id);
  } else {
    reply.mutable_miss();
  }
  return reply;
}

void Coordinator::ReportUse(const v1::ReportUseRequest& request) {
  store_->catalog().RecordUse(
      {EntryKind::kManifest, ManifestEntryKey(request.compile_key(), request.variant_id())});
}

absl::Status Coordinator::FetchObjects(const v1::FetchObjectsRequest& request, const ObjectVisitor& visit) {
  const std::string key = ManifestEntryKey(request.compile_key(), request.variant_id());
  std::shared_ptr<const Artifact> fresh;  // shared with the flight that is about to store it
  {
    absl::ReaderMutexLock lock(&mutex_);
    if (auto found = unpublished_.find(key); found != unpublished_.end()) fresh = found->second;
  }
  v1::SignedManifest signed_manifest;
  if (fresh != nullptr) {
    signed_manifest = fresh->signed_manifest;
  } else {
    KILN_ASSIGN_OR_RETURN(EntryValue value, store_->inspection().Get({EntryKind::kManifest, key}));
    KILN_RETURN_IF_ERROR(ParseProto(*value, "manifest", &signed_manifest));
  }
  v1::Manifest manifest;
  KILN_RETURN_IF_ERROR(ParseProto(signed_manifest.manifest(), "manifest", &manifest));
  // The same answer as for a variant that never was: a guess learns nothing of other namespaces.
  if (manifest.namespace_() != request.namespace_()) return absl::NotFoundError("no such entry");
  absl::flat_hash_set<std::string> named;
  for (const v1::ManifestKernel& kernel : manifest.kernels()) {
    for (const v1::ObjectRef* ref : {&kernel.object(), &kernel.loop_ir(), &kernel.listing()}) {
      if (!ref->digest().empty()) named.insert(ref->digest());
    }
  }
  for (const std::string& digest : request.digests()) {
    if (!named.contains(digest)) return absl::InvalidArgumentError("a digest that the variant does not name");
  }
  for (const std::string& digest : request.digests()) {
    FetchedObject object{digest, nullptr};
    if (fresh != nullptr) {
      if (auto found = fresh->objects.find(digest); found != fresh->objects.end()) object.packed = found->second;
    }
    if (object.packed == nullptr) {
      KILN_ASSIGN_OR_RETURN(object.packed, store_->artifacts().Get({EntryKind::kObject, digest}));
    }
    stats_->fetched_objects++;
    if (!visit(object)) return GoneStatus();
  }
  return absl::OkStatus();
}

// ---- Callers ---------------------------------------------------------------------------------

absl::Status Coordinator::Compile(const Caller& caller, const Upload& upload) {
  Wanted wanted;
  wanted.request_key = RequestKey(upload.sections);
  wanted.compile_key = KeyOf(caller.ns, wanted.request_key);
  wanted.sections = upload.sections;
  wanted.notes = upload.notes;
  wanted.read_graph = upload.read_graph;
  wanted.debug = upload.want_debug;
  return Serve(caller, std::move(wanted));
}

absl::Status Coordinator::Attach(const Caller& caller, const std::string& job_id) {
  FlightPtr flight;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [key, candidate] : flights_) {
      if (candidate->job_id == job_id && candidate->ns == caller.ns) flight = candidate;
    }
    if (flight == nullptr) return absl::NotFoundError("no such job runs");
    flight->waiters++;
    flight->deadline = std::max(flight->deadline, caller.deadline);
  }
  stats_->joined++;
  KILN_ASSIGN_OR_RETURN(bool answered, Await(caller, flight, /*started=*/false));
  if (answered) return absl::OkStatus();
  Wanted wanted;
  wanted.request_key = flight->request_key;
  wanted.compile_key = flight->compile_key;
  wanted.sections = flight->sections;
  wanted.notes = flight->notes;
  wanted.graph = flight->graph;
  return Serve(caller, std::move(wanted));
}

absl::Status Coordinator::Serve(const Caller& caller, Wanted wanted) {
  const auto send = [&](const v1::CompileEvent& event) {
    return caller.send(event) ? absl::OkStatus() : GoneStatus();
  };
  bool started = false;
  for (int round = 0; round < kRoundsMax; ++round) {
    uint64_t epoch;
    {
      absl::ReaderMutexLock lock(&mutex_);
      epoch = epoch_;
    }
    if (!wanted.debug || started) {
      absl::StatusOr<Variant> variant = FindVariant(wanted.compile_key, caller.hints);
      if (variant.ok()) return send(DoneEvent(&variant->signed_manifest, true));
      if (absl::Status failure = FindFailure(wanted.compile_key); !failure.ok()) return send(FailedEvent(failure));
    }
    if (started) {
      return send(FailedEvent(absl::InternalError("the compiled variant's guards refuse the sizes it was built for")));
    }
    KILN_ASSIGN_OR_RETURN(FlightPtr flight, JoinOrStart(caller, wanted, epoch, &started));
    if (flight != nullptr) {
      KILN_ASSIGN_OR_RETURN(bool answered, Await(caller, flight, started));
      if (answered) return absl::OkStatus();
      wanted.graph = flight->graph;
    } else if (wanted.graph == nullptr) {
      KILN_RETURN_IF_ERROR(queue_->CheckRoom());
      KILN_ASSIGN_OR_RETURN(std::string bytes, wanted.read_graph());
      wanted.graph = std::make_shared<const std::string>(std::move(bytes));
      stats_->graphs_uploaded++;
    }
  }
  return absl::AbortedError("the key changes faster than it can be answered; try again");
}

absl::StatusOr<Coordinator::FlightPtr> Coordinator::JoinOrStart(const Caller& caller, const Wanted& wanted,
                                                                uint64_t epoch, bool* started) {
  const bool full = wanted.graph != nullptr && !wanted.debug &&
                    VariantKeys(wanted.compile_key).size() >= kVariantsPerKeyMax;
  absl::MutexLock lock(&mutex_);
  const auto found = flights_.find(wanted.compile_key);
  if (found != flights_.end() && !wanted.debug) {
    found->second->waiters++;
    found->second->deadline = std::max(found->second->deadline, caller.deadline);
    stats_->joined++;
    return found->second;
  }
  if (wanted.graph == nullptr || (epoch != epoch_ && !wanted.debug)) return FlightPtr();
  if (full) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the graph has ", kVariantsPerKeyMax, " variants already; none fits these sizes"));
  }
  FlightPtr flight = std::make_shared<Flight>();
  flight->ns = caller.ns;
  flight->compile_key = wanted.compile_key;
  flight->request_key = wanted.request_key;
  flight->job_id = NewJobId();
  flight->debug = wanted.debug;
  flight->slot = wanted.debug ? absl::StrCat(wanted.compile_key, flight->job_id) : wanted.compile_key;
  flight->sections = wanted.sections;
  flight->notes = wanted.notes;
  flight->hints = caller.hints;
  flight->graph = wanted.graph;
  flight->created = absl::Now();
  flight->waiters = 1;
  flight->deadline = caller.deadline;
  KILN_ASSIGN_OR_RETURN(size_t position, queue_->Enqueue([this, flight] { RunFlight(flight); }));
  flight->position = position;
  flights_[flight->slot] = flight;
  *started = true;
  return flight;
}

void Coordinator::Leave(const FlightPtr& flight) {
  absl::MutexLock lock(&mutex_);
  if (--flight->waiters > 0 || flight->finished || flight->artifact != nullptr) return;
  // Nobody waits and there is nothing to publish: the next caller of the key starts anew.
  flight->abandoned = true;
  if (auto found = flights_.find(flight->slot); found != flights_.end() && found->second == flight) {
    flights_.erase(found);
  }
}

absl::StatusOr<bool> Coordinator::Await(const Caller& caller, const FlightPtr& flight, bool started) {
  struct OnExit {
    ~OnExit() { coordinator->Leave(flight); }
    Coordinator* coordinator;
    const FlightPtr& flight;
  } leave{this, flight};
  v1::CompileEvent queued;
  queued.mutable_queued()->set_job_id(flight->job_id);
  queued.mutable_queued()->set_position(flight->position);
  queued.mutable_queued()->set_joined(!started);
  if (!caller.send(queued)) return GoneStatus();
  size_t seen = 0;
  bool delivered = false;
  while (true) {
    std::vector<v1::CompileEvent> events;
    std::shared_ptr<const Artifact> artifact;  // shared, see Artifact
    bool durable, finished;
    absl::Status status;
    {
      absl::MutexLock lock(&mutex_);
      if (seen == flight->events.size() && (flight->artifact == nullptr || delivered) && !flight->finished) {
        flight->changed.WaitWithTimeout(&mutex_, kGoneStep);
      }
      events.assign(flight->events.begin() + seen, flight->events.end());
      seen = flight->events.size();
      artifact = flight->artifact;
      durable = flight->durable;
      finished = flight->finished;
      status = flight->status;
    }
    if (caller.gone()) return GoneStatus();
    if (absl::Now() >= caller.deadline) return absl::DeadlineExceededError("the compile took longer than the caller waits");
    for (const v1::CompileEvent& event : events) {
      if (!caller.send(event)) return GoneStatus();
    }
    if (artifact != nullptr && !delivered) {
      if (!GuardsHold(artifact->guards, caller.hints)) {
        if (!finished) continue;  // wait for the end: until then the key has a flight
        return false;
      }
      if (!caller.send(DoneEvent(&artifact->signed_manifest, false))) return GoneStatus();
      delivered = true;
    }
    if (!finished) continue;
    if (artifact == nullptr) {
      // Ended for want of waiters just as this one joined: not this caller's verdict.
      if (absl::IsCancelled(status)) return started ? absl::StatusOr<bool>(status) : absl::StatusOr<bool>(false);
      return caller.send(FailedEvent(status)) ? absl::StatusOr<bool>(true) : GoneStatus();
    }
    // Not durable: the store refused. The caller has its program and gets no acknowledgement.
    if (durable && !caller.send(DoneEvent(nullptr, true))) return GoneStatus();
    return true;
  }
}

// ---- Flights ---------------------------------------------------------------------------------

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
    spdlog::info("compile {} \"{}\" failed: {}", ToHex(flight->compile_key.substr(0, 6)), flight->notes.title(),
                 status.ToString());
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
  KILN_ASSIGN_OR_RETURN(std::vector<EmittedKernel> kernels, EmitAll(flight, plan, target));
  Progress(flight, "publishing", {});

  v1::RequestRecord record;
  record.set_namespace_(flight->ns);
  record.set_request_key(flight->request_key);
  *record.mutable_sections() = flight->sections;
  *record.mutable_notes() = flight->notes;
  record.set_queue_seconds(absl::ToDoubleSeconds(planning - flight->created));
  record.set_plan_seconds(absl::ToDoubleSeconds(emitting - planning));
  record.set_emit_seconds(absl::ToDoubleSeconds(absl::Now() - emitting));
  ArtifactIngredients ingredients;
  ingredients.ns = flight->ns;
  ingredients.compile_key = flight->compile_key;
  ingredients.request_key = flight->request_key;
  ingredients.target = target;
  ingredients.kernels = kernels;
  ingredients.notes_record = SerializeDeterministic(record);
  return Publish(flight, std::make_shared<const Artifact>(AssembleArtifact(ingredients, std::move(plan))));
}

absl::StatusOr<v1::PlanReply> Coordinator::Plan(const FlightPtr& flight) {
  Progress(flight, "planning", {});
  while (true) {
    WorkerTask task;
    v1::PlanRequest* request = task.request.mutable_plan();
    *request->mutable_sections() = flight->sections;
    request->set_graph(*flight->graph);
    *request->mutable_hints() = flight->hints;
    *request->mutable_notes() = flight->notes;
    if (flight->debug) request->set_debug_dir("wanted");
    task.time_limit = absl::Seconds(config_.workers().plan_seconds_max());
    task.abandoned = [this, flight] { return Abandoned(flight); };
    absl::Notification ended;
    WorkerResult result;
    task.done = [&](WorkerResult answer) {
      result = std::move(answer);
      ended.Notify();
    };
    pool_->Submit(std::move(task));
    ended.WaitForNotification();
    if (result.crashed) {
      KILN_RETURN_IF_ERROR(Strike(flight, result.status));
      continue;
    }
    KILN_RETURN_IF_ERROR(result.status);
    KILN_RETURN_IF_ERROR(CheckPlan(result.reply.plan_reply()));
    for (v1::DebugFile& file : *result.reply.mutable_plan_reply()->mutable_debug_files()) {
      SendDebug(flight, std::move(file));
    }
    return std::move(*result.reply.mutable_plan_reply());
  }
}

absl::Status Coordinator::Strike(const FlightPtr& flight, const absl::Status& crash) {
  {
    absl::MutexLock lock(&mutex_);
    if (strikes_.size() >= kStrikesMax) strikes_.clear();
    if (++strikes_[flight->compile_key] < kStrikesAllowed) return absl::OkStatus();
    strikes_.erase(flight->compile_key);
  }
  absl::Status refusal = absl::FailedPreconditionError(
      absl::StrCat("compiling this graph brought down ", kStrikesAllowed, " compiler processes (", crash.message(),
                   "); it is refused for a day or until \"kilnctl rm ",
                   ToHex(flight->compile_key.substr(0, 6)), "\""));
  StoreFailure(flight, refusal, /*quarantine=*/true);
  return refusal;
}

absl::StatusOr<EmittedKernel> Coordinator::StoredKernel(const std::string& kernel_key) {
  KILN_ASSIGN_OR_RETURN(EntryValue value, store_->artifacts().Get({EntryKind::kKernel, kernel_key}));
  EmittedKernel kernel;
  KILN_RETURN_IF_ERROR(ParseProto(*value, "kernel record", &kernel.record));
  if (kernel.record.kernel_key() != kernel_key) return absl::DataLossError("a kernel record of another key");
  return kernel;
}

namespace {

// The kernels of one flight that are with the workers. Owned by the flight's runner and by every
// task, because the last task may still be unlocking when the runner goes on.
struct EmitState {
  absl::Mutex mutex;
  size_t left ABSL_GUARDED_BY(mutex) = 0;
  std::vector<WorkerResult> results ABSL_GUARDED_BY(mutex);
  bool AllDone() const ABSL_SHARED_LOCKS_REQUIRED(mutex) { return left == 0; }
};

}  // namespace

absl::StatusOr<std::vector<EmittedKernel>> Coordinator::EmitAll(const FlightPtr& flight, const v1::PlanReply& plan,
                                                                const v1::Target& target) {
  std::vector<EmittedKernel> kernels(plan.kernels_size());
  std::vector<std::string> keys;
  for (const v1::PlannedKernel& kernel : plan.kernels()) {
    keys.push_back(
        KernelKey(kernel.kernel(), target, KILN_KERNEL_ABI_VERSION, pool_->hello().compiler_fingerprint()));
  }
  std::vector<size_t> missing;
  for (int i = 0; i < plan.kernels_size(); ++i) {
    // A debug flight shows the machine code, which is not kept: it emits everything anew.
    absl::StatusOr<EmittedKernel> stored = absl::NotFoundError("");
    if (!flight->debug) stored = StoredKernel(keys[i]);
    if (stored.ok()) {
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
    flight->kernels_done = plan.kernels_size() - missing.size();
  }
  Progress(flight, "emitting", std::move(planned));

  while (!missing.empty()) {
    auto state = std::make_shared<EmitState>();
    {
      absl::MutexLock lock(&state->mutex);
      state->left = missing.size();
      state->results.resize(missing.size());
    }
    for (size_t k = 0; k < missing.size(); ++k) {
      WorkerTask task;
      v1::EmitRequest* request = task.request.mutable_emit();
      request->set_kernel(plan.kernels(missing[k]).kernel());
      *request->mutable_target() = target;
      request->set_want_listing(flight->debug);
      *request->mutable_notes() = plan.kernels(missing[k]).notes();
      task.time_limit = absl::Seconds(config_.workers().emit_seconds_max());
      task.abandoned = [this, flight] { return Abandoned(flight); };
      task.done = [this, flight, k, state](WorkerResult result) {
        if (result.status.ok()) {
          v1::CompileEvent event;
          {
            absl::MutexLock lock(&mutex_);
            event.mutable_emitted()->set_done(++flight->kernels_done);
            event.mutable_emitted()->set_total(flight->kernels_total);
          }
          Progress(flight, "emitting", std::move(event));
        }
        absl::MutexLock lock(&state->mutex);
        state->results[k] = std::move(result);
        --state->left;
      };
      pool_->Submit(std::move(task));
    }
    std::vector<WorkerResult> results;
    {
      absl::MutexLock lock(&state->mutex);
      state->mutex.Await(absl::Condition(state.get(), &EmitState::AllDone));
      results = std::move(state->results);
    }
    std::vector<size_t> again;
    for (size_t k = 0; k < missing.size(); ++k) {
      if (results[k].crashed) {
        KILN_RETURN_IF_ERROR(Strike(flight, results[k].status));
        again.push_back(missing[k]);
        continue;
      }
      KILN_RETURN_IF_ERROR(results[k].status);
      // For the caller's eyes only: with it the stored record would differ from any other compile's.
      v1::DebugFile listing;
      listing.set_name(absl::StrCat("kernels/", plan.kernels(missing[k]).notes().name(), ".listing.txt"));
      listing.set_text(std::move(*results[k].reply.mutable_emit_reply()->mutable_listing()));
      results[k].reply.mutable_emit_reply()->clear_listing();
      if (flight->debug) SendDebug(flight, std::move(listing));
      KILN_ASSIGN_OR_RETURN(kernels[missing[k]], PackKernel(keys[missing[k]], plan.kernels(missing[k]).kernel(),
                                                            results[k].reply.emit_reply()));
      stats_->kernels_emitted++;
    }
    missing = std::move(again);
  }
  return kernels;
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
  const absl::Status put = store_->artifacts().Put(artifact->entries);
  if (!put.ok()) spdlog::warn("store an artifact: {}", put.ToString());
  absl::MutexLock lock(&mutex_);
  unpublished_.erase(key);
  recent_.push_back(key);
  if (recent_.size() > kRecentMax) recent_.pop_front();
  flight->durable = put.ok();
  return absl::OkStatus();
}

// ---- For people ------------------------------------------------------------------------------

std::vector<v1::JobInfo> Coordinator::Jobs() const {
  std::vector<v1::JobInfo> jobs;
  const absl::Time now = absl::Now();
  absl::ReaderMutexLock lock(&mutex_);
  for (const auto& [slot, flight] : flights_) {
    v1::JobInfo job;
    job.set_job_id(flight->job_id);
    job.set_compile_key(flight->compile_key);
    job.set_title(flight->notes.title());
    job.set_phase(flight->phase);
    job.set_kernels_done(flight->kernels_done);
    job.set_kernels_total(flight->kernels_total);
    job.set_waiters(flight->waiters);
    job.set_seconds(absl::ToDoubleSeconds(now - flight->created));
    jobs.push_back(std::move(job));
  }
  std::sort(jobs.begin(), jobs.end(),
            [](const v1::JobInfo& a, const v1::JobInfo& b) { return a.seconds() > b.seconds(); });
  return jobs;
}

size_t Coordinator::flights() const {
  absl::ReaderMutexLock lock(&mutex_);
  return flights_.size();
}

void Coordinator::Forget(const std::string& compile_key) {
  absl::MutexLock lock(&mutex_);
  strikes_.erase(compile_key);
  recent_.erase(std::remove_if(recent_.begin(), recent_.end(),
                               [&](const std::string& key) {
                                 return absl::string_view(key).substr(0, compile_key.size()) == compile_key;
                               }),
                recent_.end());
}

}  // namespace kiln
