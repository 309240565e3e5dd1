// The connection to a kilnd on another host, kept from one call to the next, so that the dozens of compiles
// of a training's start are one handshake. It closes `idle` after the last call, or with the object. A forked
// child never touches it (forked_client.h).
//
// By a unix socket a connection costs a millisecond and lives for one call.
//
// Files of TLS are read for each call; where they have changed, the connection is a new one.
//
// Threads: thread-safe; one of its own while nobody calls. A process that ends has to Close it first, or end
// without running destructors. Limits: one connection.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "compiler/support/monotonic_time.h"
#include "compiler/support/tls_files.h"
#include "grpcpp/grpcpp.h"

namespace kiln {

class KeptChannel {
 public:
  static constexpr absl::Duration kIdle = absl::Seconds(10);

  explicit KeptChannel(absl::Duration idle = kIdle);
  // After the last lease.
  ~KeptChannel();
  KeptChannel(const KeptChannel&) = delete;
  KeptChannel& operator=(const KeptChannel&) = delete;

  // A call's use of the connection, which stays open meanwhile.
  class Lease {
   public:
    Lease(KeptChannel* keeper, std::shared_ptr<grpc::Channel> channel)
        : keeper_(keeper), channel_(std::move(channel)) {}
    Lease(Lease&& other) noexcept = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (channel_ != nullptr) keeper_->Return(std::move(channel_), broken_);
    }
    const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
    // The next call has another.
    void SetBroken() { broken_ = true; }

   private:
    KeptChannel* const keeper_;
    std::shared_ptr<grpc::Channel> channel_;  // null once moved from
    bool broken_ = false;
  };
  // Connected by `deadline`. Errors are NewChannel's and Connect's.
  absl::StatusOr<Lease> Take(const std::string& address, const TlsFiles& files, MonotonicTime deadline);
  // Ends what no call has.
  void Close();

 private:
  class Timer;

  absl::StatusOr<std::shared_ptr<grpc::Channel>> Hold(const std::string& address, const TlsFiles& files);
  void Return(std::shared_ptr<grpc::Channel> channel, bool broken);
  void EndIdle();
  void Drop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const absl::Duration idle_;
  absl::Mutex mutex_;
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mutex_);  // shared with the leases
  std::string address_ ABSL_GUARDED_BY(mutex_);
  TlsPems pems_ ABSL_GUARDED_BY(mutex_);
  int leases_ ABSL_GUARDED_BY(mutex_) = 0;                // of channel_
  std::unique_ptr<Timer> timer_ ABSL_GUARDED_BY(mutex_);  // while nobody has a lease
};

}  // namespace kiln
