// Tasks that belong to no flight: what people and other daemons request of workers and GPUs. They wait in the
// table's queue by number, among the tasks of flights, and here.
//
// Threads: Start and Close on the table's strand, the others any. A chore's callback is called once, on
// another thread. Limits: who submits bounds what waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "server/flight/flight_table.h"
#include "server/flight/flight_threads.h"
#include "server/flight/work_count.h"
#include "server/observe/stats.h"
#include "server/pool/worker_pool.h"
#include "server/schedule/clock.h"
#include "server/schedule/fair_queue.h"

namespace kiln {

class Chores {
 public:
  // All outlive it.
  struct Parts {
    const Clock* clock;
    Stats* stats;
    WorkerPool* pool;
    FlightTable* table;
    FlightThreads* threads;
    WorkCount* at_work;
  };
  explicit Chores(const Parts& parts) : parts_(parts) {}

  // Its `done` is called once. Returns the task's number.
  uint64_t Submit(const Caller& caller, WorkerTask task);
  // Likewise for a GPU, on a thread of its own. `measure` is called once; false: it does not get its turn.
  uint64_t SubmitMeasuring(const Caller& caller, std::function<void(bool runs)> measure);
  // Where it still waits, its `done` says CANCELLED. Of one at work its `abandoned` decides.
  void Withdraw(uint64_t number);

  // It is its turn, and it is counted as at work.
  void Start(TaskId id, uint64_t number);
  // Those that wait do not get their turn, nor does any later one.
  void Close();

 private:
  struct Chore {
    Caller caller;
    WorkerTask task;
    std::function<void(bool runs)> measure;  // instead of a task
    // It does not get its turn.
    void Cancel(const char* why) const;
  };
  uint64_t Add(std::shared_ptr<Chore> chore);
  void StartMeasuring(TaskId id, Chore chore);

  const Parts parts_;
  std::atomic<uint64_t> last_{0};

  // The strand's.
  absl::flat_hash_map<uint64_t, Chore> waiting_;
  bool closed_ = false;
};

}  // namespace kiln
