// The Compiler service (proto/kiln/v1/compile.proto): asks the gate who calls, checks what comes over the
// wire, turns absl statuses into gRPC's, and leaves every decision to the coordinator.
//
// A client that is silent when it has to send or take something for longer than admission.silent_seconds_max
// is cut off (CANCELLED).
//
// Thread-safe.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cache/signatures.h"
#include "kiln/v1/compile.grpc.pb.h"
#include "kiln/v1/config.pb.h"
#include "server/auth/gate.h"
#include "server/flight/coordinator.h"
#include "server/observe/stats.h"
#include "server/rpc/compile_call.h"
#include "server/rpc/sent_objects.h"
#include "server/rpc/silence_watch.h"
#include "server/schedule/fair_queue.h"
#include "server/upstream/upstream.h"

namespace kiln {

// All are callbacks and hold no thread; those that are large, or many, take and give serialized messages.
using CompilerService = v1::Compiler::WithRawCallbackMethod_Lookup<
    v1::Compiler::WithRawCallbackMethod_Compile<v1::Compiler::WithRawCallbackMethod_Attach<
        v1::Compiler::WithRawCallbackMethod_FetchObjects<v1::Compiler::WithCallbackMethod_Hello<
            v1::Compiler::WithCallbackMethod_ReportUse<v1::Compiler::Service>>>>>>;

class CompileService final : public CompilerService {
 public:
  // `gate`: of the server that the service is registered with. All else but `lost` outlives the service;
  // `upstream` is nullptr where there is none.
  CompileService(const v1::Config& config, const Gate& gate, ConnectionLost lost,
                 const Signatures* signatures, SilenceWatch* silence, SentObjects* sent,
                 const WorkerPool* pool, const Upstream* upstream, Coordinator* coordinator, Stats* stats)
      : gate_(gate),
        lost_(std::move(lost)),
        signatures_(signatures),
        graph_bytes_max_(config.admission().graph_bytes_max()),
        silence_(silence),
        sent_(sent),
        pool_(pool),
        upstream_(upstream),
        coordinator_(coordinator),
        stats_(stats) {}

  grpc::ServerUnaryReactor* Hello(grpc::CallbackServerContext* context, const v1::HelloRequest* request,
                                  v1::HelloReply* reply) override;
  grpc::ServerUnaryReactor* Lookup(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                   grpc::ByteBuffer* reply) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Compile(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Attach(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* bytes) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* FetchObjects(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* bytes) override;
  grpc::ServerUnaryReactor* ReportUse(grpc::CallbackServerContext* context,
                                      const v1::ReportUseRequest* request,
                                      v1::ReportUseReply* reply) override;

 private:
  // For whom a call is that may be made, in a version that both sides speak, and that has not come too far.
  absl::StatusOr<const Identity*> Admit(grpc::CallbackServerContext* context, Rpc rpc) const;
  absl::StatusOr<std::vector<std::string>> Hops(const grpc::CallbackServerContext& context) const;
  void TakeReport(const Caller& caller, const v1::UseReport& report);

  const Gate gate_;
  const ConnectionLost lost_;
  const Signatures* const signatures_;
  const uint64_t graph_bytes_max_;
  SilenceWatch* const silence_;
  SentObjects* const sent_;
  const WorkerPool* const pool_;
  const Upstream* const upstream_;
  Coordinator* const coordinator_;
  Stats* const stats_;
};

}  // namespace kiln
