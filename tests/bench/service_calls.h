// Compiles as many clients make them at once, over few connections and without a thread each, for benchmarks.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/grpcpp.h"
#include "kiln/v1/compile.grpc.pb.h"

namespace kiln {

using BenchClock = std::chrono::steady_clock;

// A header, and the graph as it is sent.
struct PackedRequest {
  v1::CompileHeader header;
  std::string packed;
};
PackedRequest Pack(v1::CompileHeader header, const std::string& graph);

// One a connection, each with a socket of its own.
std::vector<std::unique_ptr<v1::Compiler::Stub>> OpenConnections(const std::string& socket, int count);

// One Compile. It sends all it has at once, as libkiln does, and reads to the end; `ended` is called then, on
// a thread of gRPC's. It lives until then at least.
class BenchCall final : public grpc::ClientBidiReactor<v1::CompileRequest, v1::CompileEvent> {
 public:
  struct Outcome {
    grpc::Status status;
    bool queued = false;        // the service took it
    std::string manifest;       // serialized; empty: none
    std::string failure;        // what the service said of the graph
    BenchClock::time_point at;  // the manifest's, or the end
    // After a refusal: when the service wants to be asked again; negative where it did not say.
    double pushback_seconds = -1;
  };
  // `request` outlives the call.
  BenchCall(v1::Compiler::Stub& stub, const PackedRequest& request, BenchClock::time_point deadline,
            std::function<void(BenchCall*)> ended);

  const Outcome& outcome() const { return outcome_; }  // after the end

  void OnWriteDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  void SendPart();

  const PackedRequest& request_;
  const std::function<void(BenchCall*)> ended_;
  grpc::ClientContext context_;
  v1::CompileRequest part_;
  v1::CompileEvent event_;
  size_t sent_ = 0;
  // gRPC's callbacks of one call's reads are in order, and the end is after all.
  Outcome outcome_;
};

}  // namespace kiln
