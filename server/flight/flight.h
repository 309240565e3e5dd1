// One flight: the compile of one CompileKey, for all who wait for it. Plain data: `FlightTable` decides what
// becomes of it; FlightPlaces, FlightTasks and FlightAdmission change the fields that are named as theirs.
//
// Ownership: `FlightIndex` owns it; artifact, events and request are shared with who reads them. Threads: one
// at a time (the table's strand). Limits: an entry a caller, a task and a kind of event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "server/build/artifact.h"
#include "server/flight/flight_call.h"
#include "server/flight/flight_event.h"
#include "server/flight/flight_request.h"
#include "server/flight/flight_task.h"
#include "server/flight/known_key.h"

namespace kiln {

enum class FlightState { kNone, kLooking, kUploading, kQueued, kRunning, kWaiting, kStoring, kDying };

const char* FlightStateName(FlightState state);

struct Flight {
  // What is known of its key beside it.
  struct Look {
    KnownKeyPtr known;       // of the store, where it has what is outdated
    bool claims = false;     // was looked up further
    bool elsewhere = false;  // another daemon compiles it: none of this one's limits of time are its
  };
  struct Progress {
    std::string phase = "starting";             // while it runs
    absl::btree_map<int, FlightEventPtr> last;  // of each kind, for who joins later
    uint32_t kernels_done = 0;
    uint32_t kernels_total = 0;
  };
  struct Work {
    bool begun = false;
    size_t at_work = 0;               // tasks that have not ended, or brought what comes next
    double seconds = 0;               // of workers
    absl::btree_set<TaskId> waiting;  // of FlightTasks: those that are in the queue
  };
  // Of FlightPlaces.
  struct Place {
    bool taken = false;
    uint64_t held_bytes = 0;    // with a place, beside its request's
    uint64_t asked_bytes = 0;   // the most that uploads on their way take
    uint64_t upload_bytes = 0;  // of those what is charged beside the request's graph
  };
  struct Result {
    std::shared_ptr<const Artifact> artifact;
    FlightEventPtr done;
  };

  FlightId id = 0;
  FlightState state = FlightState::kLooking;
  std::string slot;                        // a debug flight has none: it is nobody else's
  std::shared_ptr<FlightRequest> request;  // changes until it is queued; then shared with who compiles
  absl::btree_set<CallId> waiters;         // in order of arrival
  CallId leader = 0;                       // for whom it compiles, where that caller is still here
  Caller::Class work_class = Caller::Class::kBackground;
  uint64_t caller_bytes = 0;  // without a place, in CallerBytes
  uint32_t position = 0;
  std::optional<MonotonicTime> due;  // for a look at it: its upload takes long, its time while queued is up
  Look look;
  Progress progress;
  Work work;
  Place place;
  Result result;
};

// Who is charged for it: the first caller, in the flight's class.
Caller CallerOf(const Flight& flight);

}  // namespace kiln
