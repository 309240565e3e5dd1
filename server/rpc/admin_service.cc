#include "server/rpc/admin_service.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "compiler/graph/caller_notes.h"
#include "compiler/ir/print.h"
#include "compiler/support/digest.h"
#include "compiler/support/limits.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "compiler/support/zstd.h"
#include "compiler/worker/build_id.h"
#include "kiln/v1/record.pb.h"
#include "server/build/artifact.h"
#include "server/rpc/request_limits.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr size_t kEntriesShownMax = 100'000;
constexpr size_t kShowMax = 64;
constexpr uint64_t kListingBytesMax = 64u << 20;

uint64_t PackedBytes(const v1::Manifest& manifest) {
  uint64_t bytes = manifest.ByteSizeLong();
  for (const v1::ManifestKernel& kernel : manifest.kernels()) {
    bytes += kernel.object().packed_size() + kernel.loop_ir().packed_size();
  }
  return bytes;
}

bool IsHexPrefix(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// The kind of the graph is in no manifest; the client's title ends with it.
v1::GraphKind KindOf(const v1::GraphNotes& notes) {
  if (absl::EndsWith(notes.title(), "backward")) return v1::BACKWARD;
  if (absl::EndsWith(notes.title(), "forward")) return v1::FORWARD;
  return absl::EndsWith(notes.title(), "inference") ? v1::INFERENCE : v1::GRAPH_UNSPECIFIED;
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

absl::StatusOr<std::vector<AdminService::Found>> AdminService::Find(const std::string& hex, size_t limit) {
  if (!IsHexPrefix(hex)) return absl::InvalidArgumentError("key_prefix: must be hexadecimal, in lower case");
  KILN_ASSIGN_OR_RETURN(std::vector<CatalogEntry> entries, store_->catalog().Scan(EntryKind::kManifest, ""));
  std::vector<Found> matches;
  for (const CatalogEntry& entry : entries) {
    // The entry's key is CompileKey and VariantId; only a RequestKey needs the manifest.
    absl::StatusOr<Found> found = ReadEntry(entry);
    if (!found.ok()) {
      spdlog::warn("read an entry: {}", found.status().ToString());
      continue;
    }
    const bool match = absl::StartsWith(ToHex(found->manifest.compile_key()), hex) ||
                       absl::StartsWith(ToHex(found->manifest.request_key()), hex) ||
                       absl::StartsWith(ToHex(found->manifest.variant_id()), hex);
    if (!match) continue;
    matches.push_back(*std::move(found));
    if (matches.size() >= limit) break;
  }
  return matches;
}

absl::Status AdminService::AnswerStatus(const grpc::CallbackServerContext&, const v1::StatusRequest&,
                                        v1::StatusReply* reply) {
  reply->set_version(KILN_VERSION);
  reply->set_build_id(OwnBuildId());
  reply->set_compiler_fingerprint(pool_->hello().compiler_fingerprint());
  reply->set_pid(getpid());
  reply->set_started_unix_seconds(facts_.started_unix_seconds);
  {
    absl::MutexLock lock(&mutex_);
    reply->set_address(address_);
  }
  reply->set_store_directory(config_.store().directory());
  reply->set_workers(pool_->size());
  reply->set_workers_busy(pool_->busy());
  const Coordinator::Load load = coordinator_->load();
  reply->set_queued(load.queued);
  reply->set_running(load.running);
  reply->set_draining(facts_.draining->load());
  const StoreStatistics statistics = store_->statistics();
  reply->set_store_writable(statistics.writable);
  reply->set_store_message(statistics.message);
  if (gpus_ == nullptr) return absl::OkStatus();
  for (v1::MeasuringGpu& gpu : gpus_->gpus()) *reply->add_gpus() = std::move(gpu);
  return absl::OkStatus();
}

absl::Status AdminService::AnswerStats(const grpc::CallbackServerContext&, const v1::StatsRequest&,
                                       v1::StatsReply* reply) {
  const StoreStatistics store = store_->statistics();
  reply->set_lookups(stats_->lookups);
  reply->set_hits(stats_->hits);
  reply->set_misses(stats_->misses);
  reply->set_compiles(stats_->compiles);
  reply->set_joined(stats_->joined);
  reply->set_failures(stats_->failures);
  reply->set_entries(store.entries);
  reply->set_bytes(store.bytes_on_disk);
  reply->set_objects(store.objects);
  reply->set_kernels_emitted(stats_->kernels_emitted);
  reply->set_kernels_reused(stats_->kernels_reused);
  reply->set_subjects_measured(stats_->subjects_measured);
  reply->set_subjects_reused(stats_->subjects_reused);
  reply->set_candidates_lost(stats_->candidates_lost);
  reply->set_worker_crashes(stats_->worker_crashes);
  reply->set_worker_timeouts(stats_->worker_timeouts);
  reply->set_quarantined(store.quarantined);
  reply->set_evicted(store.evicted);
  reply->set_scrubbed(store.scrubbed);
  reply->set_fetched_objects(stats_->fetched_objects);
  reply->set_graphs_uploaded(stats_->graphs_uploaded);
  return absl::OkStatus();
}

absl::Status AdminService::AnswerJobs(const grpc::CallbackServerContext&, const v1::JobsRequest&,
                                      v1::JobsReply* reply) {
  for (v1::JobInfo& job : coordinator_->Jobs()) *reply->add_jobs() = std::move(job);
  return absl::OkStatus();
}

absl::Status AdminService::AnswerList(const grpc::CallbackServerContext&, const v1::ListRequest& request,
                                      v1::ListReply* reply) {
  absl::StatusOr<std::vector<CatalogEntry>> entries = store_->catalog().Scan(EntryKind::kManifest, "");
  if (!entries.ok()) return entries.status();
  reply->set_total(entries->size());
  std::sort(entries->begin(), entries->end(), [](const CatalogEntry& a, const CatalogEntry& b) {
    return std::max(a.created_unix_seconds, a.last_used_unix_seconds) >
           std::max(b.created_unix_seconds, b.last_used_unix_seconds);
  });
  const size_t limit =
      request.limit() == 0 ? kEntriesShownMax : std::min<size_t>(request.limit(), kEntriesShownMax);
  for (const CatalogEntry& entry : *entries) {
    if (reply->entries_size() >= limit) break;
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

void AdminService::ShowKernels(const Found& found, v1::ShownEntry* shown) {
  const BytesMoved bytes(found.manifest.byte_exprs(), found.hints);
  for (const v1::ManifestKernel& kernel : found.manifest.kernels()) {
    v1::ShownKernel* out = shown->add_kernels();
    *out->mutable_kernel() = kernel;
    out->set_bytes_read(bytes.Of(kernel.bytes_read()));
    out->set_bytes_written(bytes.Of(kernel.bytes_written()));
    const v1::KernelNotes notes = WithSources(kernel.notes(), found.notes.source_lines());
    *out->mutable_sources() = notes.sources();
    if (absl::StatusOr<std::string> raw = ReadObject(kernel.loop_ir()); raw.ok()) {
      v1::Kernel loops;
      if (loops.ParseFromString(*raw)) out->set_loop_ir(PrintKernel(loops, notes));
    } else {
      out->set_loop_ir(absl::StrCat("(", raw.status().message(), ")"));
    }
  }
}

void AdminService::AddListings(const grpc::CallbackServerContext& context, const v1::Target& target,
                               v1::ShownEntry* shown) {
  std::vector<WorkerResult> results(shown->kernels_size());
  absl::BlockingCounter left(shown->kernels_size());
  for (int i = 0; i < shown->kernels_size(); ++i) {
    const v1::ManifestKernel& kernel = shown->kernels(i).kernel();
    absl::StatusOr<std::string> loops = ReadObject(kernel.loop_ir());
    if (!loops.ok()) {
      results[i].status = loops.status();
      left.DecrementCount();
      continue;
    }
    WorkerTask task;
    task.caller.job = "kilnctl";
    task.caller.work_class = Caller::Class::kBackground;
    v1::EmitRequest* request = task.request.mutable_emit();
    request->set_kernel(*std::move(loops));
    *request->mutable_target() = target;
    *request->mutable_notes() = kernel.notes();
    *request->mutable_notes()->mutable_sources() = shown->kernels(i).sources();
    request->set_want_listing(true);
    task.time_limit = absl::Seconds(config_.workers().emit_seconds_max());
    task.abandoned = [&context] { return context.IsCancelled(); };
    task.done = [&left, result = &results[i]](WorkerResult finished) {
      *result = std::move(finished);
      left.DecrementCount();
    };
    pool_->Submit(std::move(task));
  }
  left.Wait();
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
}

absl::Status AdminService::AnswerShow(const grpc::CallbackServerContext& context,
                                      const v1::ShowRequest& request, v1::ShowReply* reply) {
  absl::StatusOr<std::vector<Found>> found = Find(request.key_prefix(), kShowMax);
  if (!found.ok()) return found.status();
  for (Found& match : *found) {
    v1::ShownEntry* shown = reply->add_entries();
    *shown->mutable_info() = Describe(match);
    ShowKernels(match, shown);
    if (request.listings()) AddListings(context, match.manifest.target(), shown);
    *shown->mutable_manifest() = std::move(match.manifest);
    *shown->mutable_sections() = std::move(match.sections);
    *shown->mutable_notes() = std::move(match.notes);
    *shown->mutable_hints() = std::move(match.hints);
  }
  if (reply->entries_size() == 0) return absl::NotFoundError("no entry has a key that starts so");
  return absl::OkStatus();
}

absl::Status AdminService::AnswerVerify(const grpc::CallbackServerContext&, const v1::VerifyRequest& request,
                                        v1::VerifyReply* reply) {
  absl::StatusOr<Store::VerifyResult> result = store_->Verify(request.repair());
  if (!result.ok()) return result.status();
  reply->set_entries(result->entries);
  reply->set_objects(result->objects);
  reply->set_corrupt(result->corrupt);
  reply->set_missing(result->missing);
  for (std::string& detail : result->details) reply->add_details(std::move(detail));
  return absl::OkStatus();
}

absl::StatusOr<AdminService::Chosen> AdminService::ChooseAll() {
  Chosen chosen;
  for (EntryKind kind : {EntryKind::kManifest, EntryKind::kFailure, EntryKind::kKernel, EntryKind::kObject,
                         EntryKind::kMeta}) {
    KILN_ASSIGN_OR_RETURN(std::vector<CatalogEntry> entries, store_->catalog().Scan(kind, ""));
    for (const CatalogEntry& entry : entries) {
      chosen.ids.push_back(entry.id);
      if (kind != EntryKind::kManifest && kind != EntryKind::kFailure) continue;
      chosen.compile_keys.insert(entry.id.key.substr(0, kDigestBytes));
      ++chosen.entries;
    }
  }
  return chosen;
}

// Manifests by any of their keys; failures, which have only a CompileKey (and through their record a
// RequestKey), by those.
absl::StatusOr<AdminService::Chosen> AdminService::ChooseByKey(const std::string& prefix, bool every_match) {
  Chosen chosen;
  const auto choose = [&chosen](const EntryId& id) {
    chosen.ids.push_back(id);
    chosen.compile_keys.insert(id.key.substr(0, kDigestBytes));
    ++chosen.entries;
  };
  KILN_ASSIGN_OR_RETURN(const std::vector<Found> found, Find(prefix, kEntriesShownMax));
  for (const Found& match : found) choose(match.entry.id);
  KILN_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> failures,
                        store_->catalog().Scan(EntryKind::kFailure, ""));
  for (const CatalogEntry& failure : failures) {
    bool match = absl::StartsWith(ToHex(failure.id.key), prefix);
    v1::RequestRecord record;
    const absl::StatusOr<EntryValue> facts = store_->inspection().Get(RequestRecordId(failure.id.key));
    if (facts.ok() && record.ParseFromString(**facts)) {
      match = match || absl::StartsWith(ToHex(record.request_key()), prefix);
    }
    if (match) choose(failure.id);
  }
  if (chosen.compile_keys.size() > 1 && !every_match) {
    return absl::FailedPreconditionError(
        absl::StrCat("key_prefix: ", chosen.compile_keys.size(), " keys start with ", prefix,
                     "; give more digits of the one that is meant, or say every_match (--every-match)"));
  }
  return chosen;
}

absl::Status AdminService::AnswerRemove(const grpc::CallbackServerContext&, const v1::RemoveRequest& request,
                                        v1::RemoveReply* reply) {
  KILN_ASSIGN_OR_RETURN(const Chosen chosen, request.all()
                                                 ? ChooseAll()
                                                 : ChooseByKey(request.key_prefix(), request.every_match()));
  KILN_RETURN_IF_ERROR(store_->artifacts().Delete(chosen.ids));
  if (request.all()) coordinator_->Forget("");
  for (const std::string& key : chosen.compile_keys) coordinator_->Forget(key);
  reply->set_removed(chosen.entries);
  return absl::OkStatus();
}

absl::Status AdminService::AnswerPin(const grpc::CallbackServerContext&, const v1::PinRequest& request,
                                     v1::PinReply* reply) {
  KILN_ASSIGN_OR_RETURN(const Chosen chosen, ChooseByKey(request.key_prefix(), request.every_match()));
  for (const EntryId& id : chosen.ids) {
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

}  // namespace kiln
