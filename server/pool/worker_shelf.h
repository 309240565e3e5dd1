// Idle workers, each bound to its tenant, while another tenant's task has their place: a new process costs
// more than a small compile.
//
// Owns the processes. Thread-safe; a process is ended by whoever puts one too many, or looks when its time is
// over, and that waits for its end. Limits: `processes_max`, each for kShelvedMinutesMax.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "compiler/support/monotonic_time.h"
#include "server/pool/worker_process.h"

namespace kiln {

class WorkerShelf {
 public:
  explicit WorkerShelf(size_t processes_max) : processes_max_(processes_max) {}

  // The one that has waited longest goes where there are too many.
  void Put(std::string tenant, std::unique_ptr<WorkerProcess> process, MonotonicTime now);
  // The tenant's that came last; null where there is none.
  std::unique_ptr<WorkerProcess> Take(const std::string& tenant);
  // Whoever takes a task asks, and so does who waits for one.
  void EndIdle(MonotonicTime now);

 private:
  struct Idle {
    std::string tenant;
    std::unique_ptr<WorkerProcess> process;
    MonotonicTime since;
  };

  const size_t processes_max_;
  absl::Mutex mutex_;
  std::vector<Idle> idle_ ABSL_GUARDED_BY(mutex_);  // who waits longest first
};

}  // namespace kiln
