// One Export and one Import in flight, as callbacks: what blocks is done on a thread for bundles, a chunk at
// a time, so that a slow client holds none. An import is spooled to a file, and begins when all of it is
// there.
//
// gRPC holds a call until it is done, and who works for it as long as he does.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "cache/bundle/bundle_export.h"
#include "grpcpp/grpcpp.h"
#include "kiln/v1/admin.grpc.pb.h"
#include "server/observe/stats.h"
#include "server/rpc/silence_watch.h"
#include "server/rpc/spool_budget.h"

namespace kiln {

class BundleService;

class ExportCall final : public grpc::ServerWriteReactor<v1::BundleChunk> {
 public:
  // All outlive the call.
  static ExportCall* Start(grpc::CallbackServerContext* context, const v1::ExportRequest& request,
                           const BundleService* service);

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone() override { const std::shared_ptr<ExportCall> last = std::move(self_); }

 private:
  ExportCall(grpc::CallbackServerContext* context, const v1::ExportRequest& request,
             const BundleService* service);
  // Each on its own turn: one thread at a time, and the lock orders them.
  void Go() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Fill() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  grpc::CallbackServerContext* const context_;
  const v1::ExportRequest request_;
  const BundleService* const service_;
  const CallScope scope_;
  std::shared_ptr<ExportCall> self_;  // gRPC's hold

  absl::Mutex mutex_;
  std::unique_ptr<BundleExport> export_ ABSL_GUARDED_BY(mutex_);
  v1::ExportSummary of_job_ ABSL_GUARDED_BY(mutex_);
  std::string piece_ ABSL_GUARDED_BY(mutex_);  // of the file
  size_t sent_ ABSL_GUARDED_BY(mutex_) = 0;    // of it
  v1::BundleChunk chunk_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<SilenceWatch::Turn> turn_ ABSL_GUARDED_BY(mutex_);
};

class ImportCall final : public grpc::ServerReadReactor<v1::ImportRequest> {
 public:
  // All outlive the call.
  static ImportCall* Start(grpc::CallbackServerContext* context, v1::ImportReply* reply,
                           const BundleService* service);
  ~ImportCall() override;

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone() override { const std::shared_ptr<ImportCall> last = std::move(self_); }

 private:
  ImportCall(grpc::CallbackServerContext* context, v1::ImportReply* reply, const BundleService* service);
  void Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Go(bool more) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Take() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Put() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  grpc::CallbackServerContext* const context_;
  v1::ImportReply* const reply_;
  const BundleService* const service_;
  const CallScope scope_;
  std::shared_ptr<ImportCall> self_;  // gRPC's hold

  absl::Mutex mutex_;
  v1::ImportRequest request_ ABSL_GUARDED_BY(mutex_);
  v1::ImportHeader header_ ABSL_GUARDED_BY(mutex_);
  SpoolBudget::Share share_ ABSL_GUARDED_BY(mutex_);
  FILE* spool_ ABSL_GUARDED_BY(mutex_) = nullptr;  // owned; null before the header
  uint64_t taken_ ABSL_GUARDED_BY(mutex_) = 0;     // bytes
  std::optional<SilenceWatch::Turn> turn_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kiln
