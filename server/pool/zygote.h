// The process that starts workers. It is forked from kilnd before kilnd has any thread, so every
// worker comes from a clean single-threaded parent, out of a binary that was opened once: replacing
// the file on disk never mixes two compilers in one daemon.
//
// It makes their namespaces before the first of them (compiler/worker/namespaces.h). Their standard input
// reads nothing; what they write becomes lines of kilnd's log (worker_output.h).
//
// The zygote is the workers' parent: a pid stays valid until `Reap`, so a kill never hits a stranger. It
// waits for no process: one that does not die of SIGKILL (its disk or its driver does not answer) keeps its
// pid until it does, and others are started and ended meanwhile. When kilnd ends, the zygote sees the end of
// its socket and exits, and the kernel kills the workers with it. Threads: all but `Fork` may be called from
// any.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/pool/worker_output.h"

namespace kiln {

class Zygote {
 public:
  struct Program {
    std::string binary;             // kiln-worker or kiln-tuner
    std::vector<std::string> args;  // after its name and "--fd=3", the frame socket
    bool gpu = false;               // kiln-tuner: see SandboxOptions
  };
  // Must be called before the process has a second thread.
  static absl::StatusOr<std::unique_ptr<Zygote>> Fork(const Program& program);
  ~Zygote();
  Zygote(const Zygote&) = delete;
  Zygote& operator=(const Zygote&) = delete;

  struct Worker {
    pid_t pid = -1;
    int fd = -1;  // ours of the frame socket; the caller owns it
  };
  absl::StatusOr<Worker> Spawn();

  // Kills the worker if it still runs and returns its wait status (see wait(2)). DEADLINE_EXCEEDED where it
  // has not died after kReapLimit: then the zygote goes on waiting for it.
  static constexpr absl::Duration kReapLimit = absl::Seconds(5);
  absl::StatusOr<int> Reap(pid_t pid);

  // False once it has ended, and all its workers with it: for good.
  bool Lives() const;

 private:
  struct Message {
    int32_t kind = 0;
    int32_t pid = 0;
    int32_t status = 0;
    int32_t lives = 0;  // killed, and not dead yet
  };
  Zygote(int fd, pid_t pid, int output) : fd_(fd), pid_(pid), output_(output) {}
  absl::StatusOr<Message> Ask(Message request, int pass_fd);
  [[noreturn]] static void Serve(int fd, int binary, const Program& program);

  absl::Mutex mutex_;
  const int fd_;
  const pid_t pid_;
  WorkerOutput output_;
};

// "signal 11" or "exit code 3".
std::string DescribeWaitStatus(int status);

}  // namespace kiln
