#include "server/rpc/bundle_calls.h"

#include <errno.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/status_macros.h"
#include "server/rpc/bundle_service.h"
#include "server/rpc/request_limits.h"

namespace kiln {

// ---- Export ----------------------------------------------------------------------------------

ExportCall::ExportCall(grpc::CallbackServerContext* context, const v1::ExportRequest& request,
                       const BundleService* service)
    : context_(context), request_(request), service_(service), scope_(service->stats()) {}

ExportCall* ExportCall::Start(grpc::CallbackServerContext* context, const v1::ExportRequest& request,
                              const BundleService* service) {
  const std::shared_ptr<ExportCall> call(new ExportCall(context, request, service));
  call->self_ = call;
  service->threads().Post([call] { call->Go(); });
  return call.get();
}

void ExportCall::Go() {
  absl::MutexLock lock(&mutex_);
  if (const absl::Status status = Fill(); !status.ok()) {
    Finish(ToGrpc(status));
    return;
  }
  turn_.emplace(service_->silence(), *context_);
  StartWrite(&chunk_);
}

absl::Status ExportCall::Fill() {
  const auto gone = [this] { return context_->IsCancelled(); };
  if (gone()) return absl::CancelledError("the caller has gone");
  if (export_ == nullptr) {
    KILN_ASSIGN_OR_RETURN(export_, service_->Collect(request_, gone, &of_job_));
  }
  std::string& data = *chunk_.mutable_data();
  data.clear();
  while (data.size() < kChunkBytesMax) {
    if (sent_ == piece_.size()) {
      KILN_ASSIGN_OR_RETURN(piece_, export_->Next());
      sent_ = 0;
      ended_ = piece_.empty();
      if (ended_) break;
    }
    const size_t bytes = std::min(kChunkBytesMax - data.size(), piece_.size() - sent_);
    data.append(piece_, sent_, bytes);
    sent_ += bytes;
  }
  if (!ended_) return absl::OkStatus();
  *chunk_.mutable_summary() = export_->summary();
  chunk_.mutable_summary()->MergeFrom(of_job_);
  return absl::OkStatus();
}

void ExportCall::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  turn_.reset();
  if (!ok) {
    Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the caller left"));
  } else if (ended_) {
    Finish(grpc::Status::OK);
  } else {
    service_->threads().Post([call = self_] { call->Go(); });
  }
}

// ---- Import ----------------------------------------------------------------------------------

ImportCall::ImportCall(grpc::CallbackServerContext* context, v1::ImportReply* reply,
                       const BundleService* service)
    : context_(context), reply_(reply), service_(service), scope_(service->stats()) {}

ImportCall::~ImportCall() {
  absl::MutexLock lock(&mutex_);
  if (spool_ != nullptr) fclose(spool_);
}

ImportCall* ImportCall::Start(grpc::CallbackServerContext* context, v1::ImportReply* reply,
                              const BundleService* service) {
  const std::shared_ptr<ImportCall> call(new ImportCall(context, reply, service));
  call->self_ = call;
  absl::MutexLock lock(&call->mutex_);
  call->Read();
  return call.get();
}

void ImportCall::Read() {
  turn_.emplace(service_->silence(), *context_);
  StartRead(&request_);
}

void ImportCall::OnReadDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  turn_.reset();
  service_->threads().Post([call = self_, ok] { call->Go(ok); });
}

void ImportCall::Go(bool more) {
  absl::MutexLock lock(&mutex_);
  absl::Status status =
      context_->IsCancelled() ? absl::CancelledError("the caller has gone") : absl::OkStatus();
  if (status.ok()) status = more ? Take() : Put();
  if (status.ok() && more) {
    Read();
  } else {
    // First: who is told may come again at once.
    if (spool_ != nullptr) fclose(std::exchange(spool_, nullptr));
    share_.reset();
    Finish(EndOfCall(status, context_));
  }
}

absl::Status ImportCall::Take() {
  if (spool_ == nullptr) {
    if (!request_.has_header()) return absl::InvalidArgumentError("header: must come first");
    header_ = request_.header();
    KILN_ASSIGN_OR_RETURN(BundleService::Spool spool, service_->NewSpool(header_.bytes()));
    share_ = std::move(spool.share);
    spool_ = spool.file;
    return absl::OkStatus();
  }
  const std::string& chunk = request_.chunk();
  if (!request_.has_chunk()) return absl::InvalidArgumentError("chunk: a second header");
  if (chunk.size() > kChunkBytesMax)
    return absl::InvalidArgumentError(absl::StrCat("chunk: more than ", kChunkBytesMax, " bytes"));
  if (chunk.size() > header_.bytes() - taken_)
    return absl::InvalidArgumentError("chunk: more than header.bytes in all");
  taken_ += chunk.size();
  if (fwrite(chunk.data(), 1, chunk.size(), spool_) == chunk.size()) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "spool the bundle beside the store");
}

absl::Status ImportCall::Put() {
  if (spool_ == nullptr) return absl::InvalidArgumentError("header: must come first");
  if (taken_ != header_.bytes())
    return absl::DataLossError(
        absl::StrCat("the bundle ends after ", taken_, " of ", header_.bytes(), " bytes"));
  if (fflush(spool_) != 0) return absl::ErrnoToStatus(errno, "spool the bundle beside the store");
  BundleImport import = service_->NewImport(header_, [this] { return context_->IsCancelled(); });
  KILN_ASSIGN_OR_RETURN(*reply_, import.Run(spool_));
  return absl::OkStatus();
}

}  // namespace kiln
