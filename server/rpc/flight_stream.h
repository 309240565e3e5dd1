// The sending half of a call that waits for a flight: what the flight table tells, to gRPC, one message at a
// time. A client that reads slowly holds at most one count of each kind, for a later one says all that an
// earlier did.
//
// Shared by the flight table and the call; the call tells when it is done (`Detach`), and is not touched
// after. Thread-safe.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/grpcpp.h"
#include "server/flight/flight_call.h"
#include "server/rpc/silence_watch.h"

namespace kiln {

class FlightStream final : public Subscriber {
 public:
  // The call. Asked under the stream's lock, so it answers by starting operations and nothing else.
  class Transport {
   public:
    virtual ~Transport() = default;
    virtual void Send(const grpc::ByteBuffer* message) = 0;  // which lives until OnSent
    virtual void Finish(const grpc::Status& status) = 0;     // once
    virtual void Read(Upload wanted) = 0;
  };
  // All outlive the call.
  FlightStream(Transport* transport, SilenceWatch* silence, grpc::ServerContextBase* context)
      : silence_(silence), context_(context), transport_(transport) {}

  // Subscriber: what the flight table tells.
  void Event(const FlightEventPtr& event) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Graph(Upload wanted) override ABSL_LOCKS_EXCLUDED(mutex_);
  void End(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mutex_);

  // What gRPC tells. False: the client is gone.
  void OnSent(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  // The client left: what waits is not sent.
  void OnCancel() ABSL_LOCKS_EXCLUDED(mutex_);
  void Detach() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void SendNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  SilenceWatch* const silence_;
  grpc::ServerContextBase* const context_;

  absl::Mutex mutex_;
  Transport* transport_ ABSL_GUARDED_BY(mutex_);  // null once detached
  std::deque<FlightEventPtr> waiting_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer sending_ ABSL_GUARDED_BY(mutex_);
  std::optional<SilenceWatch::Turn> turn_ ABSL_GUARDED_BY(mutex_);  // while a message is being sent
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);         // nothing comes after it
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kiln
