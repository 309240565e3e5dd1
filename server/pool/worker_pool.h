// A fixed number of workers. They do what is submitted in that order: who submits no more than there are
// workers (schedule/task_queue.h) says who is next.
//
// A worker serves one tenant in its life, for what a tenant's graph has made of it must not reach another's.
// A task goes to an idle worker of its tenant, else to one that has served nobody, else to one that makes
// room first: it waits on the shelf (worker_shelf.h) for its tenant's next task, and one of this tenant's is
// taken from there, or a new one started.
//
// One thread a worker; it spawns the process, feeds it one task at a time, kills it at the task's
// time limit or when nobody waits any more, and replaces it after a crash, after `jobs_max` tasks, and when a
// task left it with more than `resident_bytes_max`: the memory of a worker belongs to the next task.
// The first worker has to speak kilnd's formats of graphs and programs, which keys are of. All others must
// show its compiler fingerprint; another one stops the pool, for what it compiled would be stored under a
// wrong key. That kilnd and kiln-worker are of one build is not asked: an exchange of their files may take a
// moment, and the fingerprint is in every key.
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
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "compiler/support/host_memory.h"
#include "kiln/v1/worker.pb.h"
#include "server/observe/stats.h"
#include "server/pool/worker_process.h"
#include "server/pool/worker_shelf.h"
#include "server/pool/zygote.h"

namespace kiln {

struct WorkerResult {
  // OK with a reply; the worker's own refusal with its code; DEADLINE_EXCEEDED after the time limit;
  // FAILED_PRECONDITION when the worker's memory did not suffice, or the host's; CANCELLED when abandoned;
  // UNAVAILABLE otherwise.
  absl::Status status;
  v1::Frame reply;
  bool crashed = false;  // the worker died over it, or answered nonsense
  bool killed = false;   // crashed, but by a SIGKILL from outside
  double seconds = 0;    // of the worker
};

struct WorkerTask {
  std::string tenant;                  // for whom
  std::function<v1::Frame()> request;  // plan or emit; made on the worker's thread, when it takes the task
  absl::Duration time_limit;           // from when a worker takes it
  std::function<bool()> abandoned;     // asked while it waits and runs; any thread
  std::function<void(WorkerResult)> done;  // called once, on a pool thread; must not block for long
};

class WorkerPool {
 public:
  struct Options {
    size_t workers = 1;
    uint32_t jobs_max = 500;
    uint64_t memory_bytes = 0;  // a worker's limit, for the words of the refusal
    uint64_t resident_bytes_max = UINT64_MAX;
    size_t shelf_max = 8;  // workers beside those that have a place
    // How many processes beside kilnd the kernel has killed for want of memory, where it says.
    std::function<std::optional<uint64_t>()> oom_kills = [] { return OomKills(); };
  };
  // Waits for the first worker's hello. FAILED_PRECONDITION where its formats are not kilnd's. `zygote` and
  // `stats` outlive the pool.
  static absl::StatusOr<std::unique_ptr<WorkerPool>> Start(const Options& options, Zygote* zygote,
                                                           Stats* stats);
  ~WorkerPool();

  void Submit(WorkerTask task);

  const v1::WorkerHello& hello() const { return hello_; }  // of the first worker
  size_t size() const { return options_.workers; }
  size_t busy() const;
  absl::Status health() const;  // why the pool has stopped
  std::vector<pid_t> pids() const;

 private:
  struct Slot {
    pid_t pid = -1;
    std::optional<std::string> tenant;  // whom this process serves; nobody yet
    bool waits = false;                 // for a task
    std::optional<WorkerTask> task;     // the one it was given
  };
  WorkerPool(const Options& options, Zygote* zygote, Stats* stats)
      : options_(options),
        zygote_(zygote),
        stats_(stats),
        shelf_(options.shelf_max),
        slots_(options.workers) {}
  void Run(size_t slot, std::unique_ptr<WorkerProcess> process);
  bool Next(size_t slot, WorkerTask* task);
  void Finish(size_t slot, bool usable);
  void Assign() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of those that wait the one to take the tenant's task; nullptr where none waits.
  Slot* SlotFor(const std::string& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Leaves the slot a process that has served the tenant or nobody, or none.
  void MakeRoomFor(size_t slot, const std::string& tenant, std::unique_ptr<WorkerProcess>* process);
  WorkerResult Execute(size_t slot, std::unique_ptr<WorkerProcess>* process, WorkerTask* task);
  WorkerResult Lost(size_t slot, const char* doing, const WorkerProcess::End& end, bool killed_for_memory,
                    const absl::Status& why);
  absl::Status EnsureProcess(size_t slot, std::unique_ptr<WorkerProcess>* process);
  bool Spent(size_t slot, const WorkerProcess& process) const;

  const Options options_;
  Zygote* const zygote_;
  Stats* const stats_;
  v1::WorkerHello hello_;  // const after Start
  std::vector<std::thread> threads_;
  WorkerShelf shelf_;

  mutable absl::Mutex mutex_;
  std::deque<WorkerTask> queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  size_t busy_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kiln
