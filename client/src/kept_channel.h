// The connection to a kilnd on another host, kept from one call to the next, so that the dozens of compiles
// of a training's start are one handshake. It ends `idle` after the last call, with the object, and before
// the process forks: a child makes its own, and gRPC, which does not survive a fork, is not there. A child
// that is forked while a call runs has nothing of it (live_call.h): what is the parent's is left as it is, on
// purpose.
//
// By a unix socket a connection costs a millisecond and lives for one call.
//
// Files of TLS are read for each call; where they have changed, the connection is a new one.
//
// Threads: thread-safe; one of its own while nobody calls. A process that ends has to Close it first, or end
// without running destructors. Limits: one connection.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/src/live_call.h"
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

  // A call's hold on a connection.
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
  // Connected by `deadline`. The caller has a LiveCall. Errors are NewChannel's and Connect's.
  absl::StatusOr<Lease> Take(const std::string& address, const TlsFiles& files, MonotonicTime deadline);
  // Ends what no call has.
  void Close();

 private:
  class Timer;
  friend class ForkGuard;

  absl::StatusOr<std::shared_ptr<grpc::Channel>> Hold(const std::string& address, const TlsFiles& files);
  void Return(std::shared_ptr<grpc::Channel> channel, bool broken);
  void EndIdle();
  void Drop();
  // Around a fork: nothing is kept, and the lock is held.
  void BeforeFork();
  void AfterFork(bool in_child);

  const absl::Duration idle_;
  // Not absl's, which in a child would wake threads that it has not.
  std::mutex mutex_;
  // All by mutex_.
  std::shared_ptr<grpc::Channel> channel_;  // shared with the leases
  std::string address_;
  TlsPems pems_;
  int leases_ = 0;                // of channel_
  std::optional<LiveCall> live_;  // the channel's
  std::unique_ptr<Timer> timer_;  // while nobody has a lease
};

}  // namespace kiln
