// A fixed number of workers and the queue in front of them, which is fair to tenants and their jobs
// (schedule/fair_queue.h). Within a job the program that came first goes first, and its emits before plans.
//
// One thread a worker; it spawns the process, feeds it one task at a time, kills it at the task's
// time limit or when nobody waits any more, and replaces it after a crash, after `jobs_max` tasks, and when a
// task left it with more than `resident_bytes_max`: the memory of a worker belongs to the next task.
// All workers must show the compiler fingerprint of the first; another one stops the pool, for what
// it compiled would be stored under a wrong key.
//
// Thread-safe. The destructor kills the workers; tasks not yet run end with CANCELLED.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kiln/v1/worker.pb.h"
#include "server/observe/stats.h"
#include "server/pool/worker_process.h"
#include "server/pool/zygote.h"
#include "server/schedule/fair_queue.h"

namespace kiln {

struct WorkerResult {
  // OK with a reply; the worker's own refusal with its code; DEADLINE_EXCEEDED after the time limit;
  // FAILED_PRECONDITION when the worker's memory did not suffice; CANCELLED when abandoned; UNAVAILABLE
  // otherwise.
  absl::Status status;
  v1::Frame reply;
  bool crashed = false;  // the worker died over it, or answered nonsense
  bool killed = false;   // crashed, but by a SIGKILL from outside
};

struct WorkerTask {
  Caller caller;                           // for whom
  uint64_t program = 0;                    // of the caller's job; the lower came first
  v1::Frame request;                       // plan or emit
  bool urgent = false;                     // before all that wait: a leased GPU idles for it
  absl::Duration time_limit;               // from when a worker takes it
  std::function<bool()> abandoned;         // asked while it waits and runs; any thread
  std::function<void(WorkerResult)> done;  // called once, on a pool thread; must not block for long
};

class WorkerPool {
 public:
  struct Options {
    size_t workers = 1;
    uint32_t jobs_max = 500;
    uint64_t memory_bytes = 0;  // a worker's limit, for the words of the refusal
    uint64_t resident_bytes_max = UINT64_MAX;
  };
  // Waits for the first worker's hello. `zygote` and `stats` outlive the pool.
  static absl::StatusOr<std::unique_ptr<WorkerPool>> Start(const Options& options, Zygote* zygote,
                                                           Stats* stats);
  ~WorkerPool();

  void Submit(WorkerTask task);
  // Submits the task, which has no `done` of its own, and waits for its result.
  WorkerResult Await(WorkerTask task);

  const v1::WorkerHello& hello() const { return hello_; }  // of the first worker
  size_t size() const { return options_.workers; }
  size_t busy() const;
  size_t waiting() const;
  absl::Status health() const;  // why the pool has stopped
  std::vector<pid_t> pids() const;

 private:
  WorkerPool(const Options& options, Zygote* zygote, Stats* stats)
      : options_(options), zygote_(zygote), stats_(stats), pids_(options.workers, -1) {}
  void Run(size_t slot, std::unique_ptr<WorkerProcess> process);
  // `charged`: to its caller already; nothing where it did not wait in the queue.
  bool Next(WorkerTask* task, std::optional<double>* charged);
  void Ended(const Caller& caller, bool plan, bool ok, double seconds, std::optional<double> charged);
  WorkerResult Execute(size_t slot, std::unique_ptr<WorkerProcess>* process, WorkerTask* task);
  absl::Status EnsureProcess(size_t slot, std::unique_ptr<WorkerProcess>* process);
  bool Spent(size_t slot, const WorkerProcess& process) const;
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Zygote* const zygote_;
  Stats* const stats_;
  v1::WorkerHello hello_;  // const after Start
  std::vector<std::thread> threads_;

  mutable absl::Mutex mutex_;
  std::deque<WorkerTask> urgent_ ABSL_GUARDED_BY(mutex_);
  FairQueue queue_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<FairQueue::TaskId, WorkerTask> tasks_ ABSL_GUARDED_BY(mutex_);  // of queue_
  FairQueue::TaskId last_task_ ABSL_GUARDED_BY(mutex_) = 0;
  double plan_seconds_ ABSL_GUARDED_BY(mutex_) = 1;  // as long as they took lately
  double emit_seconds_ ABSL_GUARDED_BY(mutex_) = 0.05;
  std::vector<pid_t> pids_ ABSL_GUARDED_BY(mutex_);
  size_t busy_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kiln
