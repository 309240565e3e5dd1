#include "server/pool/worker_output.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <string>

#include "absl/strings/string_view.h"
#include "compiler/support/monotonic_time.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"
#include "server/server_limits.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

// At most so many a second; then it says how many were not said.
class BoundedLog {
 public:
  void Say(absl::string_view line) {
    if (line.empty()) return;
    const MonotonicTime now = MonotonicNow();
    if (now >= next_second_) {
      if (left_out_ > 0) spdlog::warn("{} more lines of workers are left out", left_out_);
      next_second_ = now + std::chrono::seconds(1);
      said_ = left_out_ = 0;
    }
    if (said_ == kWorkerLinesMax) {
      ++left_out_;
    } else {
      ++said_;
      spdlog::warn("a worker says: {}", std::string(line));
    }
  }

 private:
  MonotonicTime next_second_;
  int said_ = 0, left_out_ = 0;
};

}  // namespace

WorkerOutput::WorkerOutput(int fd) : fd_(fd), stop_(eventfd(0, EFD_CLOEXEC)) {}

WorkerOutput::~WorkerOutput() {
  eventfd_write(stop_, 1);
  {
    absl::MutexLock lock(&mutex_);
    if (thread_.joinable()) thread_.join();
  }
  close(stop_);
  close(fd_);
}

absl::Status WorkerOutput::Start() {
  absl::MutexLock lock(&mutex_);
  if (thread_.joinable()) return absl::OkStatus();
  KILN_ASSIGN_OR_RETURN(thread_, StartThread([this] { Run(); }));
  return absl::OkStatus();
}

void WorkerOutput::Run() {
  BoundedLog log;
  std::string text;
  while (true) {
    pollfd entries[] = {{fd_, POLLIN, 0}, {stop_, POLLIN, 0}};
    if (poll(entries, 2, -1) < 0 && errno != EINTR) return;
    char block[kWorkerLineBytesMax];
    const ssize_t got = read(fd_, block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN && entries[1].revents == 0) continue;
    text.append(block, got > 0 ? static_cast<size_t>(got) : 0);
    size_t begin = 0;
    for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      log.Say(absl::string_view(text).substr(begin, end - begin));
    }
    text.erase(0, begin);
    if (got > 0 && text.size() < kWorkerLineBytesMax) continue;
    log.Say(text);
    text.clear();
    if (got <= 0) return;
  }
}

}  // namespace kiln
