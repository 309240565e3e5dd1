// Flights that the upstream compiles, as a state machine: a call there, again where the upstream is full and
// says when to come or where somebody waits longer than the call, and what became of it.
//
//   packing → calling → taking → ending → gone
//               ⇅
//             waiting
//
// A call has the time of the latest of the flight's callers. Where one has joined by then who waits longer,
// the next call (its turn) begins before that one ends, and joins what runs there for it; an answer to
// either counts, and where there is none the latest call's end does.
//
// A flight that nobody waits for any more ends its calls, which are its own: whoever else has the upstream
// compile the key is not touched by that. Where the upstream is not to be had, the flight goes on here, or
// fails; a gang's member is told that there is no verdict (WithoutVerdict), for here there is none.
//
// What a flight has out – calls, reminders, a wait – has come back when it is told to be over.
//
// Threads: one at a time (the table's strand). An input about what is gone is ignored. `Outside` returns at
// once; `ended` alone may call Forward and Stop, and `cancel` and `hurry` may come more than once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "compiler/support/monotonic_time.h"
#include "server/build/artifact.h"
#include "server/flight/flight_task.h"
#include "server/upstream/forwarded_end.h"

namespace kiln {

inline constexpr absl::Duration kComeAgainMax = absl::Seconds(30);
// Before a call ends whose flight has callers that wait longer; half of what it has, where that is less.
inline constexpr absl::Duration kExtendBefore = absl::Seconds(2);

class ForwardTable {
 public:
  using Turn = uint64_t;  // of a flight's calls, from 1
  struct Outside {
    std::function<void(FlightId)> pack;                         // ends with `Packed`
    std::function<void(FlightId, Turn, MonotonicTime)> call;    // until then: ends with `CallEnded`
    std::function<void(FlightId)> cancel;                       // each of its calls ends soon
    std::function<void(FlightId, Turn, MonotonicTime)> remind;  // then, at the latest, `Due`
    std::function<void(FlightId, absl::Duration)> wait;         // ends with `Waited`
    std::function<void(FlightId)> hurry;                        // its wait and each reminder end soon
    std::function<void(FlightId, ForwardedEnd)> take;           // its program: ends with `Taken`
    std::function<void()> answered;                             // counts a program, or a verdict
    std::function<absl::Status(const absl::Status&)> failed;    // counts it; what callers are told
    std::function<absl::Status(const absl::Status&)> unknown;   // what a gang's are told instead
    std::function<void(TaskId, FlightId, FlightNext)> ended;
    std::function<MonotonicTime(FlightId)> deadline;  // the latest of its callers
    // At least that, so that those it refused do not come back at once.
    std::function<absl::Duration(absl::Duration)> jitter;
  };
  // `compiles_here`: where the upstream is not to be had.
  ForwardTable(bool compiles_here, Outside outside)
      : compiles_here_(compiles_here), outside_(std::move(outside)) {}

  // The task ends with `ended`, whose outcome is a program or a verdict, or whose task is a plan.
  enum class Callers { kAny, kGang };
  void Forward(TaskId task, FlightId id, Callers callers);
  void Packed(FlightId id, MonotonicTime now);
  void Due(FlightId id, Turn turn, MonotonicTime now);
  void CallEnded(FlightId id, Turn turn, ForwardedEnd end, MonotonicTime now);
  void Waited(FlightId id, MonotonicTime now);
  void Taken(FlightId id, absl::StatusOr<std::shared_ptr<const Artifact>> taken);
  // Nobody waits for it.
  void Stop(FlightId id);
  void StopAll();

  enum class State { kNone, kPacking, kCalling, kWaiting, kTaking, kEnding };
  State StateOf(FlightId id) const;

 private:
  struct Flight {
    State state = State::kPacking;
    TaskId task = 0;
    Callers callers = Callers::kAny;
    Turn turn = 0;           // of the latest call
    MonotonicTime deadline;  // likewise
    uint32_t workers_lost = 0;
    absl::btree_set<Turn> calls;      // out
    absl::btree_set<Turn> reminders;  // out
    bool waits = false;
    std::optional<FlightNext> next;  // what came of it
  };
  Flight* Find(FlightId id);
  Flight* Find(FlightId id, State state);
  void Call(FlightId id, Flight* flight, MonotonicTime now);
  bool AskAgain(FlightId id, Flight* flight, const ForwardedEnd& end, MonotonicTime now);
  void Answered(FlightId id, Flight* flight, absl::StatusOr<std::shared_ptr<const Artifact>> outcome);
  void Unanswered(FlightId id, Flight* flight, const ForwardedEnd& end);
  void NotMade(FlightId id, Flight* flight, const absl::Status& why);
  void Hurry(FlightId id, const Flight& flight);
  void Settle(FlightId id, Flight* flight, FlightNext next);
  void EndWhenAllIsBack(FlightId id, Flight* flight);

  const bool compiles_here_;
  const Outside outside_;
  absl::flat_hash_map<FlightId, Flight> flights_;
};

}  // namespace kiln
