#include "server/rpc/admin_service.h"

#include <unistd.h>

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/caller_notes.h"
#include "compiler/ir/print.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "compiler/support/manifest_objects.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "compiler/support/zstd.h"
#include "compiler/worker/build_id.h"
#include "kiln/v1/record.pb.h"
#include "server/build/artifact.h"
#include "server/rpc/daemon_facts.h"
#include "server/rpc/entry_choice.h"
#include "server/rpc/explanation.h"
#include "server/rpc/refusal_removal.h"
#include "server/rpc/request_limits.h"
#include "server/rpc/tier_program.h"
#include "server/rpc/tuning_removal.h"
#include "server/server_limits.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr absl::Duration kGonePause = absl::Milliseconds(100);  // between two looks for the caller

uint64_t PackedBytes(const v1::Manifest& manifest) {
  uint64_t bytes = manifest.ByteSizeLong();
  for (const v1::ObjectRef* object : ObjectsOf(manifest)) bytes += object->packed_size();
  return bytes;
}

// The kind of the graph is in no manifest; the client's title ends with it.
v1::GraphKind KindOf(const v1::GraphNotes& notes) {
  if (absl::EndsWith(notes.title(), "backward")) return v1::BACKWARD;
  if (absl::EndsWith(notes.title(), "forward")) return v1::FORWARD;
  return absl::EndsWith(notes.title(), "inference") ? v1::INFERENCE : v1::GRAPH_UNSPECIFIED;
}

CallerGone Gone(const grpc::CallbackServerContext& context) {
  return [&context] { return context.IsCancelled(); };
}

std::vector<EntryId> IdsOf(const ChosenEntries& chosen) {
  std::vector<EntryId> ids;
  for (const auto* entries : {&chosen.manifests, &chosen.failures}) {
    for (const CatalogEntry& entry : *entries) ids.push_back(entry.id);
  }
  return ids;
}

absl::flat_hash_set<std::string> CompileKeysOf(const std::vector<EntryId>& ids) {
  absl::flat_hash_set<std::string> keys;
  for (const EntryId& id : ids) keys.insert(id.key.substr(0, kDigestBytes));
  return keys;
}

v1::TenantInfo& TenantRow(const std::string& name, std::map<std::string, v1::TenantInfo>* rows) {
  v1::TenantInfo& row = (*rows)[name];
  row.set_name(name);
  return row;
}

}  // namespace

absl::StatusOr<AdminService::Found> AdminService::ReadEntry(const CatalogEntry& entry) {
  Found found;
  found.entry = entry;
  KILN_ASSIGN_OR_RETURN(EntryValue value, store_->inspection().Get(entry.id));
  v1::SignedManifest signed_manifest;
  KILN_RETURN_IF_ERROR(ParseProto(*value, "manifest", &signed_manifest));
  KILN_RETURN_IF_ERROR(ParseProto(signed_manifest.manifest(), "manifest", &found.manifest));
  absl::StatusOr<EntryValue> facts = store_->inspection().Get(RequestRecordId(found.manifest.compile_key()));
  if (!facts.ok()) return found;
  v1::RequestRecord record;
  KILN_RETURN_IF_ERROR(ParseProto(**facts, "request record", &record));
  found.sections = std::move(*record.mutable_sections());
  found.notes = std::move(*record.mutable_notes());
  found.hints = std::move(*record.mutable_hints());
  v1::CompileStatistics* statistics = found.manifest.mutable_statistics();
  statistics->set_plan_seconds(record.plan_seconds());
  statistics->set_emit_seconds(record.emit_seconds());
  statistics->set_queue_seconds(record.queue_seconds());
  return found;
}

