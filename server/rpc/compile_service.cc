#include "server/rpc/compile_service.h"

#include <algorithm>

#include "compiler/support/status_macros.h"
#include "compiler/worker/build_id.h"
#include "server/rpc/agree_on_protocol.h"
#include "server/rpc/fetch_call.h"
#include "server/rpc/hops.h"
#include "server/rpc/refused_call.h"
#include "server/rpc/request_limits.h"
#include "server/rpc/shared_bytes.h"

namespace kiln {
namespace {

// Where it lies, if it is one slice, as all but large ones are: to read it through gRPC's buffers takes as
// long as to find the hit.
bool Parse(const grpc::ByteBuffer& bytes, v1::LookupRequest* request) {
  grpc::Slice slice;
  if (bytes.TrySingleSlice(&slice).ok())
    return request->ParseFromArray(slice.begin(), static_cast<int>(slice.size()));
  grpc::ByteBuffer message(bytes);
  return grpc::SerializationTraits<v1::LookupRequest>::Deserialize(&message, request).ok();
}

}  // namespace

absl::StatusOr<const Identity*> CompileService::Admit(grpc::CallbackServerContext* context, Rpc rpc) const {
  KILN_ASSIGN_OR_RETURN(const Identity* who, gate_.Admit(*context, rpc));
  KILN_RETURN_IF_ERROR(AgreeOnProtocol(context));
  KILN_RETURN_IF_ERROR(Hops(*context).status());
  return who;
}

absl::StatusOr<std::vector<std::string>> CompileService::Hops(
    const grpc::CallbackServerContext& context) const {
  return HopsOf(context, upstream_ == nullptr ? "" : upstream_->id());
}

grpc::ServerUnaryReactor* CompileService::Hello(grpc::CallbackServerContext* context,
                                                const v1::HelloRequest* request, v1::HelloReply* reply) {
  CallScope scope(stats_);
  grpc::ServerUnaryReactor* call = context->DefaultReactor();
  const absl::StatusOr<const Identity*> who = Admit(context, Rpc::kHello);
  absl::Status status = who.status();
  if (status.ok()) status = CheckProtocol({request->protocol_min(), request->protocol_max()});
  if (!status.ok()) {
    call->Finish(ToGrpc(status));
    return call;
  }
  const v1::WorkerHello& worker = pool_->hello();
  reply->set_protocol(std::min(request->protocol_max(), kProtocol.max));
  reply->set_build_id(OwnBuildId());
  reply->set_compiler_fingerprint(worker.compiler_fingerprint());
  reply->set_program_format(worker.program_format());
  reply->set_graph_format(worker.graph_format());
  reply->set_graph_bytes_max(graph_bytes_max_);
  *reply->mutable_targets() = worker.targets();
  reply->set_tenant((*who)->tenant);
  for (v1::TrustedKey& key : signatures_->Listed((*who)->tenant, (*who)->reads))
    *reply->add_trusted_keys() = std::move(key);
  if (upstream_ != nullptr) {
    for (std::string& id : upstream_->Forwarders()) reply->add_forwarders(std::move(id));
  }
  call->Finish(grpc::Status::OK);
  return call;
}

grpc::ServerUnaryReactor* CompileService::Lookup(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* bytes, grpc::ByteBuffer* reply) {
  grpc::ServerUnaryReactor* call = context->DefaultReactor();
  v1::LookupRequest request;
  const absl::StatusOr<const Identity*> who = Admit(context, Rpc::kLookup);
  absl::Status status = who.status();
  if (status.ok() && !Parse(*bytes, &request))
    status = absl::InvalidArgumentError("the message is no LookupRequest");
  if (status.ok()) status = CheckNamespace(request.namespace_());
  if (status.ok()) status = CheckDigest("request_key", request.request_key());
  if (status.ok()) status = CheckHints(request.hints());
  if (status.ok()) status = CheckUse(request.use());
  if (status.ok()) status = CheckGang(request.gang());
  if (!status.ok()) {
    CallScope scope(stats_);
    call->Finish(ToGrpc(status));
    return call;
  }
  Lookups::Question question;
  Caller& caller = question.caller;
  caller.tenant = NamespaceOf(**who, request.namespace_());
  caller.job = JobOf(request.job());
  question.hops = *Hops(*context);
  caller.forwarded = !question.hops.empty();
  TakeReport(caller, request.use());
  question.request_key = std::move(*request.mutable_request_key());
  question.hints = std::move(*request.mutable_hints());
  question.gang = GangOf(request.gang());
  question.may_compile = (*who)->roles.Meets(RuleOf(Rpc::kCompile).allowed);
  if (auto hit = coordinator_->lookups().Find(question); hit != nullptr) {
    CallScope scope(stats_);
    *reply = SharedBytes(*hit, hit);
    call->Finish(grpc::Status::OK);
    return call;
  }
  // They are kept until the answer is there.
  question.hints.DiscardUnknownFields();
  question.gang.DiscardUnknownFields();
  // Copied into the answer, which is a std::function.
  auto scope = std::make_shared<CallScope>(stats_);
  coordinator_->lookups().Lookup(std::move(question),
                                 [call, reply, scope](std::shared_ptr<const std::string> answer) {
                                   *reply = SharedBytes(*answer, answer);
                                   call->Finish(grpc::Status::OK);
                                 });
  return call;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* CompileService::Compile(
    grpc::CallbackServerContext* context) {
  const absl::StatusOr<const Identity*> who = Admit(context, Rpc::kCompile);
  if (!who.ok()) {
    return new RefusedCall<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>>(who.status());
  }
  return new CompileCall(context, *who, *Hops(*context), graph_bytes_max_, lost_, silence_, coordinator_,
                         stats_);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* CompileService::Attach(grpc::CallbackServerContext* context,
                                                                   const grpc::ByteBuffer* bytes) {
  const absl::StatusOr<const Identity*> who = Admit(context, Rpc::kAttach);
  if (!who.ok()) return new RefusedCall<grpc::ServerWriteReactor<grpc::ByteBuffer>>(who.status());
  return new AttachCall(context, **who, *bytes, lost_, silence_, coordinator_, stats_);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* CompileService::FetchObjects(grpc::CallbackServerContext* context,
                                                                         const grpc::ByteBuffer* bytes) {
  const absl::StatusOr<const Identity*> who = Admit(context, Rpc::kFetchObjects);
  if (!who.ok()) return new RefusedCall<grpc::ServerWriteReactor<grpc::ByteBuffer>>(who.status());
  return FetchCall::Start(context, **who, *bytes, silence_, sent_, coordinator_, stats_);
}

grpc::ServerUnaryReactor* CompileService::ReportUse(grpc::CallbackServerContext* context,
                                                    const v1::ReportUseRequest* request,
                                                    v1::ReportUseReply*) {
  CallScope scope(stats_);
  const absl::StatusOr<const Identity*> who = Admit(context, Rpc::kReportUse);
  absl::Status status = who.status();
  if (status.ok()) status = CheckNamespace(request->namespace_());
  if (status.ok()) status = CheckUse(request->use());
  if (status.ok()) {
    Caller caller;
    caller.tenant = NamespaceOf(**who, request->namespace_());
    caller.job = JobOf(request->job());
    TakeReport(caller, request->use());
  }
  grpc::ServerUnaryReactor* call = context->DefaultReactor();
  call->Finish(ToGrpc(status));
  return call;
}

void CompileService::TakeReport(const Caller& caller, const v1::UseReport& report) {
  if (report.executed() == 0) return;
  Use use;
  use.executed = report.executed();
  stats_->uses.Count(caller.tenant, caller.job, use);
}

}  // namespace kiln
