// A kiln-call: a program that makes calls of libkiln for the process that started it, which was forked and so
// has no gRPC of its own (grpc_owner.h). It has that process's environment and standard error, and otherwise
// nothing but one end of a socketpair. A child of that process has a copy of the other end: where the process
// is killed, the program lives until the child ends, or its answer is not taken for a minute. It ends when it
// has had no call for ClientOptions::idle_seconds, or the process at the other end has gone; a call that runs
// is then cancelled. It is nobody's child, is in a session of its own, and signals for the process's group do
// not reach it.
//
// Threads: one call at a time. Nothing here uses gRPC.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "compiler/support/message_channel.h"
#include "kiln/client.h"
#include "kiln/v1/call.pb.h"

namespace kiln {

class CallProgram {
 public:
  // FAILED_PRECONDITION, which says what to do, where there is no such program; UNAVAILABLE where none can be
  // started. One that ends at once is found out by the first call.
  static absl::StatusOr<std::unique_ptr<CallProgram>> Start(const ClientOptions& options);
  // Ends the program.
  ~CallProgram();
  CallProgram(const CallProgram&) = delete;
  CallProgram& operator=(const CallProgram&) = delete;

  // As Client::Get, with its errors and their payloads. `runs`: calls of programs that no service was told
  // of.
  absl::StatusOr<CompiledArtifact> Get(const CompileRequestInput& input, bool compile, uint64_t runs,
                                       Cancellation& cancellation);
  // As Client::ReportUse. What has not arrived within `limit` may yet: the program still tells it.
  void ReportUse(uint64_t runs, absl::Duration limit);
  // The last call has had no answer, or no whole one: the program has ended, or there is no telling where it
  // is. No more calls.
  bool gone() const { return gone_; }
  // The last request was written whole: the program may have had it.
  bool asked() const { return asked_; }

 private:
  CallProgram(int fd, const ClientOptions& options);
  absl::Status Ask(const v1::CallRequest& request, MonotonicTime deadline, CompiledArtifact* artifact);

  MessageChannel channel_;
  const absl::Duration call_limit_;
  bool gone_ = false;
  bool asked_ = false;
};

}  // namespace kiln