v1::EntryInfo AdminService::Describe(const Found& found) const {
  v1::EntryInfo info;
  info.set_compile_key(found.manifest.compile_key());
  info.set_variant_id(found.manifest.variant_id());
  info.set_title(found.notes.title());
  info.set_bytes(PackedBytes(found.manifest));
  info.set_kernels(found.manifest.kernels_size());
  uint32_t calls = 0;
  for (const v1::Step& step : found.manifest.program().steps()) calls += step.has_call() ? 1 : 0;
  info.set_library_calls(calls);
  info.set_created_unix_seconds(found.entry.created_unix_seconds);
  info.set_last_used_unix_seconds(found.entry.last_used_unix_seconds);
  info.set_hits(found.entry.hits);
  info.set_kind(KindOf(found.notes));
  info.set_pinned(found.entry.pinned);
  return info;
}

absl::Status AdminService::AnswerStatus(const grpc::CallbackServerContext& context,
                                        const v1::StatusRequest& request, v1::StatusReply* reply) {
  KILN_ASSIGN_OR_RETURN(const Identity* caller, gate_.Admit(context, Rpc::kStatus));
  AddCaller(*caller, config_.listen(), reply);
  AddKeys(*signatures_, reply);
  AddCertificates(config_, reply);
  AddClock(reply);
  reply->set_version(KILN_VERSION);
  reply->set_build_id(OwnBuildId());
  reply->set_compiler_fingerprint(pool_->hello().compiler_fingerprint());
  reply->set_pid(getpid());
  reply->set_started_unix_seconds(facts_.started_unix_seconds);
  reply->set_address(facts_.address);
  reply->set_store_directory(config_.store().directory());
  reply->set_signing_key(signatures_->key_id());
  reply->set_workers(pool_->size());
  reply->set_workers_busy(pool_->busy());
  const Coordinator::Load load = coordinator_->load();
  reply->set_queued(load.queued);
  reply->set_running(load.begun);
  reply->set_draining(facts_.draining->load());
  reply->set_drained(load.drained);
  const StoreStatistics statistics = store_->statistics();
  reply->set_store_writable(statistics.writable);
  reply->set_store_message(statistics.message);
  for (const v1::WorkerHello::Layer& layer : pool_->hello().sandbox()) {
    v1::SandboxLayer* told = reply->add_sandbox();
    told->set_name(layer.name());
    told->set_on(layer.on());
    told->set_why_not(layer.why_not());
  }
  if (facts_.tier != nullptr) {
    *reply->mutable_tier() = facts_.tier->status();
    *reply->mutable_tier()->mutable_work() = facts_.tier_workers->status();
    if (request.look()) facts_.tier->members()->Look(reply->mutable_tier());
  }
  if (facts_.upstream != nullptr) *reply->mutable_upstream() = facts_.upstream->status();
  if (gpus_ == nullptr) return absl::OkStatus();
  for (v1::MeasuringGpu& gpu : gpus_->gpus()) *reply->add_gpus() = std::move(gpu);
  return absl::OkStatus();
}

absl::Status AdminService::AnswerStats(const grpc::CallbackServerContext&, const v1::StatsRequest&,
                                       v1::StatsReply* reply) {
  const StoreStatistics store = store_->statistics();
  reply->set_lookups(stats_->lookups.asked);
  reply->set_hits(stats_->lookups.hits);
  reply->set_misses(stats_->lookups.misses);
  reply->set_compiles(stats_->flights.compiled);
  reply->set_joined(stats_->flights.joined);
  reply->set_failures(stats_->flights.failed);
  reply->set_entries(store.entries);
  reply->set_bytes(store.bytes_on_disk);
  reply->set_objects(store.objects);
  reply->set_kernels_emitted(stats_->kernels.emitted);
  reply->set_kernels_reused(stats_->kernels.reused);
  reply->set_tunables_measured(stats_->tuning.measured);
  reply->set_tunables_reused(stats_->tuning.reused);
  reply->set_candidates_lost(stats_->tuning.candidates_lost);
  reply->set_worker_crashes(stats_->workers.crashes);
  reply->set_worker_timeouts(stats_->workers.timeouts);
  reply->set_quarantined(store.quarantined);
  reply->set_refused_signatures(store.refused_signatures);
  reply->set_evicted(store.evicted);
  reply->set_scrubbed(store.scrubbed);
  reply->set_fetched_objects(stats_->transfers.fetched_objects);
  reply->set_graphs_uploaded(stats_->transfers.uploaded_graphs);
  if (facts_.upstream != nullptr) reply->set_forwarded(facts_.upstream->status().forwarded());
  for (UseTable::Row& row : stats_->uses.Rows()) {
    v1::JobUse& use = *reply->add_uses();
    use.set_tenant(std::move(row.tenant));
    use.set_job(std::move(row.job));
    use.set_several(row.several);
    use.set_hits(row.use.hits);
    use.set_compiles(row.use.compiles);
    use.set_executed(row.use.executed);
    use.set_seconds_saved(1e-3 * static_cast<double>(row.use.saved_ms));
    use.set_compile_seconds(1e-6 * static_cast<double>(row.use.spent_us));
  }
  return absl::OkStatus();
}

