#include "tests/sim/forward_sim.h"

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/flight/forward_table.h"
#include "server/flight/gang_verdict.h"
#include "tests/sim/draw.h"
#include "tests/sim/sim_daemon.h"
#include "tests/sim/sim_upstream.h"

namespace kiln::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr FlightId kFlights = 20;
constexpr int kPatienceSeconds = 40;

class World {
 public:
  World(uint64_t seed, ForwardFault fault, Pairs* pairs)
      : draw_(seed), fault_(fault), pairs_(pairs), table_(/*compiles_here=*/draw_.Chance(50), Outside()) {}

  std::string Run() {
    for (FlightId id = 1; id <= kFlights; ++id) Later([this, id] { Begin(id); });
    while (!agenda_.empty() && violation_.empty()) {
      now_ += draw_.Upto(milliseconds(1500));
      const auto next = agenda_.begin() + draw_.Below(static_cast<int>(agenda_.size()));
      const std::function<void()> what = std::move(*next);
      *next = std::move(agenda_.back());
      agenda_.pop_back();
      what();
    }
    for (const auto& [id, flight] : flights_) {
      if (!flight.ended) Fail(absl::StrCat("flight ", id, " never ends"));
      if (table_.StateOf(id) != ForwardTable::State::kNone) Fail("something is left when all is over");
    }
    return violation_;
  }

 private:
  struct Flight {
    MonotonicTime deadline;
    std::map<ForwardTable::Turn, bool> calls;  // out, and whether it was cancelled
    std::set<ForwardTable::Turn> reminders;    // out
    bool waits = false;
    bool takes = false;
    bool taken = false;  // its program is here
    bool stopped = false;
    bool ended = false;
  };

  void Later(std::function<void()> what) { agenda_.push_back(std::move(what)); }
  void Fail(std::string what) {
    if (violation_.empty()) violation_ = std::move(what);
  }
  bool Plant(ForwardFault fault, int percent) { return fault_ == fault && draw_.Chance(percent); }
  void Give(ForwardInput input, FlightId id, const std::function<void()>& call) {
    pairs_->Count(static_cast<size_t>(input), static_cast<size_t>(table_.StateOf(id)));
    call();
  }
  MonotonicTime Patience() { return now_ + draw_.Upto(seconds(kPatienceSeconds)); }

  // ---- Callers ----

  void Begin(FlightId id) {
    Flight& flight = flights_[id];
    flight.deadline = draw_.Chance(10) ? MonotonicTime::max() : Patience();
    const auto callers = draw_.Chance(30) ? ForwardTable::Callers::kGang : ForwardTable::Callers::kAny;
    Give(ForwardInput::kForward, id, [&] { table_.Forward(/*task=*/id, id, callers); });
    // Some join who wait longer.
    for (int i = draw_.Below(4); i > 0; --i) {
      Later([this, id] {
        Flight& joined = flights_[id];
        if (!joined.stopped && !joined.ended) joined.deadline = std::max(joined.deadline, Patience());
      });
    }
    if (draw_.Chance(40)) Later([this, id] { Leave(id); });
  }

  // All of them, once.
  void Leave(FlightId id) {
    Flight& flight = flights_[id];
    if (flight.ended) return;
    flight.stopped = true;
    flight.deadline = MonotonicTime::min();
    Give(ForwardInput::kStop, id, [&] { table_.Stop(id); });
  }

  // ---- What the table asks for ----

