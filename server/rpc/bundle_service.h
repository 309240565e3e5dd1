// The Bundles service (proto/kiln/v1/admin.proto), for kilnctl: which programs are meant, and of whom;
// writing and reading the file is cache/bundle's. Whoever falls silent when he has to send or take something
// is cut off. Thread-safe.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/bundle/bundle_compiler.h"
#include "cache/bundle/bundle_export.h"
#include "cache/bundle/bundle_import.h"
#include "cache/signatures.h"
#include "cache/store.h"
#include "kiln/v1/admin.grpc.pb.h"
#include "kiln/v1/config.pb.h"
#include "server/auth/gate.h"
#include "server/flight/coordinator.h"
#include "server/observe/stats.h"
#include "server/rpc/silence_watch.h"
#include "server/rpc/spool_budget.h"
#include "server/schedule/executor.h"

namespace kiln {

class BundleService final : public v1::Bundles::CallbackService {
 public:
  // `gate`: of the server that the service is registered with; `spools`: all services' one. All else outlives
  // the service.
  BundleService(const v1::Config& config, const Gate& gate, BundleCompiler compiler,
                const Signatures* signatures, SilenceWatch* silence, Store* store, Coordinator* coordinator,
                SpoolBudget* spools, Executor* threads, Stats* stats)
      : config_(config),
        gate_(gate),
        compiler_(std::move(compiler)),
        signatures_(signatures),
        silence_(silence),
        store_(store),
        coordinator_(coordinator),
        spools_(spools),
        threads_(threads),
        stats_(stats) {}

  grpc::ServerWriteReactor<v1::BundleChunk>* Export(grpc::CallbackServerContext* context,
                                                    const v1::ExportRequest* request) override;
  grpc::ServerReadReactor<v1::ImportRequest>* Import(grpc::CallbackServerContext* context,
                                                     v1::ImportReply* reply) override;

  // For the calls, on threads of their own.
  // NOT_FOUND, and FAILED_PRECONDITION where it could be several jobs or keys. Sets what the summary says of
  // a job.
  absl::StatusOr<std::unique_ptr<BundleExport>> Collect(const v1::ExportRequest& request,
                                                        const std::function<bool()>& gone,
                                                        v1::ExportSummary* summary) const;
  BundleImport NewImport(const v1::ImportHeader& header, std::function<bool()> gone) const;
  // A file without a name, in the store's directory: room there is what an import needs. RESOURCE_EXHAUSTED
  // where the bundle, or it and those that are being imported, are larger than the store may become.
  struct Spool {
    SpoolBudget::Share share;
    FILE* file = nullptr;  // the caller's
  };
  absl::StatusOr<Spool> NewSpool(uint64_t bytes) const;
  SilenceWatch& silence() const { return *silence_; }
  Executor& threads() const { return *threads_; }
  Stats* stats() const { return stats_; }

 private:
  absl::StatusOr<std::vector<std::string>> KeysOfJob(const v1::ExportRequest& request,
                                                     v1::ExportSummary* summary) const;
  // The manifests of a job's keys.
  absl::StatusOr<std::vector<EntryId>> ManifestsOf(const std::vector<std::string>& compile_keys,
                                                   v1::ExportSummary* summary) const;
  absl::Status CheckServed(const std::string& name_space) const;

  const v1::Config config_;
  const Gate gate_;
  const BundleCompiler compiler_;
  const Signatures* const signatures_;
  SilenceWatch* const silence_;
  Store* const store_;
  Coordinator* const coordinator_;
  SpoolBudget* const spools_;
  Executor* const threads_;
  Stats* const stats_;
};

}  // namespace kiln