absl::Status AdminService::AnswerJobs(const grpc::CallbackServerContext&, const v1::JobsRequest&,
                                      v1::JobsReply* reply) {
  for (v1::JobInfo& job : coordinator_->Jobs()) *reply->add_jobs() = std::move(job);
  return absl::OkStatus();
}

absl::Status AdminService::AnswerList(const grpc::CallbackServerContext& context,
                                      const v1::ListRequest& request, v1::ListReply* reply) {
  const size_t limit =
      request.limit() == 0 ? kEntriesListedMax : std::min<size_t>(request.limit(), kEntriesListedMax);
  uint64_t total = 0;
  KILN_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> latest,
                        LatestEntries(store_->catalog(), EntryKind::kManifest, limit, Gone(context), &total));
  reply->set_total(total);
  for (const CatalogEntry& entry : latest) {
    if (context.IsCancelled()) return absl::CancelledError("the caller has gone");
    absl::StatusOr<Found> found = ReadEntry(entry);
    if (found.ok()) {
      *reply->add_entries() = Describe(*found);
    } else {
      spdlog::warn("read an entry: {}", found.status().ToString());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> AdminService::ReadObject(const v1::ObjectRef& ref) {
  if (ref.raw_size() > kListingBytesMax) return absl::ResourceExhaustedError("too long to show");
  KILN_ASSIGN_OR_RETURN(EntryValue packed, store_->inspection().Get({EntryKind::kObject, ref.digest()}));
  KILN_ASSIGN_OR_RETURN(std::string raw, ZstdDecompress(*packed, ref.raw_size()));
  if (Sha256(raw) != ref.digest()) return absl::DataLossError("an object that is not its digest's");
  return raw;
}

void AdminService::ShowKernels(const Found& found, const ReadObjects& read, v1::ShownEntry* shown) {
  const BytesMoved bytes(found.manifest.byte_exprs(), found.hints);
  for (const v1::ManifestKernel& kernel : found.manifest.kernels()) {
    v1::ShownKernel* out = shown->add_kernels();
    *out->mutable_kernel() = kernel;
    out->set_bytes_read(bytes.Of(kernel.bytes_read()));
    out->set_bytes_written(bytes.Of(kernel.bytes_written()));
    const v1::KernelNotes notes = WithSources(kernel.notes(), found.notes.source_lines());
    *out->mutable_sources() = notes.sources();
    if (absl::StatusOr<std::string> raw = read(kernel.loop_ir()); raw.ok()) {
      v1::Kernel loops;
      if (loops.ParseFromString(*raw)) out->set_loop_ir(PrintKernel(loops, notes));
    } else {
      out->set_loop_ir(absl::StrCat("(", raw.status().message(), ")"));
    }
  }
}

// Tasks that workers do, and how many are not done yet.
class AdminService::Tasks {
 public:
  explicit Tasks(size_t count) : left_(count) {}
  void Done() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    --left_;
  }
  // Whether all were done in time.
  bool Wait(absl::Duration limit) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(+[](size_t* left) { return *left == 0; }, &left_), limit);
  }

 private:
  absl::Mutex mutex_;
  size_t left_ ABSL_GUARDED_BY(mutex_);
};

