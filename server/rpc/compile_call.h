// One Compile or Attach in flight, as callbacks: it holds a stream and no thread.
//
// A graph is uploaded as one zstd frame in chunks, and read only when the flight table asks for it: a caller
// whose key is stored or in flight is answered without. It is decompressed up to the size that its header
// gave (itself bounded), hashed, and compared with the digest in the key, on a thread of the coordinator's;
// it is never parsed here. Once nobody can need it, what still comes is thrown away, so that the client, who
// may send all before it reads, goes on. What people are told of a graph (GraphNotes) is brought within
// limits before it is kept.
//
// gRPC owns a call: it deletes itself when all is over.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/grpcpp.h"
#include "kiln/v1/compile.grpc.pb.h"
#include "server/auth/identities.h"
#include "server/flight/coordinator.h"
#include "server/observe/stats.h"
#include "server/rpc/flight_stream.h"
#include "server/rpc/silence_watch.h"

namespace kiln {

// Whether the connection of a peer, as gRPC names it, broke, rather than its caller having left. May block a
// moment.
using ConnectionLost = std::function<bool(const std::string& peer)>;

class CompileCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                          public FlightStream::Transport {
 public:
  // All outlive the call. `hops`: daemons that it has passed.
  CompileCall(grpc::CallbackServerContext* context, const Identity* who, std::vector<std::string> hops,
              uint64_t graph_bytes_max, const ConnectionLost& lost, SilenceWatch* silence,
              Coordinator* coordinator, Stats* stats);

  // FlightStream::Transport.
  void Send(const grpc::ByteBuffer* message) override { StartWrite(message); }
  void Finish(const grpc::Status& status) override { ServerBidiReactor::Finish(status); }
  void Read(Subscriber::Upload wanted) override ABSL_LOCKS_EXCLUDED(mutex_);

  // ServerBidiReactor.
  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWriteDone(bool ok) override { stream_->OnSent(ok); }
  void OnCancel() override;
  void OnDone() override;

 private:
  enum class Reading { kHeader, kNothing, kGraph, kWaste };
  void StartReading(Reading what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeHeader(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status TakeChunk() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void HandOver(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  grpc::CallbackServerContext* const context_;
  const Identity* const who_;
  const std::vector<std::string> hops_;
  const uint64_t graph_bytes_max_;
  const std::function<bool()> lost_;
  SilenceWatch* const silence_;
  Coordinator* const coordinator_;
  const CallScope scope_;
  const CallId id_;
  const std::shared_ptr<FlightStream> stream_;  // shared with the flight table

  struct ReadState {
    Reading what = Reading::kNothing;
    bool started = false;
  };
  struct Upload {
    uint64_t graph_bytes = 0;
    std::string graph_digest;
    std::string packed;
  };
  absl::Mutex mutex_;
  ReadState reading_ ABSL_GUARDED_BY(mutex_);
  std::optional<SilenceWatch::Turn> turn_ ABSL_GUARDED_BY(mutex_);  // while the client has to send
  grpc::ByteBuffer message_ ABSL_GUARDED_BY(mutex_);
  Upload upload_ ABSL_GUARDED_BY(mutex_);
};

class AttachCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public FlightStream::Transport {
 public:
  // All but `bytes` outlive the call.
  AttachCall(grpc::CallbackServerContext* context, const Identity& who, grpc::ByteBuffer bytes,
             const ConnectionLost& lost, SilenceWatch* silence, Coordinator* coordinator, Stats* stats);

  void Send(const grpc::ByteBuffer* message) override { StartWrite(message); }
  void Finish(const grpc::Status& status) override { ServerWriteReactor::Finish(status); }
  void Read(Subscriber::Upload) override {}  // it has nothing to upload

  void OnWriteDone(bool ok) override { stream_->OnSent(ok); }
  void OnCancel() override;
  void OnDone() override;

 private:
  const std::function<bool()> lost_;
  Coordinator* const coordinator_;
  const CallScope scope_;
  const CallId id_;
  const std::shared_ptr<FlightStream> stream_;  // shared with the flight table
};

}  // namespace kiln
