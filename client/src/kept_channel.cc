#include "client/src/kept_channel.h"

#include <functional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "compiler/channel/channel.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/monotonic_cond_var.h"
#include "compiler/support/status_macros.h"

namespace kiln {

// Calls once, after `pause`, unless it is destroyed before. A sleeping thread that holds nothing.
class KeptChannel::Timer {
 public:
  Timer(absl::Duration pause, std::function<void()> ring)
      : thread_([this, pause, ring = std::move(ring)] {
          const MonotonicTime end = MonotonicAfter(pause);
          {
            absl::MutexLock lock(&mutex_);
            while (!stopped_ && MonotonicNow() < end) changed_.WaitUntil(&mutex_, end);
            if (stopped_) return;
          }
          ring();
        }) {}
  ~Timer() {
    {
      absl::MutexLock lock(&mutex_);
      stopped_ = true;
      changed_.SignalAll();
    }
    thread_.join();
  }

 private:
  absl::Mutex mutex_;
  MonotonicCondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

KeptChannel::KeptChannel(absl::Duration idle) : idle_(idle) {}

KeptChannel::~KeptChannel() { Close(); }

absl::StatusOr<KeptChannel::Lease> KeptChannel::Take(const std::string& address, const TlsFiles& files,
                                                     MonotonicTime deadline) {
  KILN_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, Hold(address, files));
  Lease lease(this, std::move(channel));
  const absl::Status connected = Connect(lease.channel(), address, files, deadline);
  if (connected.ok()) return lease;
  lease.SetBroken();
  return connected;
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> KeptChannel::Hold(const std::string& address,
                                                                 const TlsFiles& files) {
  if (absl::StartsWith(address, "unix:")) {
    return NewChannel(address, files, TlsVariables(), kReplyBytesMax);
  }
  TlsPems pems;
  if (!files.certificate.empty() && !files.key.empty() && !files.authority.empty()) {
    KILN_ASSIGN_OR_RETURN(pems, ReadTlsPems(files, TlsVariables()));
  }
  std::unique_ptr<Timer> timer;  // destroyed without the lock, which it may be waiting for
  absl::MutexLock lock(&mutex_);
  timer = std::move(timer_);
  const bool good = channel_ != nullptr && address_ == address && pems_ == pems &&
                    channel_->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_TRANSIENT_FAILURE;
  if (!good) {
    // Who has a lease of the other goes on with it.
    Drop();
    KILN_ASSIGN_OR_RETURN(channel_, NewChannel(address, files, TlsVariables(), kReplyBytesMax));
    address_ = address;
    pems_ = std::move(pems);
  }
  ++leases_;
  return channel_;
}

void KeptChannel::Drop() {
  channel_ = nullptr;
  leases_ = 0;
}

void KeptChannel::Return(std::shared_ptr<grpc::Channel> channel, bool broken) {
  std::unique_ptr<Timer> timer;
  absl::MutexLock lock(&mutex_);
  if (channel != channel_) return;
  --leases_;
  channel = nullptr;
  if (broken || (leases_ == 0 && idle_ <= absl::ZeroDuration())) {
    Drop();
    return;
  }
  if (leases_ > 0) return;
  timer = std::move(timer_);
  try {
    timer_ = std::make_unique<Timer>(idle_, [this] { EndIdle(); });
  } catch (const std::system_error&) {  // no thread to end it later
    Drop();
  }
}

void KeptChannel::EndIdle() {
  absl::MutexLock lock(&mutex_);
  if (leases_ == 0) Drop();
}

void KeptChannel::Close() {
  std::unique_ptr<Timer> timer;
  absl::MutexLock lock(&mutex_);
  timer = std::move(timer_);
  if (leases_ == 0) Drop();
}

}  // namespace kiln
