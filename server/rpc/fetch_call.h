// One FetchObjects in flight, as callbacks. Objects are read one at a time on a thread of the coordinator's,
// and sent in chunks that point into them, the next when the last was taken: a slow client holds one object,
// which its tenant's other calls share (sent_objects.h). Where there is no room for the next, the call ends,
// whatever was sent: RESOURCE_EXHAUSTED, and when to come again for the rest.
//
// gRPC holds a call until it is done, and who reads for it as long as he does: the answer that ends it comes
// from another thread than the end.
//
// That there is no such variant is told when kNotFoundAfter, or a multiple of it, has passed since the call
// came: another namespace's, which is read and found to be so, takes longer than one that never was, and who
// guesses is not to see it. The call holds no thread meanwhile.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "compiler/support/monotonic_time.h"
#include "grpcpp/alarm.h"
#include "grpcpp/grpcpp.h"
#include "kiln/v1/compile.grpc.pb.h"
#include "server/auth/identities.h"
#include "server/flight/coordinator.h"
#include "server/observe/stats.h"
#include "server/rpc/sent_objects.h"
#include "server/rpc/silence_watch.h"

namespace kiln {

inline constexpr absl::Duration kNotFoundAfter = absl::Milliseconds(10);

class FetchCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  // All but `bytes` outlive the call.
  static FetchCall* Start(grpc::CallbackServerContext* context, const Identity& who,
                          const grpc::ByteBuffer& bytes, SilenceWatch* silence, SentObjects* sent,
                          Coordinator* coordinator, Stats* stats);

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone() override { const std::shared_ptr<FetchCall> last = std::move(self_); }

 private:
  FetchCall(grpc::CallbackServerContext* context, SilenceWatch* silence, SentObjects* sent,
            Coordinator* coordinator, Stats* stats)
      : context_(context), silence_(silence), objects_(sent), coordinator_(coordinator), scope_(stats) {}
  void Begin(const Identity& who, grpc::ByteBuffer bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Each on its own turn: one thread at a time, and the lock orders them.
  void ReadNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadOne() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<EntryValue> Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendChunk() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RefuseLater(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(const absl::Status& status);

  grpc::CallbackServerContext* const context_;
  SilenceWatch* const silence_;
  SentObjects* const objects_;
  Coordinator* const coordinator_;
  const CallScope scope_;
  const MonotonicTime came_ = MonotonicNow();
  v1::FetchObjectsRequest request_;  // const after Begin
  std::shared_ptr<FetchCall> self_;  // gRPC's hold

  absl::Mutex mutex_;
  SentObjects::Share kept_ ABSL_GUARDED_BY(mutex_);  // for the request
  std::optional<std::vector<uint64_t>> packed_bytes_
      ABSL_GUARDED_BY(mutex_);  // by digest; once it is checked
  struct Object {
    int next = 0;       // of the request's digests
    EntryValue packed;  // of the one before
    size_t sent = 0;    // bytes of it
  };
  Object object_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer sending_ ABSL_GUARDED_BY(mutex_);
  std::optional<SilenceWatch::Turn> turn_ ABSL_GUARDED_BY(mutex_);
  grpc::Alarm refusal_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kiln
