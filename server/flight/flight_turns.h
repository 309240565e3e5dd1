// Schedules flights on workers and GPUs: a flight that has its graph is queued, its tasks start in their
// turn, and the tasks that follow from them are queued again.
//
// A flight runs while a task of it is at a worker or a GPU, or what a task brought is being taken in; while
// all that it needs waits for its turn it is waiting, and holds neither worker, GPU nor thread. Which task
// runs next is fair to tenants and their jobs (task_queue.h). A flight is background while all that have
// joined it are.
//
// Admission (flight_admission.h) is checked again while a flight is queued and at its turn: its tenant's
// quota may be used up, or its deadline out of reach by then.
//
// Ownership: all outlive it. Threads: one at a time (the table's strand). Limits: FlightPlaces bounds the
// flights, whoever compiles their tasks.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "server/flight/flight.h"
#include "server/flight/flight_subscriptions.h"
#include "server/flight/flight_task.h"
#include "server/flight/in_flight.h"
#include "server/schedule/task_queue.h"

namespace kiln {

class FlightTurns {
 public:
  FlightTurns(InFlight* here, FlightSubscriptions* subscriptions)
      : here_(*here), subscriptions_(*subscriptions) {}

  // One with a place and its graph, which is compiled for `leader`.
  void Enqueue(Flight& flight, CallId leader);
  // Of a queued one whose time may be up.
  void CheckTime(Flight& flight);
  // After every input that may end a flight: others may wait for what it held.
  void StartTasks();
  // Of one that came back from another daemon without a program.
  absl::Status GoOnHere(Flight& flight);
  // A task of it has ended, and asks for these.
  void GoOn(Flight& flight, const std::vector<FlightTask>& tasks);

 private:
  void WatchTime(Flight& flight);
  absl::Status CheckAtFront(const Flight& flight, TaskQueue::Kind kind);
  bool IsFirstBegun(const Flight& flight) const;
  void Begin(Flight& flight);
  void EndOverdue(Flight& flight);

  InFlight& here_;
  FlightSubscriptions& subscriptions_;
};

}  // namespace kiln
