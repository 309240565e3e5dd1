// What workers write to standard error, as lines of kilnd's log: words of LLVM's and of the C library's
// before the process ends. Workers may be hostile, so that there is no more than kWorkerLinesMax of them a
// second, and the log escapes and cuts them.
//
// Owns the reading end of their pipe, which does not block. Threads: `Start` from any; the destructor says
// what is left in the pipe and waits for no writer.
#pragma once

#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace kiln {

class WorkerOutput {
 public:
  explicit WorkerOutput(int fd);
  ~WorkerOutput();
  WorkerOutput(const WorkerOutput&) = delete;
  WorkerOutput& operator=(const WorkerOutput&) = delete;

  // The first call starts the thread that reads.
  absl::Status Start() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run();

  const int fd_;
  const int stop_;  // an eventfd
  absl::Mutex mutex_;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kiln
