// One kiln-worker: a process that answers one frame at a time.
//
// Owned by one thread of the pool. After any error of `Call` the process is of no use: its owner asks
// `Stop` how it ended and starts another. A reply that is a WorkerError is an answer, not an error.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "compiler/support/monotonic_time.h"
#include "compiler/worker/frame.h"
#include "kiln/v1/worker.pb.h"
#include "server/pool/zygote.h"

namespace kiln {

class WorkerProcess {
 public:
  // Starts a worker and waits for its hello. `zygote` outlives the process.
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Spawn(Zygote* zygote, MonotonicTime deadline);
  ~WorkerProcess();  // kills it
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  const v1::WorkerHello& hello() const { return hello_; }
  pid_t pid() const { return pid_; }
  uint64_t calls() const { return last_id_; }
  uint64_t ResidentBytes() const;  // 0 where the system does not say

  // False when it has ended, or says something unasked.
  bool Alive() const;

  // Errors as FrameChannel; DATA_LOSS also for an answer to another question.
  absl::StatusOr<v1::Frame> Call(v1::Frame request, const FrameWait& wait);

  struct End {
    std::string text;            // "signal 11"
    bool killed = false;         // by SIGKILL: a person's or the kernel's doing, not the compiler's
    bool out_of_memory = false;  // of its own limit
  };
  // Kills it if it still runs.
  End Stop();

 private:
  WorkerProcess(Zygote* zygote, Zygote::Worker worker)
      : zygote_(zygote), pid_(worker.pid), channel_(std::make_unique<FrameChannel>(worker.fd)) {}

  Zygote* const zygote_;
  pid_t pid_;  // -1 once reaped
  std::unique_ptr<FrameChannel> channel_;
  v1::WorkerHello hello_;
  uint64_t last_id_ = 0;
};

// What a worker says: text of limited length and a code that is an error.
absl::Status StatusOf(const v1::WorkerError& error);

}  // namespace kiln
