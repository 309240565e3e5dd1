#include "server/flight/coordinator.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compiler/graph/guards.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
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

v1::CompileEvent DoneEvent(const v1::SignedManifest& manifest, bool durable, uint32_t workers_lost) {
  v1::CompileEvent event;
  *event.mutable_done()->mutable_manifest() = manifest;
  event.mutable_done()->set_durable(durable);
  event.mutable_done()->set_workers_lost(workers_lost);
  return event;
}

// After a DoneEvent that was not durable: how the store took it.
v1::CompileEvent StoredEvent(const absl::Status& stored) {
  v1::CompileEvent event;
  event.mutable_done()->set_durable(stored.ok());
  event.mutable_done()->set_not_kept(std::string(stored.message()));
  return event;
}

absl::Status GoneStatus() { return absl::CancelledError("the caller left"); }

}  // namespace

Coordinator::Coordinator(const v1::Config& config, Store* store, WorkerPool* pool, Tuner* tuner,
                         AdmissionQueue* queue, Stats* stats)
    : config_(config), store_(store), pool_(pool), tuner_(tuner), queue_(queue), stats_(stats) {}

std::string Coordinator::KeyOf(const std::string& ns, const std::string& request_key) const {
  return CompileKey(ns, request_key, kProgramFormatVersion, pool_->hello().compiler_fingerprint());
}

// ---- The store -------------------------------------------------------------------------------

std::vector<std::string> Coordinator::VariantKeys(const std::string& compile_key) const {
  std::vector<std::string> keys;
  absl::StatusOr<std::vector<CatalogEntry>> stored =
      store_->catalog().Scan(EntryKind::kManifest, compile_key);
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
  absl::Status none = absl::NotFoundError("no variant is stored");
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
    if (!GuardsHold(manifest.guards(), hints)) {
      none = absl::InvalidArgumentError(
          "the sizes of this call contradict those that the graph declares, or are fewer than its symbols");
      continue;
    }
    store_->catalog().RecordUse({EntryKind::kManifest, key});
    variant.variant_id = manifest.variant_id();
    return variant;
  }
  return none;
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
      {{EntryKind::kFailure, flight->compile_key}, MakeEntryValue(SerializeDeterministic(record))});
  batch.push_back({RequestRecordId(flight->compile_key), MakeEntryValue(SerializeDeterministic(request))});
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
    for (const v1::ObjectRef* ref : {&kernel.object(), &kernel.loop_ir()}) {
      if (!ref->digest().empty()) named.insert(ref->digest());
    }
  }
  for (const std::string& digest : request.digests()) {
    if (!named.contains(digest)) return absl::InvalidArgumentError("a digest that the variant does not name");
  }
  for (const std::string& digest : request.digests()) {
    FetchedObject object{digest, nullptr};
    if (fresh != nullptr) {
      if (auto found = fresh->objects.find(digest); found != fresh->objects.end())
        object.packed = found->second;
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
      if (variant.ok()) return send(DoneEvent(variant->signed_manifest, true, 0));
      if (absl::Status failure = FindFailure(wanted.compile_key); !failure.ok())
        return send(FailedEvent(failure));
      // Of this call, not of the graph: not stored.
      if (started && absl::IsInvalidArgument(variant.status())) return send(FailedEvent(variant.status()));
    }
    if (started) return send(FailedEvent(absl::InternalError("what was compiled is not in the store")));
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
  absl::MutexLock lock(&mutex_);
  const auto found = flights_.find(wanted.compile_key);
  if (found != flights_.end() && !wanted.debug) {
    found->second->waiters++;
    found->second->deadline = std::max(found->second->deadline, caller.deadline);
    stats_->joined++;
    return found->second;
  }
  if (wanted.graph == nullptr || (epoch != epoch_ && !wanted.debug)) return FlightPtr();
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
  KILN_ASSIGN_OR_RETURN(const AdmissionQueue::Place place,
                        queue_->Enqueue([this, flight] { RunFlight(flight); }));
  flight->position = static_cast<uint32_t>(place.before);
  flight->ticket = place.ticket;
  flights_[flight->slot] = flight;
  *started = true;
  return flight;
}

void Coordinator::Leave(const FlightPtr& flight) {
  absl::MutexLock lock(&mutex_);
  if (--flight->waiters > 0 || flight->finished || flight->artifact != nullptr) return;
  // Nobody waits and there is nothing to publish: the next caller of the key starts anew.
  flight->abandoned = true;
  queue_->Withdraw(flight->ticket);
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
    bool finished;
    absl::Status status, stored;
    {
      absl::MutexLock lock(&mutex_);
      if (seen == flight->events.size() && (flight->artifact == nullptr || delivered) && !flight->finished) {
        flight->changed.WaitWithTimeout(&mutex_, kGoneStep);
      }
      events.assign(flight->events.begin() + seen, flight->events.end());
      seen = flight->events.size();
      artifact = flight->artifact;
      stored = flight->stored;
      finished = flight->finished;
      status = flight->status;
    }
    if (caller.gone()) return GoneStatus();
    if (absl::Now() >= caller.deadline)
      return absl::DeadlineExceededError("the compile took longer than the caller waits");
    for (const v1::CompileEvent& event : events) {
      if (!caller.send(event)) return GoneStatus();
    }
    if (artifact != nullptr && !delivered) {
      if (!GuardsHold(artifact->guards, caller.hints)) {
        if (!finished) continue;  // wait for the end: until then the key has a flight
        return false;
      }
      // Acknowledged only after the sync.
      if (!caller.send(DoneEvent(artifact->signed_manifest, false, flight->workers_lost)))
        return GoneStatus();
      delivered = true;
    }
    if (!finished) continue;
    if (artifact == nullptr) {
      // Ended for want of waiters just as this one joined: not this caller's verdict.
      if (absl::IsCancelled(status))
        return started ? absl::StatusOr<bool>(status) : absl::StatusOr<bool>(false);
      return caller.send(FailedEvent(status)) ? absl::StatusOr<bool>(true) : GoneStatus();
    }
    return caller.send(StoredEvent(stored)) ? absl::StatusOr<bool>(true) : GoneStatus();
  }
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
  if (compile_key.empty()) strikes_.clear();
  recent_.erase(std::remove_if(recent_.begin(), recent_.end(),
                               [&](const std::string& key) {
                                 return absl::string_view(key).substr(0, compile_key.size()) == compile_key;
                               }),
                recent_.end());
}

}  // namespace kiln