absl::Status AdminService::AddListings(const grpc::CallbackServerContext& context,
                                       const v1::Manifest& manifest, v1::ShownEntry* shown) {
  std::vector<WorkerResult> results(shown->kernels_size());
  Tasks tasks(results.size());
  std::vector<uint64_t> submitted;
  Caller caller;
  caller.job = "kilnctl";
  caller.work_class = Caller::Class::kBackground;
  for (int i = 0; i < shown->kernels_size(); ++i) {
    const v1::ManifestKernel& kernel = shown->kernels(i).kernel();
    absl::StatusOr<std::string> loops = ReadObject(kernel.loop_ir());
    if (!loops.ok()) {
      results[i].status = loops.status();
      tasks.Done();
      continue;
    }
    v1::Frame frame;
    v1::EmitRequest* request = frame.mutable_emit();
    request->set_kernel(*std::move(loops));
    *request->mutable_target() = manifest.target();
    *request->mutable_notes() = kernel.notes();
    *request->mutable_notes()->mutable_sources() = shown->kernels(i).sources();
    request->set_want_listing(true);
    WorkerTask task;
    task.tenant = manifest.namespace_();
    task.request = [frame = std::move(frame)] { return frame; };
    task.time_limit = absl::Seconds(config_.workers().emit_seconds_max());
    task.abandoned = Gone(context);
    task.done = [&tasks, result = &results[i]](WorkerResult finished) {
      *result = std::move(finished);
      tasks.Done();
    };
    submitted.push_back(coordinator_->Submit(caller, std::move(task)));
  }
  while (!tasks.Wait(kGonePause)) {
    if (!context.IsCancelled()) continue;
    for (const uint64_t task : submitted) coordinator_->Withdraw(task);
    tasks.Wait(absl::InfiniteDuration());
  }
  if (context.IsCancelled()) return absl::CancelledError("the caller has gone");
  for (int i = 0; i < shown->kernels_size(); ++i) {
    v1::ShownKernel* kernel = shown->mutable_kernels(i);
    const v1::EmitReply& reply = results[i].reply.emit_reply();
    if (!results[i].status.ok()) {
      kernel->set_listing(absl::StrCat("(no listing: ", results[i].status.message(), ")"));
    } else if (Sha256(reply.object()) != kernel->kernel().object().digest()) {
      kernel->set_listing("(no listing: this compiler makes other code of the kernel than the stored one)");
    } else {
      kernel->set_listing(reply.listing());
    }
  }
  return absl::OkStatus();
}

absl::Status AdminService::AnswerShow(const grpc::CallbackServerContext& context,
                                      const v1::ShowRequest& request, v1::ShowReply* reply) {
  KILN_ASSIGN_OR_RETURN(const KeyPrefix prefix, KeyPrefix::Parse(request.key_prefix()));
  KILN_ASSIGN_OR_RETURN(const ChosenEntries chosen,
                        ChooseEntries(*store_, prefix, RequestKeys::kElse, kEntriesShownMax, Gone(context)));
  for (const CatalogEntry& entry : chosen.manifests) {
    if (context.IsCancelled()) return absl::CancelledError("the caller has gone");
    absl::StatusOr<Found> found = ReadEntry(entry);
    if (!found.ok()) {
      spdlog::warn("read an entry: {}", found.status().ToString());
      continue;
    }
    Found& match = *found;
    v1::ShownEntry* shown = reply->add_entries();
    *shown->mutable_info() = Describe(match);
    ShowKernels(match, [this](const v1::ObjectRef& ref) { return ReadObject(ref); }, shown);
    if (request.listings()) KILN_RETURN_IF_ERROR(AddListings(context, match.manifest, shown));
    *shown->mutable_manifest() = std::move(match.manifest);
    *shown->mutable_sections() = std::move(match.sections);
    *shown->mutable_notes() = std::move(match.notes);
    *shown->mutable_hints() = std::move(match.hints);
  }
  if (reply->entries_size() == 0) return absl::NotFoundError("no entry has a key that starts so");
  return absl::OkStatus();
}

