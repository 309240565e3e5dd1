// The Compiler service (proto/kiln/v1/compile.proto): checks what comes over the wire, turns absl
// statuses into gRPC's, and leaves every decision to the coordinator.
//
// A client that is silent when it has to send or take something for longer than admission.silent_seconds_max
// is cut off (CANCELLED).
//
// Thread-safe.
#pragma once

#include <chrono>

#include "kiln/v1/compile.grpc.pb.h"
#include "kiln/v1/config.pb.h"
#include "server/flight/coordinator.h"
#include "server/observe/stats.h"
#include "server/rpc/silence_watch.h"

namespace kiln {

inline constexpr uint32_t kProtocolVersion = 1;

// Calls that wait, or that are many, are callbacks on serialized messages and hold no thread; the others hold
// one.
using CompilerService =
    v1::Compiler::WithRawCallbackMethod_Lookup<v1::Compiler::WithRawCallbackMethod_Compile<
        v1::Compiler::WithRawCallbackMethod_Attach<v1::Compiler::Service>>>;

class CompileService final : public CompilerService {
 public:
  // All outlive the service.
  CompileService(const v1::Config& config, const WorkerPool* pool, Coordinator* coordinator, Stats* stats)
      : graph_bytes_max_(config.admission().graph_bytes_max()),
        silence_(std::chrono::seconds(config.admission().silent_seconds_max())),
        pool_(pool),
        coordinator_(coordinator),
        stats_(stats) {}

  grpc::Status Hello(grpc::ServerContext* context, const v1::HelloRequest* request,
                     v1::HelloReply* reply) override;
  grpc::ServerUnaryReactor* Lookup(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                   grpc::ByteBuffer* reply) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Compile(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Attach(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* bytes) override;
  grpc::Status FetchObjects(grpc::ServerContext* context, const v1::FetchObjectsRequest* request,
                            grpc::ServerWriter<v1::ObjectChunk>* writer) override;
  grpc::Status ReportUse(grpc::ServerContext* context, const v1::ReportUseRequest* request,
                         v1::ReportUseReply* reply) override;

 private:
  const uint64_t graph_bytes_max_;
  SilenceWatch silence_;
  const WorkerPool* const pool_;
  Coordinator* const coordinator_;
  Stats* const stats_;
};

}  // namespace kiln
