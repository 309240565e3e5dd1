#include "server/rpc/compile_service.h"

#include "absl/strings/str_cat.h"
#include "compiler/support/limits.h"
#include "compiler/worker/build_id.h"
#include "server/rpc/compile_call.h"
#include "server/rpc/request_limits.h"
#include "server/rpc/shared_bytes.h"

namespace kiln {
grpc::Status CompileService::Hello(grpc::ServerContext*, const v1::HelloRequest* request,
                                   v1::HelloReply* reply) {
  CallScope scope(stats_);
  if (request->protocol_min() > kProtocolVersion || request->protocol_max() < kProtocolVersion) {
    return ToGrpc(absl::FailedPreconditionError(absl::StrCat("this daemon speaks protocol ", kProtocolVersion,
                                                             ", the client ", request->protocol_min(), " to ",
                                                             request->protocol_max())));
  }
  const v1::WorkerHello& worker = pool_->hello();
  reply->set_protocol(kProtocolVersion);
  reply->set_build_id(OwnBuildId());
  reply->set_compiler_fingerprint(worker.compiler_fingerprint());
  reply->set_program_format(worker.program_format());
  reply->set_graph_format(worker.graph_format());
  reply->set_graph_bytes_max(graph_bytes_max_);
  *reply->mutable_targets() = worker.targets();
  return grpc::Status::OK;
}

grpc::ServerUnaryReactor* CompileService::Lookup(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* bytes, grpc::ByteBuffer* reply) {
  grpc::ServerUnaryReactor* call = context->DefaultReactor();
  v1::LookupRequest request;
  grpc::ByteBuffer message(*bytes);
  absl::Status status;
  if (!grpc::SerializationTraits<v1::LookupRequest>::Deserialize(&message, &request).ok()) {
    status = absl::InvalidArgumentError("the message is no LookupRequest");
  }
  if (status.ok()) status = CheckNamespace(request.namespace_());
  if (status.ok()) status = CheckDigest("request_key", request.request_key());
  if (status.ok()) status = CheckHints(request.hints());
  if (!status.ok()) {
    CallScope scope(stats_);
    call->Finish(ToGrpc(status));
    return call;
  }
  const std::string key = coordinator_->KeyOf(request.namespace_(), request.request_key());
  if (std::shared_ptr<const std::string> hit = coordinator_->Find(key, request.hints()); hit != nullptr) {
    CallScope scope(stats_);
    *reply = SharedBytes(*hit, hit);
    call->Finish(grpc::Status::OK);
    return call;
  }
  // Copied into the answer, which is a std::function.
  auto scope = std::make_shared<CallScope>(stats_);
  coordinator_->Lookup(key, request.hints(), [call, reply, scope](std::shared_ptr<const std::string> answer) {
    *reply = SharedBytes(*answer, answer);
    call->Finish(grpc::Status::OK);
  });
  return call;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* CompileService::Compile(
    grpc::CallbackServerContext* context) {
  return new CompileCall(context, graph_bytes_max_, &silence_, coordinator_, stats_);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* CompileService::Attach(grpc::CallbackServerContext* context,
                                                                   const grpc::ByteBuffer* bytes) {
  return new AttachCall(context, *bytes, &silence_, coordinator_, stats_);
}

grpc::Status CompileService::FetchObjects(grpc::ServerContext* context,
                                          const v1::FetchObjectsRequest* request,
                                          grpc::ServerWriter<v1::ObjectChunk>* writer) {
  CallScope scope(stats_);
  absl::Status status = CheckDigest("compile_key", request->compile_key());
  if (status.ok()) status = CheckDigest("variant_id", request->variant_id());
  if (status.ok() && request->digests_size() > kFetchDigestsMax) {
    status = absl::InvalidArgumentError(absl::StrCat("digests: more than ", kFetchDigestsMax));
  }
  if (!status.ok()) return ToGrpc(status);
  return ToGrpc(coordinator_->FetchObjects(*request, [&](const std::string& digest, const EntryValue& value) {
    const std::string& packed = *value;
    for (size_t offset = 0; offset < packed.size(); offset += kChunkBytesMax) {
      v1::ObjectChunk chunk;
      if (offset == 0) chunk.set_digest(digest);
      chunk.set_offset(offset);
      chunk.set_data(packed.substr(offset, kChunkBytesMax));
      chunk.set_last(offset + kChunkBytesMax >= packed.size());
      const SilenceWatch::Turn turn(silence_, *context);
      if (!writer->Write(chunk)) return false;
    }
    return true;
  }));
}

grpc::Status CompileService::ReportUse(grpc::ServerContext*, const v1::ReportUseRequest* request,
                                       v1::ReportUseReply*) {
  CallScope scope(stats_);
  absl::Status status = CheckDigest("compile_key", request->compile_key());
  if (status.ok()) status = CheckDigest("variant_id", request->variant_id());
  if (!status.ok()) return ToGrpc(status);
  coordinator_->ReportUse(*request);
  return grpc::Status::OK;
}

}  // namespace kiln