absl::Status AdminService::AnswerVerify(const grpc::CallbackServerContext& context,
                                        const v1::VerifyRequest& request, v1::VerifyReply* reply) {
  absl::StatusOr<Store::VerifyResult> result = store_->Verify(request.repair(), Gone(context));
  if (!result.ok()) return result.status();
  reply->set_entries(result->entries);
  reply->set_objects(result->objects);
  reply->set_corrupt(result->corrupt);
  reply->set_missing(result->missing);
  for (std::string& detail : result->details) reply->add_details(std::move(detail));
  return absl::OkStatus();
}

absl::Status AdminService::RemoveAll(const grpc::CallbackServerContext& context, v1::RemoveReply* reply) {
  CountsByKind removed = {};
  const absl::Status status = RemoveAllEntries(*store_, Gone(context), &removed);
  coordinator_->Forget("");
  const auto count = [&](EntryKind kind) { return removed[static_cast<size_t>(kind)]; };
  reply->set_manifests(count(EntryKind::kManifest));
  reply->set_failures(count(EntryKind::kFailure));
  reply->set_kernels(count(EntryKind::kKernel));
  reply->set_objects(count(EntryKind::kObject));
  reply->set_tuning_records(count(EntryKind::kTuning));
  reply->set_removed(reply->manifests() + reply->failures());
  return status;
}

absl::Status AdminService::AnswerRemove(const grpc::CallbackServerContext& context,
                                        const v1::RemoveRequest& request, v1::RemoveReply* reply) {
  if (request.tuning() && request.all())
    return absl::InvalidArgumentError(
        "tuning: of the programs of a key_prefix; all takes the store's records");
  if (request.all()) return RemoveAll(context, reply);
  KILN_ASSIGN_OR_RETURN(const ChosenEntries chosen,
                        ChooseOneKey(*store_, request.key_prefix(), request.every_match(), Gone(context)));
  if (request.tuning()) {
    KILN_ASSIGN_OR_RETURN(const uint64_t removed, RemoveTuning(*store_, *facts_.tuning_records, facts_.tier,
                                                               chosen.manifests, Gone(context)));
    reply->set_tuning_records(removed);
  }
  KILN_RETURN_IF_ERROR(RemoveRefusals(*store_, facts_.tier, chosen.failures, Gone(context)));
  const std::vector<EntryId> ids = IdsOf(chosen);
  const absl::Status status = RemoveEntries(*store_, ids, Gone(context));
  for (const std::string& key : CompileKeysOf(ids)) coordinator_->Forget(key);
  reply->set_manifests(chosen.manifests.size());
  reply->set_failures(chosen.failures.size());
  reply->set_removed(ids.size());
  return status;
}

absl::Status AdminService::AnswerPin(const grpc::CallbackServerContext& context,
                                     const v1::PinRequest& request, v1::PinReply* reply) {
  KILN_ASSIGN_OR_RETURN(const ChosenEntries chosen,
                        ChooseOneKey(*store_, request.key_prefix(), request.every_match(), Gone(context)));
  for (const EntryId& id : IdsOf(chosen)) {
    if (context.IsCancelled()) return absl::CancelledError("the caller has gone");
    // Held first: a sweep either sees the pin or has it told here that the entry is going.
    const Holds::Hold hold = store_->Keep({id});
    const absl::Status status = hold.late() ? absl::NotFoundError("the entry is being evicted")
                                            : store_->catalog().SetPinned(id, !request.unpin());
    // One that has gone since is no match any more.
    if (!status.ok() && !absl::IsNotFound(status)) return status;
    reply->set_entries(reply->entries() + (status.ok() ? 1 : 0));
  }
  return absl::OkStatus();
}