  ForwardTable::Outside Outside() {
    ForwardTable::Outside outside;
    outside.pack = [this](FlightId id) {
      Later([this, id] { Give(ForwardInput::kPacked, id, [&] { table_.Packed(id, now_); }); });
    };
    outside.call = [this](FlightId id, ForwardTable::Turn turn, MonotonicTime) {
      if (flights_[id].ended) Fail("a call begins for a flight that has ended");
      if (!flights_[id].calls.emplace(turn, false).second) Fail("a turn begins twice");
      Later([this, id, turn] { EndCall(id, turn); });
    };
    outside.cancel = [this](FlightId id) {
      for (auto& [turn, cancelled] : flights_[id].calls) cancelled = true;
    };
    outside.remind = [this](FlightId id, ForwardTable::Turn turn, MonotonicTime) {
      flights_[id].reminders.insert(turn);
      if (Plant(ForwardFault::kLostReminder, 5)) return;
      Later([this, id, turn] {
        flights_[id].reminders.erase(turn);
        Give(ForwardInput::kDue, id, [&] { table_.Due(id, turn, now_); });
      });
    };
    outside.wait = [this](FlightId id, absl::Duration) {
      flights_[id].waits = true;
      Later([this, id] {
        flights_[id].waits = false;
        Give(ForwardInput::kWaited, id, [&] { table_.Waited(id, now_); });
      });
    };
    outside.hurry = [](FlightId) {};  // all of it comes at any time
    outside.answered = [] {};
    outside.take = [this](FlightId id, const ForwardedEnd&) {
      if (std::exchange(flights_[id].takes, true)) Fail("a flight's program is fetched twice");
      Later([this, id] { Take(id); });
    };
    outside.failed = [](const absl::Status& why) { return absl::FailedPreconditionError(why.message()); };
    outside.unknown = [](const absl::Status& why) {
      return WithoutVerdict(absl::UnavailableError(why.message()));
    };
    outside.deadline = [this](FlightId id) { return flights_[id].deadline; };
    outside.ended = [this](TaskId, FlightId id, const FlightNext& next) {
      Ended(id, next);
      if (Plant(ForwardFault::kTwoEnds, 5)) Ended(id, next);
    };
    outside.jitter = [](absl::Duration pause) { return pause; };
    return outside;
  }

  // What was cancelled may have ended by itself just before.
  void EndCall(FlightId id, ForwardTable::Turn turn) {
    const bool cancelled = flights_[id].calls.extract(turn).mapped();
    if (Plant(ForwardFault::kLostCall, 5)) return;
    ForwardedEnd end;
    ForwardInput input = ForwardInput::kCancelled;
    if (!cancelled || draw_.Chance(40)) {
      constexpr ForwardInput kEnds[] = {ForwardInput::kProgram, ForwardInput::kVerdict, ForwardInput::kFull,
                                        ForwardInput::kLate, ForwardInput::kBroken};
      input = kEnds[draw_.Below(5)];
    }
    switch (input) {
      case ForwardInput::kProgram: end.manifest.emplace(); break;
      case ForwardInput::kVerdict:
        end.verdict = absl::UnimplementedError("no");
        end.without_gang = draw_.Chance(30);
        break;
      case ForwardInput::kFull:
        end.call = absl::ResourceExhaustedError("the queue is full");
        end.come_again = absl::Milliseconds(100 + draw_.Below(4000));
        break;
      case ForwardInput::kLate: end.call = absl::DeadlineExceededError("late"); break;
      case ForwardInput::kBroken:
        end.call = absl::UnavailableError("the connection broke");
        if (draw_.Chance(20)) end.come_again = absl::Seconds(1);  // it is drained
        break;
      default: end.call = absl::CancelledError("cancelled"); break;
    }
    Give(input, id, [&] { table_.CallEnded(id, turn, std::move(end), now_); });
  }

  void Take(FlightId id) {
    absl::StatusOr<std::shared_ptr<const Artifact>> taken = absl::UnavailableError("it is gone");
    if (draw_.Chance(70)) taken = std::make_shared<const Artifact>();
    flights_[id].taken = taken.ok();
    Give(taken.ok() ? ForwardInput::kTaken : ForwardInput::kNotTaken, id,
         [&] { table_.Taken(id, std::move(taken)); });
  }

  // ---- What must hold ----

  void Ended(FlightId id, const FlightNext& next) {
    Flight& flight = flights_[id];
    if (std::exchange(flight.ended, true)) Fail("a flight ends twice");
    if (!flight.calls.empty() || !flight.reminders.empty() || flight.waits)
      Fail("a flight ends before all that it has out is back");
    if (next.outcome.has_value() == !next.tasks.empty()) Fail("a flight ends with nothing, or with both");
    const bool program = next.outcome.has_value() && next.outcome->ok();
    if (program != flight.taken) Fail("a program is told that was not fetched, or not told that was");
    if (next.outcome.has_value() && absl::IsCancelled(next.outcome->status()) && !flight.stopped)
      Fail("a flight is cancelled that somebody waits for");
  }

  Draw draw_;
  const ForwardFault fault_;
  Pairs* const pairs_;
  MonotonicTime now_{std::chrono::hours(1)};
  std::string violation_;
  std::map<FlightId, Flight> flights_;
  std::vector<std::function<void()>> agenda_;
  ForwardTable table_;
};

}  // namespace

std::string SimulateForwards(uint64_t seed, ForwardFault fault, Pairs* pairs) {
  return World(seed, fault, pairs).Run();
}

}  // namespace kiln::sim
