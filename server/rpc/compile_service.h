// The Compiler service (proto/kiln/v1/compile.proto): checks what comes over the wire, turns absl
// statuses into gRPC's, and leaves every decision to the coordinator.
//
// A graph is uploaded as one zstd frame in chunks; it is decompressed up to the size that its header
// gave (itself bounded), hashed, and compared with the digest in the key. It is never parsed here.
// What people are told of a graph (GraphNotes) is brought within limits before it is kept.
// A caller whose key is already compiled or being compiled is answered without reading its chunks.
//
// A client that is silent when it has to send or take something for longer than admission.silent_seconds_max
// is cut off (CANCELLED).
//
// Thread-safe (gRPC calls it from many threads, each blocked for the length of its call).
#pragma once

#include <chrono>
#include <string>

#include "kiln/v1/compile.grpc.pb.h"
#include "kiln/v1/config.pb.h"
#include "server/flight/coordinator.h"
#include "server/observe/stats.h"
#include "server/rpc/silence_watch.h"

namespace kiln {

inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr size_t kNamespaceBytesMax = 256;
inline constexpr size_t kHintsMax = 65'536;
inline constexpr size_t kSectionBytesMax = 64u << 10;  // of RequestSections, but facts
inline constexpr size_t kFactsBytesMax = 2u << 20;
inline constexpr size_t kFetchDigestsMax = 65'536;

class CompileService final : public v1::Compiler::Service {
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
  grpc::Status Lookup(grpc::ServerContext* context, const v1::LookupRequest* request,
                      v1::LookupReply* reply) override;
  grpc::Status Compile(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::CompileEvent, v1::CompileRequest>* stream) override;
  grpc::Status Attach(grpc::ServerContext* context, const v1::AttachRequest* request,
                      grpc::ServerWriter<v1::CompileEvent>* writer) override;
  grpc::Status FetchObjects(grpc::ServerContext* context, const v1::FetchObjectsRequest* request,
                            grpc::ServerWriter<v1::ObjectChunk>* writer) override;
  grpc::Status ReportUse(grpc::ServerContext* context, const v1::ReportUseRequest* request,
                         v1::ReportUseReply* reply) override;

 private:
  absl::StatusOr<std::string> ReadGraph(
      const v1::CompileHeader& header, grpc::ServerContext& context,
      grpc::ServerReaderWriter<v1::CompileEvent, v1::CompileRequest>* stream);
  template <typename Stream>
  Caller MakeCaller(const std::string& ns, const v1::Hints& hints, grpc::ServerContext* context,
                    Stream* stream);

  const uint64_t graph_bytes_max_;
  SilenceWatch silence_;
  const WorkerPool* const pool_;
  Coordinator* const coordinator_;
  Stats* const stats_;
};

// Same numbers, same meaning.
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace kiln
