// One Compile at the upstream: the graph goes up under flow control, and its events come back. It holds no
// thread.
//
// It lives until gRPC has ended it, whoever else lets go of it. The listener is called by gRPC's threads, one
// at a time, and `end` is the last call, exactly once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "kiln/v1/compile.grpc.pb.h"
#include "server/upstream/forwarded_end.h"

namespace kiln {

class ForwardedCompile final : private grpc::ClientBidiReactor<v1::CompileRequest, v1::CompileEvent> {
 public:
  using End = ForwardedEnd;
  struct Listener {
    std::function<void(v1::CompileEvent)> progress;
    std::function<void(End)> end;
  };

  // `prepare` sets deadline and metadata.
  static std::shared_ptr<ForwardedCompile> Start(std::shared_ptr<v1::Compiler::Stub> stub,
                                                 const std::function<void(grpc::ClientContext*)>& prepare,
                                                 v1::CompileHeader header,
                                                 std::shared_ptr<const std::string> packed,
                                                 Listener listener);
  // Nobody waits for it any more. Thread-safe.
  void Cancel() { context_.TryCancel(); }

 private:
  ForwardedCompile(std::shared_ptr<v1::Compiler::Stub> stub, std::shared_ptr<const std::string> packed,
                   Listener listener)
      : stub_(std::move(stub)), packed_(std::move(packed)), listener_(std::move(listener)) {}

  void OnWriteDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  const std::shared_ptr<v1::Compiler::Stub> stub_;  // shared with the connection's other calls
  const std::shared_ptr<const std::string> packed_;
  const Listener listener_;
  grpc::ClientContext context_;
  v1::CompileRequest request_;
  size_t sent_ = 0;
  v1::CompileEvent event_;
  int ends_ = 0;
  End end_;
  std::shared_ptr<ForwardedCompile> self_;  // until OnDone
};

// A gRPC status in absl's words, and when to come again, where its trailing metadata says so.
absl::Status FromGrpc(const grpc::Status& status);
std::optional<absl::Duration> ComeAgainOf(const grpc::ClientContext& context);

}  // namespace kiln
