#include "server/rpc/bundle_service.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/support/status_macros.h"
#include "server/rpc/bundle_calls.h"
#include "server/rpc/entry_choice.h"
#include "server/rpc/refused_call.h"
#include "server/rpc/request_limits.h"

namespace kiln {

grpc::ServerWriteReactor<v1::BundleChunk>* BundleService::Export(grpc::CallbackServerContext* context,
                                                                 const v1::ExportRequest* request) {
  if (const auto who = gate_.Admit(*context, Rpc::kExport); !who.ok())
    return new RefusedCall<grpc::ServerWriteReactor<v1::BundleChunk>>(who.status());
  return ExportCall::Start(context, *request, this);
}

grpc::ServerReadReactor<v1::ImportRequest>* BundleService::Import(grpc::CallbackServerContext* context,
                                                                  v1::ImportReply* reply) {
  if (const auto who = gate_.Admit(*context, Rpc::kImport); !who.ok())
    return new RefusedCall<grpc::ServerReadReactor<v1::ImportRequest>>(who.status());
  return ImportCall::Start(context, reply, this);
}

// ---- Which programs --------------------------------------------------------------------------

// None where there is no such job.
absl::StatusOr<std::vector<std::string>> BundleService::KeysOfJob(const v1::ExportRequest& request,
                                                                  v1::ExportSummary* summary) const {
  if (request.about_size() != 1) return std::vector<std::string>();
  std::vector<JobKeys::Row> rows = stats_->job_keys.Find(JobOf(request.about(0)));
  if (!request.tenant().empty())
    std::erase_if(rows, [&](const JobKeys::Row& row) { return row.tenant != request.tenant(); });
  if (rows.size() > 1) {
    const auto name = [](std::string* out, const JobKeys::Row& row) { absl::StrAppend(out, row.tenant); };
    return absl::FailedPreconditionError(absl::StrCat("tenant: jobs of several have this name (",
                                                      absl::StrJoin(rows, ", ", name),
                                                      "); say whose is meant (--tenant)"));
  }
  if (rows.empty()) return std::vector<std::string>();
  summary->set_forgotten(rows[0].more);
  return std::move(rows[0].keys);
}

absl::StatusOr<std::vector<EntryId>> BundleService::ManifestsOf(const std::vector<std::string>& compile_keys,
                                                                v1::ExportSummary* summary) const {
  std::vector<EntryId> manifests;
  for (const std::string& key : compile_keys) {
    KILN_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> found,
                          store_->catalog().Scan(EntryKind::kManifest, key));
    for (const CatalogEntry& entry : found) manifests.push_back(entry.id);
    if (found.empty() && !store_->catalog().Find({EntryKind::kFailure, key}).ok())
      summary->set_missing(summary->missing() + 1);
  }
  return manifests;
}

absl::StatusOr<std::unique_ptr<BundleExport>> BundleService::Collect(const v1::ExportRequest& request,
                                                                     const std::function<bool()>& gone,
                                                                     v1::ExportSummary* summary) const {
  if (request.about().empty()) return absl::InvalidArgumentError("about: names neither a job nor keys");
  KILN_ASSIGN_OR_RETURN(const std::vector<std::string> keys, KeysOfJob(request, summary));
  KILN_ASSIGN_OR_RETURN(std::vector<EntryId> manifests, ManifestsOf(keys, summary));
  const std::string job = keys.empty() ? "" : JobOf(request.about(0));
  if (!keys.empty() && manifests.empty()) {
    return absl::NotFoundError(
        "about: nothing is stored of what this job used: it was evicted, removed, or refused");
  }
  for (int i = 0; keys.empty() && i < request.about_size(); ++i) {
    const std::string& prefix = request.about(i);
    const absl::Status nothing = absl::NotFoundError(absl::StrCat(
        "about: no job \"", prefix, "\" has asked for a program since the daemon started (kilnctl stats), ",
        "and no stored program's key starts so (kilnctl ls)"));
    if (!KeyPrefix::Parse(prefix).ok()) return nothing;
    KILN_ASSIGN_OR_RETURN(const ChosenEntries chosen,
                          ChooseOneKey(*store_, prefix, request.every_match(), gone));
    if (chosen.manifests.empty()) return nothing;
    for (const CatalogEntry& entry : chosen.manifests) manifests.push_back(entry.id);
  }
  return BundleExport::Collect(manifests, job, compiler_, signatures_, store_, gone);
}

// ---- Where they go ---------------------------------------------------------------------------

absl::Status BundleService::CheckServed(const std::string& name_space) const {
  KILN_RETURN_IF_ERROR(CheckNamespace(name_space));
  const auto& tenants = config_.listen().tenants();
  const auto serves = [&](const v1::TenantConfig& tenant) {
    return tenant.name() == name_space || absl::c_linear_search(tenant.reads(), name_space);
  };
  if (tenants.empty() || absl::c_any_of(tenants, serves)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "namespace \"", name_space, "\" is no tenant's here, and none reads it (listen.tenants.reads): ",
      "nobody would be served; --into names another one"));
}

BundleImport BundleService::NewImport(const v1::ImportHeader& header, std::function<bool()> gone) const {
  BundleImport::Options options;
  options.into = header.into();
  options.pin = header.pin();
  options.check_namespace = [this](const std::string& name) { return CheckServed(name); };
  options.make_room = [this](const std::string& ns, const std::string& key, const std::string& variant) {
    coordinator_->MakeRoomFor(ns, key, variant);
  };
  options.changed = [this](const std::string& key) { coordinator_->Forget(key); };
  options.gone = std::move(gone);
  options.dangerously_believe = config_.store().dangerously_no_verify();
  return BundleImport(std::move(options), compiler_, signatures_, store_);
}

absl::StatusOr<BundleService::Spool> BundleService::NewSpool(uint64_t bytes) const {
  Spool spool;
  KILN_ASSIGN_OR_RETURN(spool.share, spools_->Take(bytes));
  if (const StoreStatistics facts = store_->statistics(); !facts.writable)
    return absl::FailedPreconditionError(absl::StrCat("the store can't be written: ", facts.message));
  std::string path = config_.store().directory() + "/import-XXXXXX";
  const int descriptor = mkostemp(path.data(), O_CLOEXEC);
  if (descriptor >= 0) unlink(path.c_str());
  spool.file = descriptor < 0 ? nullptr : fdopen(descriptor, "w+");
  if (spool.file != nullptr) return spool;
  const int error = errno;
  if (descriptor >= 0) close(descriptor);
  return absl::ErrnoToStatus(error, "no file for the bundle in the store's directory");
}

}  // namespace kiln