absl::Status AdminService::AnswerEvict(const grpc::CallbackServerContext&, const v1::EvictRequest& request,
                                       v1::EvictReply* reply) {
  const uint64_t before = store_->statistics().evicted;
  KILN_RETURN_IF_ERROR(store_->EvictTo(request.live_bytes()));
  const StoreStatistics statistics = store_->statistics();
  reply->set_evicted(statistics.evicted - before);
  reply->set_bytes_on_disk(statistics.bytes_on_disk);
  return absl::OkStatus();
}

absl::Status AdminService::AnswerKeys(const grpc::CallbackServerContext&, const v1::KeysRequest&,
                                      v1::KeysReply* reply) {
  bool own = true;
  for (const v1::TrustedKey& key : signatures_->Listed("")) {
    v1::KeysReply::Key* const shown = own ? reply->mutable_own() : reply->add_trusted();
    shown->set_id(KeyIdOf(key.public_key()));
    shown->set_public_key(absl::Base64Escape(key.public_key()));
    *shown->mutable_namespaces() = key.namespaces();
    own = false;
  }
  *reply->mutable_revoked() = signatures_->config().revoked();
  return absl::OkStatus();
}

absl::Status AdminService::AnswerWhy(const grpc::CallbackServerContext& context,
                                     const v1::WhyRequest& request, v1::WhyReply* reply) {
  ProgramsInTier tier;
  if (facts_.tier != nullptr) {
    tier.find = [this](const std::string& compile_key) -> absl::StatusOr<v1::RequestRecord> {
      KILN_ASSIGN_OR_RETURN(TierProgram program,
                            ReadTierProgram(*facts_.tier, config_.listen(), compile_key));
      return std::move(program.record);
    };
    tier.each_latest = [this](const ProgramsInTier::Visit& visit) {
      return VisitTierRecords(*facts_.tier, config_.listen(), visit);
    };
  }
  return Explain(*store_, stats_->last_misses.Last(), request, Gone(context), tier, reply);
}

absl::StatusOr<ComparedEntry> AdminService::ReadComparedInTier(absl::string_view field,
                                                               const std::string& compile_key) {
  absl::StatusOr<TierProgram> program = ReadTierProgram(*facts_.tier, config_.listen(), compile_key);
  if (program.ok() && program->variants.empty())
    program = absl::NotFoundError("the shared tier has a refusal of this key, and no program");
  if (!program.ok()) {
    return absl::Status(program.status().code(),
                        absl::StrCat(field, ": not stored here; ", program.status().message()));
  }
  Found found;
  found.manifest = std::move(program->variants.front());
  found.notes = program->record.notes();
  KILN_ASSIGN_OR_RETURN(const auto loops, ReadTierLoops(*facts_.tier, program->ns, found.manifest));
  ComparedEntry compared;
  *compared.shown.mutable_info() = Describe(found);
  const auto read = [&](const v1::ObjectRef& ref) -> absl::StatusOr<std::string> {
    const auto at = loops.find(ref.digest());
    if (at == loops.end()) return absl::NotFoundError("the shared tier lacks it");
    return at->second;
  };
  ShowKernels(found, read, &compared.shown);
  compared.record = std::move(program->record);
  *compared.shown.mutable_manifest() = std::move(found.manifest);
  return compared;
}

