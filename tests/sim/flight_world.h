// The world of one simulated FlightTable: its callers, workers, GPUs, store and clock, which do what the seed
// says, and what must hold after each input. flight_world.cc has callers and inputs, flight_work.cc what the
// table asks for, flight_checks.cc what must hold. Threads: one.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/flight/flight_table.h"
#include "tests/sim/draw.h"
#include "tests/sim/flight_sim.h"
#include "tests/sim/sim_clock.h"

namespace kiln::sim {

using State = FlightTable::State;
using std::chrono::microseconds;
using std::chrono::milliseconds;

inline constexpr int kKeys = 14;
inline constexpr milliseconds kTimerLate(1);
inline constexpr uint64_t kBytesMax = 7;  // of a request
inline constexpr uint64_t kUploadBytes = 2;
inline constexpr uint64_t kUploadsOfPlaceMax = 1000;  // no uploads of a flight take more than its place has

// What a key's graph is like: whether compiling it fails, whether its guards refuse the very sizes.
enum class Nature { kGood, kGoodToo, kRefused, kContradictory };
Nature NatureOf(const std::string& key);
// The greedy one has half of the keys, and all that are asked for most.
std::string TenantOf(const std::string& key);
uint64_t BytesOf(const std::string& key);
v1::Hints HintsOf(int size);
v1::Guards RangeOf(int first, int last);

struct SimCaller;

class World final : public Workers, public FlightStore {
 public:
  World(uint64_t seed, Fault fault, Coverage* coverage);
  Outcome Run();

  // Workers and FlightStore: what the table asks.
  void Start(TaskId id, FlightId flight, FlightRequestPtr request, const FlightTask& task) override;
  void Stop(FlightId flight) override;
  void Look(FlightId flight, const FlightRequest& request) override;
  void Write(FlightId flight, std::shared_ptr<const Artifact> artifact) override;

  // What a caller hears.
  void Heard(SimCaller& caller, const v1::CompileEvent& event);
  void Asked(SimCaller& caller, Subscriber::Upload wanted);
  void Ended(SimCaller& caller, const absl::Status& status);

 private:
  struct Variant {
    KnownVariant known;
    bool by_debug = false;
  };
  struct Task {  // at a worker or a GPU
    FlightId flight = 0;
    FlightTask task;
  };
  // The first plan, one more, an emit, tuning, and what that asks for.
  enum class Role { kPlan, kPlans, kEmit, kTune, kUrgent };
  // A flight's work as its daemon knows it.
  struct Compile {
    FlightRequestPtr request;
    bool stopped = false;
    bool over = false;   // the outcome is known
    bool made = false;   // and is an artifact
    bool told = false;   // the table has that
    size_t at_work = 0;  // tasks, and what they have brought that the table is not told of yet
    int emits_left = 0;
    bool tunes = false;
    int urgent_left = 0;  // what a leased GPU waits for
    bool again = false;   // more emits, when it has been tuned
    uint64_t last_number = 0;
    uint64_t held_bytes = 0;
    std::map<uint64_t, Role> roles;  // of its tasks; the first is kPlan
  };

  void At(microseconds delay, std::function<void()> what);
  void Give(Input input, State state, const std::function<void()>& input_call);
  void Fail(std::string what);
  void Check();
  void CheckSlots();
  void CheckAtRest();
  void CheckCall(const SimCaller& caller);
  void CheckRefusal(const SimCaller& caller, const absl::Status& status);
  bool IsStored(const std::string& key, const std::string& variant_id);
  bool UploadIsComing(FlightId flight);
  bool HasSomethingComing(FlightId flight);

  void Arrive(int number);
  void AskForKey(SimCaller& caller);
  void TryAttach(SimCaller& caller);
  void Departs(SimCaller& caller);
  void Uploads(SimCaller& caller, bool fails);
  State StateOf(const SimCaller& caller) const;  // of its flight
  void CheckStart(FlightId flight, const FlightRequest& request, const FlightTask& task);
  bool MayBegin() const;
  std::set<FlightId> Placed() const;
  uint64_t BytesOfGraphs() const;
  uint64_t BytesHeld() const;
  bool IsCharged(const SimCaller& unpacked) const;  // beside flights
  void CheckFirstStart(FlightId flight, const FlightRequest& request);
  void Progresses(FlightId flight);
  void Asks(TaskId tuning, FlightId flight);
  void EndTask(TaskId id);
  void Advance(FlightId flight, uint64_t number, bool crashed);
  void TakeIn(FlightId flight, FlightNext next);
  FlightTask NewTask(Compile& compile, Role role);
  FlightNext NextOf(Compile& compile, FlightId flight, uint64_t number, bool crashed);
  void AddEmits(Compile& compile, int emits, FlightNext* next);
  absl::StatusOr<std::shared_ptr<const Artifact>> OutcomeOf(const Compile& compile, FlightId flight);
  size_t AtWork(bool gpu) const;
  std::shared_ptr<const Artifact> Make(const FlightRequest& request, FlightId flight);
  void SetTimer();
  bool Plant(Fault fault, int percent) { return fault_ == fault && draw_.Chance(percent); }

  const Fault fault_;
  Coverage* const coverage_;
  Draw draw_;
  SimClock clock_;
  Outcome outcome_;
  std::unique_ptr<FlightTable> table_;
  FlightTable::Options options_;

  using Due = std::pair<MonotonicTime, uint64_t>;  // a random number breaks ties
  std::map<Due, std::function<void()>> agenda_;
  uint64_t scheduled_ = 0;

  std::vector<std::shared_ptr<SimCaller>> callers_;
  std::vector<SimCaller*> active_;  // those who were not gone when last looked at
  std::map<std::string, std::vector<Variant>> variants_;
  std::set<std::string> refused_;
  std::set<std::string> ever_durable_;  // variant ids
  std::map<TaskId, Task> tasks_;        // at work
  std::map<FlightId, Compile> compiles_;
  std::set<std::pair<FlightId, uint64_t>> urgent_;  // asked for, and not started
  std::map<FlightId, std::string> storing_;
  std::map<FlightId, uint64_t> held_bytes_;  // as the table should know
  std::set<const SimCaller*> unpacking_;
  std::set<FlightId> looking_;
  std::map<FlightId, std::string> keys_of_flights_;
  std::map<FlightId, MonotonicTime> last_asked_;  // for an upload
  std::set<FlightId> debug_flights_;
  std::vector<std::string> jobs_;  // lately heard of
  int last_job_ = 0;
  MonotonicTime timer_ = MonotonicTime::max();
};

struct SimCaller final : public Subscriber {
  World* world = nullptr;
  CallId id = 0;
  std::string key;
  int size = 0;
  bool debug = false;
  MonotonicTime deadline = MonotonicTime::max();
  bool attached = false;
  bool asked = false;
  bool cancelled = false;
  bool lost = false;  // its connection broke, and the table waits for it
  bool ended = false;
  bool told_never = false;
  int answers = 0;  // programs and refusals

  void Event(const FlightEventPtr& event) override { world->Heard(*this, event->message()); }
  void Graph(Upload wanted) override { world->Asked(*this, wanted); }
  void End(const absl::Status& status) override { world->Ended(*this, status); }
};

}  // namespace kiln::sim
