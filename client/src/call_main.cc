// kiln-call: makes calls of libkiln for the process that started it (call_program.h), which is at the other
// end of its standard input.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/memory/memory.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/src/call_messages.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/message_channel.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"
#include "kiln/run_count.h"

namespace kiln {
namespace {

constexpr int kExitUsage = 2;
constexpr int kFd = 0;
constexpr absl::Duration kCancelHeard = absl::Seconds(1);

// Cancels the call that runs when the other end has gone, from a thread of its own.
class Hangup {
 public:
  static absl::StatusOr<std::unique_ptr<Hangup>> Watch(int fd) {
    auto hangup = absl::WrapUnique(new Hangup(fd));
    KILN_ASSIGN_OR_RETURN(hangup->thread_, StartThread([watch = hangup.get()] { watch->Wait(); }));
    return hangup;
  }
  ~Hangup() {
    shutdown(fd_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }
  // Of the call that runs; null: none.
  void Cancels(Cancellation* call) {
    absl::MutexLock lock(&mutex_);
    call_ = call;
    if (gone_ && call_ != nullptr) call_->Cancel();
  }

 private:
  explicit Hangup(int fd) : fd_(fd) {}
  void Wait() {
    pollfd entry{fd_, POLLRDHUP, 0};
    while (poll(&entry, 1, -1) < 0) {
    }
    absl::MutexLock lock(&mutex_);
    gone_ = true;
    if (call_ != nullptr) call_->Cancel();
  }

  const int fd_;
  absl::Mutex mutex_;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
  Cancellation* call_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;  // last: it uses all of the above
};

class CallServer {
 public:
  CallServer() : channel_(kFd, kFrameBytesMax) {}

  // Until the other end has gone, or has been silent for long: OK.
  absl::Status Run() {
    const absl::Status ended = Serve();
    return absl::IsUnavailable(ended) || absl::IsDeadlineExceeded(ended) ? absl::OkStatus() : ended;
  }

 private:
  absl::Status Serve() {
    v1::CallRequest request;
    KILN_RETURN_IF_ERROR(channel_.Read(&request, {MonotonicAfter(absl::Minutes(1)), nullptr}));
    const absl::StatusOr<ClientOptions> options = FromMessage(request.options());
    const absl::StatusOr<std::unique_ptr<Hangup>> hangup = Hangup::Watch(kFd);
    const bool good = options.ok() && hangup.ok();
    const std::unique_ptr<Client> client = good ? NewClient(*options) : nullptr;
    while (true) {
      // The first comes at once, however short the time is.
      const absl::Duration idle = absl::Seconds(good ? options->idle_seconds : 0);
      const MonotonicTime end = MonotonicAfter(std::max(idle, absl::Seconds(1)));
      KILN_RETURN_IF_ERROR(channel_.Read(&request, {end, nullptr}));
      if (!good) return Send(options.ok() ? hangup.status() : options.status(), nullptr);
      KILN_RETURN_IF_ERROR(Answer(*client, std::move(request), **hangup));
    }
  }

  absl::Status Answer(Client& client, v1::CallRequest request, Hangup& hangup) {
    CountRun(request.runs());
    if (request.has_report()) {
      client.ReportUse(absl::Seconds(request.report().limit_seconds()));
      return Send(absl::OkStatus(), nullptr);
    }
    const bool compile = request.get().compile();
    const CompileRequestInput input = FromMessage(std::move(*request.mutable_get()));
    Cancellation cancellation;
    hangup.Cancels(&cancellation);
    const absl::StatusOr<CompiledArtifact> got = client.Get(input, compile, &cancellation);
    hangup.Cancels(nullptr);
    // The service hears of it while the connection is there; else it would wait for a caller that it has
    // lost.
    if (cancellation.cancelled()) absl::SleepFor(kCancelHeard);
    if (!got.ok()) return Send(got.status(), nullptr);
    const absl::Status parts = SendParts(*got);
    return absl::IsResourceExhausted(parts) ? Send(parts, nullptr) : parts.ok() ? Send(parts, &*got) : parts;
  }

  absl::Status SendParts(const CompiledArtifact& artifact) {
    v1::CallReply reply;
    for (const auto& [digest, contents] : artifact.objects) {
      reply.mutable_object()->set_digest(digest);
      reply.mutable_object()->set_contents(*contents);
      KILN_RETURN_IF_ERROR(channel_.Write(reply, Patience()));
    }
    for (const v1::DebugFile& file : artifact.debug_files) {
      *reply.mutable_debug_file() = file;
      KILN_RETURN_IF_ERROR(channel_.Write(reply, Patience()));
    }
    return absl::OkStatus();
  }

  // The end of an answer.
  absl::Status Send(const absl::Status& status, const CompiledArtifact* artifact) {
    v1::CallReply reply;
    *reply.mutable_end() = ToMessage(status);
    reply.mutable_end()->set_runs(TakeRuns());
    if (artifact != nullptr) *reply.mutable_end()->mutable_artifact() = ToMessage(*artifact);
    return channel_.Write(reply, Patience());
  }

  // Whoever has the other end by memory alone takes nothing.
  static MessageWait Patience() { return {MonotonicAfter(absl::Minutes(1)), nullptr}; }

  MessageChannel channel_;
};

int Main(int argc) {
  int kind = 0;
  socklen_t size = sizeof kind;
  if (argc > 1 || getsockopt(kFd, SOL_SOCKET, SO_TYPE, &kind, &size) != 0 || kind != SOCK_STREAM) {
    std::cerr << "kiln-call: started by kiln in a process that was forked, not by hand\n";
    return kExitUsage;
  }
  const absl::Status status = CallServer().Run();
  if (status.ok()) return 0;
  std::cerr << "kiln-call: " << status.message() << "\n";
  return 1;
}

}  // namespace
}  // namespace kiln

int main(int argc, char**) { return kiln::Main(argc); }
