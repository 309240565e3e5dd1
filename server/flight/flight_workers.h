// Does the tasks of flights: on the pool's workers, on a thread a GPU, or at the upstream; and takes in, on
// threads of the disk's, what these bring.
//
// Ownership: a flight's compile is shared by the flight and its tasks at work. Threads: Workers and Close on
// the table's strand. Limits: the table's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "server/flight/chores.h"
#include "server/flight/flight_compile.h"
#include "server/flight/flight_compiler.h"
#include "server/flight/flight_request.h"
#include "server/flight/flight_table.h"
#include "server/flight/flight_task.h"
#include "server/flight/flight_threads.h"
#include "server/flight/upstream_flights.h"
#include "server/flight/work_count.h"
#include "server/observe/stats.h"
#include "server/pool/worker_pool.h"
#include "server/schedule/clock.h"
#include "server/schedule/fair_queue.h"

namespace kiln {

class FlightWorkers final : public Workers {
 public:
  // All outlive it.
  struct Parts {
    const Clock* clock;
    Stats* stats;
    WorkerPool* pool;
    FlightCompiler* compiler;
    UpstreamFlights* upstream;  // null: none
    FlightTable* table;
    FlightThreads* threads;
  };
  explicit FlightWorkers(const Parts& parts)
      : parts_(parts),
        chores_({parts.clock, parts.stats, parts.pool, parts.table, parts.threads, &at_work_}) {}

  // Workers.
  void Start(TaskId id, FlightId flight, FlightRequestPtr request, const FlightTask& task) override;
  void Stop(FlightId flight) override;

  Chores& chores() { return chores_; }
  // Tasks started, and what they bring not yet taken in. Who gives the upstream a task ends it here.
  WorkCount& at_work() { return at_work_; }
  // What is at work ends early, and nothing starts any more.
  void Close();
  bool closed() const { return closed_; }

 private:
  using CompilePtr = std::shared_ptr<FlightCompile>;  // shared by the table's flight and its tasks at work
  CompilePtr CompileOf(FlightId flight, const FlightRequestPtr& request);
  void StartWork(TaskId id, FlightId flight, const CompilePtr& compile, const Caller& caller,
                 uint64_t number);
  void StartTuning(TaskId id, FlightId flight, const CompilePtr& compile, const Caller& caller);
  // What follows a task's end, on a thread of the disk's; and, where that waits for the tier, on one of its.
  void Take(FlightId flight, const CompilePtr& compile, std::function<FlightNext()> step);
  void Advance(FlightId flight, const CompilePtr& compile, FlightNext next);

  const Parts parts_;
  WorkCount at_work_;

  // The strand's.
  Chores chores_;
  absl::flat_hash_map<FlightId, CompilePtr> compiles_;
  bool closed_ = false;
};

}  // namespace kiln