absl::StatusOr<ComparedEntry> AdminService::ReadCompared(const grpc::CallbackServerContext& context,
                                                         absl::string_view field, const std::string& hex) {
  const absl::StatusOr<KeyPrefix> prefix = KeyPrefix::Parse(hex);
  if (!prefix.ok())
    return absl::InvalidArgumentError(absl::StrCat(field, ": must be hexadecimal, in lower case"));
  KILN_ASSIGN_OR_RETURN(const ChosenEntries chosen,
                        ChooseEntries(*store_, *prefix, RequestKeys::kElse, kEntriesShownMax, Gone(context)));
  std::vector<EntryId> ids;
  for (const CatalogEntry& entry : chosen.manifests) ids.push_back(entry.id);
  const size_t keys = CompileKeysOf(ids).size();
  if (keys == 0 && prefix->whole() && facts_.tier != nullptr)
    return ReadComparedInTier(field, prefix->bytes());
  if (keys == 0)
    return absl::NotFoundError(absl::StrCat(field, ": no stored program has a key that starts with ", hex));
  if (keys > 1) {
    return absl::FailedPreconditionError(absl::StrCat(field, ": ", keys, " keys start with ", hex,
                                                      "; give more digits of the one that is meant"));
  }
  KILN_ASSIGN_OR_RETURN(Found found, ReadEntry(chosen.manifests.front()));
  ComparedEntry compared;
  *compared.shown.mutable_info() = Describe(found);
  ShowKernels(found, [this](const v1::ObjectRef& ref) { return ReadObject(ref); }, &compared.shown);
  KILN_ASSIGN_OR_RETURN(compared.record, ReadRequestRecord(*store_, found.manifest.compile_key()));
  *compared.shown.mutable_manifest() = std::move(found.manifest);
  return compared;
}

absl::Status AdminService::AnswerDiff(const grpc::CallbackServerContext& context,
                                      const v1::DiffRequest& request, v1::DiffReply* reply) {
  KILN_ASSIGN_OR_RETURN(const ComparedEntry a, ReadCompared(context, "a", request.a()));
  KILN_ASSIGN_OR_RETURN(const ComparedEntry b, ReadCompared(context, "b", request.b()));
  CompareEntries(a, b, reply);
  return absl::OkStatus();
}

absl::Status AdminService::AnswerDrain(const grpc::CallbackServerContext&, const v1::DrainRequest& request,
                                       v1::DrainReply* reply) {
  const bool drained = !request.undo();
  if (coordinator_->load().drained != drained) {
    spdlog::info(drained ? "drained: takes no new compiles" : "takes compiles again");
    coordinator_->SetDrained(drained);
  }
  const Coordinator::Load load = coordinator_->load();
  reply->set_drained(load.drained);
  reply->set_flights(load.flights);
  return absl::OkStatus();
}

absl::Status AdminService::AnswerTenants(const grpc::CallbackServerContext&, const v1::TenantsRequest&,
                                         v1::TenantsReply* reply) {
  std::map<std::string, v1::TenantInfo> rows;
  for (const v1::TenantConfig& tenant : config_.listen().tenants()) {
    v1::TenantInfo& row = TenantRow(tenant.name(), &rows);
    row.set_configured(true);
    *row.mutable_uids() = tenant.uids();
    row.set_compile_seconds_per_hour(tenant.compile_seconds_per_hour());
  }
  for (const auto& [name, load] : coordinator_->Tenants()) {
    v1::TenantInfo& row = TenantRow(name, &rows);
    row.set_waiting(load.waiting);
    row.set_queued(load.queued);
    row.set_running(load.running);
    row.set_graphs_bytes(load.graphs_bytes);
    row.set_compile_seconds_last_hour(load.seconds_last_hour);
  }
  for (const UseTable::Row& use : stats_->uses.Rows()) {
    if (use.several && use.tenant.empty()) continue;  // of tenants that went
    v1::TenantInfo& row = TenantRow(use.tenant, &rows);
    row.set_hits(row.hits() + use.use.hits);
    row.set_compiles(row.compiles() + use.use.compiles);
  }
  for (const auto& [name, count] : facts_.connections()) {
    reply->set_connections(reply->connections() + count);
    if (const auto row = rows.find(name); row != rows.end() && row->second.configured())
      row->second.set_connections(count);
  }
  for (auto& [name, row] : rows) *reply->add_tenants() = std::move(row);
  return absl::OkStatus();
}

}  // namespace kiln
