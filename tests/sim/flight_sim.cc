#include "tests/sim/flight_sim.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/guards.h"
#include "server/flight/refusals.h"
#include "tests/sim/sim_clock.h"

namespace kiln::sim {
namespace {

using State = FlightTable::State;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int kRequests = 240;
constexpr int kKeys = 14;
constexpr milliseconds kTimerLate(1);
constexpr absl::Duration kWallJump = absl::Seconds(1'000'000);
constexpr int kSizes = 60;  // hints are below; a variant fits a range of ten

// The seed's stream of numbers, the same in every process.
class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}
  int Below(int limit) { return static_cast<int>(engine_() % static_cast<uint64_t>(limit)); }
  bool Chance(int percent) { return Below(100) < percent; }
  microseconds Upto(milliseconds longest) {
    return microseconds(engine_() % static_cast<uint64_t>(microseconds(longest).count() + 1));
  }

 private:
  std::mt19937_64 engine_;
};

// What a key's graph is like: whether compiling it fails, whether its guards refuse the very sizes.
enum class Nature { kGood, kGoodToo, kRefused, kContradictory };
Nature NatureOf(const std::string& key) {
  const int number = std::stoi(key.substr(1));
  if (number % 7 == 5) return Nature::kRefused;
  if (number % 7 == 6) return Nature::kContradictory;
  return number % 2 == 0 ? Nature::kGood : Nature::kGoodToo;
}

// The greedy one has half of the keys, and all that are asked for most.
std::string TenantOf(const std::string& key) {
  const int number = std::stoi(key.substr(1));
  return number < kKeys / 2 ? "greedy" : number % 2 == 0 ? "even" : "odd";
}

constexpr uint64_t kBytesMax = 7;   // of a request
constexpr int kAnswerBytesMax = 8;  // of a worker
uint64_t BytesOf(const std::string& key) {
  return 1 + static_cast<uint64_t>(std::stoi(key.substr(1))) % kBytesMax;
}

v1::Hints HintsOf(int size) {
  v1::Hints hints;
  hints.add_values(size);
  return hints;
}

v1::Guards RangeOf(int first, int last) {
  v1::Guards guards;
  v1::Symbol* symbol = guards.add_symbols();
  symbol->set_kind(v1::SYMBOL_INT);
  symbol->set_min(first);
  symbol->set_max(last);
  return guards;
}

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
  void Uploads(SimCaller& caller, bool fails);
  void CheckStart(FlightId flight, const FlightRequest& request, const FlightTask& task);
  bool MayBegin() const;
  std::set<FlightId> Placed() const;
  uint64_t BytesOfGraphs() const;
  uint64_t BytesHeld() const;
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
  bool ended = false;
  bool told_never = false;
  int answers = 0;  // programs and refusals

  void Event(const FlightEventPtr& event) override { world->Heard(*this, event->message()); }
  void Graph(Upload wanted) override { world->Asked(*this, wanted); }
  void End(const absl::Status& status) override { world->Ended(*this, status); }
};

World::World(uint64_t seed, Fault fault, Coverage* coverage)
    : fault_(fault), coverage_(coverage), draw_(seed) {
  clock_.limits_by_wall = fault == Fault::kWallClock;
  options_.tasks.workers = 1 + static_cast<size_t>(draw_.Below(4));
  options_.tasks.gpus = 1 + static_cast<size_t>(draw_.Below(2));
  options_.tasks.plan_seconds = 0.01;
  options_.tasks.emit_seconds = 0.004;
  options_.tasks.tune_seconds = 0.02;
  options_.queue_max = 2 + static_cast<size_t>(draw_.Below(12));
  options_.graphs_bytes_max = kBytesMax + static_cast<uint64_t>(draw_.Below(60));
  options_.upload_patience = milliseconds(40);
  options_.new_job_id = [this] { return absl::StrCat("job", ++last_job_); };
  table_ = std::make_unique<FlightTable>(options_, &clock_, this, this);
}

void World::Fail(std::string what) {
  if (outcome_.violation.empty()) outcome_.violation = std::move(what);
}

void World::At(microseconds delay, std::function<void()> what) {
  // Later ones of the same instant come in any order.
  agenda_.emplace(Due{clock_.now + delay, (static_cast<uint64_t>(draw_.Below(1 << 20)) << 32) + ++scheduled_},
                  std::move(what));
}

Outcome World::Run() {
  for (int number = 0; number < kRequests; ++number) {
    // Herds: several at once, then a pause.
    At(milliseconds(number / 11 * 15) + draw_.Upto(milliseconds(number % 3 == 0 ? 14 : 1)),
       [this, number] { Arrive(number); });
  }
  for (int i = 0; i < 8; ++i) {
    // Eviction.
    At(draw_.Upto(milliseconds(400)), [this] { variants_.erase(absl::StrCat("k", draw_.Below(kKeys))); });
  }
  // Somebody sets the wall's clock.
  At(draw_.Upto(milliseconds(300)), [this] {
    ++outcome_.wall_jumps;
    clock_.wall += draw_.Chance(50) ? kWallJump : -kWallJump;
  });
  for (uint64_t number = 1; number <= 6; ++number) {
    At(draw_.Upto(milliseconds(300)),
       [this, number] { Give(Input::kChore, State::kNone, [&] { table_->Chore(number, Caller()); }); });
    // Before it comes, while it waits, at work or over.
    if (!draw_.Chance(30)) continue;
    At(draw_.Upto(milliseconds(300)),
       [this, number] { Give(Input::kWithdraw, State::kNone, [&] { table_->Withdraw(number); }); });
  }
  if (draw_.Chance(10)) At(milliseconds(270) + draw_.Upto(milliseconds(130)), [this] { table_->Drain(); });
  while (!agenda_.empty() && outcome_.violation.empty()) {
    auto next = agenda_.extract(agenda_.begin());
    clock_.now = next.key().first;
    next.mapped()();
  }
  if (outcome_.violation.empty()) CheckAtRest();
  return outcome_;
}

// ---- Inputs ----------------------------------------------------------------------------------

void World::Give(Input input, State state, const std::function<void()>& input_call) {
  ++(*coverage_)[static_cast<size_t>(input)][static_cast<size_t>(state)];
  ++outcome_.events;
  input_call();
  SetTimer();
  Check();
}

void World::SetTimer() {
  const std::optional<MonotonicTime> next = table_->NextTick();
  if (!next.has_value() || *next >= timer_) return;
  timer_ = *next;
  // What was posted before goes first.
  const microseconds late =
      fault_ == Fault::kLateTimer ? microseconds(milliseconds(30)) : draw_.Upto(milliseconds(kTimerLate));
  const auto wait = std::chrono::duration_cast<microseconds>(*next - clock_.now);
  At(std::max(microseconds(0), wait) + late, [this] {
    timer_ = MonotonicTime::max();
    // The states of those who have waited long enough.
    std::vector<State> states;
    for (const auto& caller : callers_) {
      const FlightId flight = table_->FlightOfCall(caller->id);
      if (flight != 0 && caller->deadline <= clock_.now) states.push_back(table_->StateOfFlight(flight));
    }
    for (size_t i = 1; i < states.size(); ++i) {
      ++(*coverage_)[static_cast<size_t>(Input::kTick)][static_cast<size_t>(states[i])];
    }
    Give(Input::kTick, states.empty() ? State::kNone : states[0], [this] { table_->Tick(); });
  });
}

void World::Arrive(int number) {
  auto caller = std::make_shared<SimCaller>();
  caller->world = this;
  caller->id = callers_.size() + 1;
  // A few keys are asked for by most.
  caller->key = absl::StrCat("k", draw_.Chance(60) ? draw_.Below(4) : draw_.Below(kKeys));
  caller->size = draw_.Chance(50) ? 5 : draw_.Below(kSizes);
  caller->debug = draw_.Chance(4);
  if (draw_.Chance(70)) caller->deadline = clock_.now + draw_.Upto(milliseconds(draw_.Chance(50) ? 60 : 400));
  callers_.push_back(caller);
  ++outcome_.requests;
  if (draw_.Chance(25)) {
    At(draw_.Upto(milliseconds(80)), [this, caller] {
      if (caller->cancelled) return;
      const bool was_ended = caller->ended;
      const FlightId flight = table_->FlightOfCall(caller->id);
      const State state = flight == 0 ? State::kNone : table_->StateOfFlight(flight);
      caller->cancelled = true;
      if (!was_ended && Plant(Fault::kDeafToCancel, 50)) return;
      Give(Input::kCancel, state, [&] { table_->Cancel(caller->id); });
    });
  }
  if (!jobs_.empty() && draw_.Chance(12)) {
    TryAttach(*caller);
  } else {
    AskForKey(*caller);
  }
}

void World::AskForKey(SimCaller& caller) {
  FlightRequest request;
  request.ns = "ns";
  request.caller.tenant = Plant(Fault::kOneTenant, 100) ? "all" : TenantOf(caller.key);
  request.caller.job = absl::StrCat("job", caller.id % 5);
  request.compile_key = caller.key;
  request.debug = caller.debug;
  request.bytes = BytesOf(caller.key);
  request.graph_bytes = caller.key.size();
  if (Plant(Fault::kSecondFlight, 5)) request.compile_key += "+";
  FlightCall call;
  call.hints = HintsOf(caller.size);
  if (draw_.Chance(20)) call.work_class = Caller::Class::kBackground;
  call.deadline = Plant(Fault::kNoDeadline, 20) ? MonotonicTime::max() : caller.deadline;
  call.subscriber = callers_[caller.id - 1];
  active_.push_back(&caller);
  const State state = table_->StateOfFlight(table_->FlightOfKey(caller.key));
  Give(caller.debug ? Input::kDebug : Input::kCompile, state, [&] {
    table_->Compile(caller.id, std::move(request), std::move(call));
    if (const FlightId flight = table_->FlightOfCall(caller.id); flight != 0)
      keys_of_flights_[flight] = caller.key;
  });
}

void World::TryAttach(SimCaller& caller) {
  FlightCall call;
  call.hints = HintsOf(caller.size);
  call.deadline = caller.deadline;
  call.subscriber = callers_[caller.id - 1];
  active_.push_back(&caller);
  caller.debug = false;
  caller.attached = true;
  // From an event of another's, or just now from a look-up.
  std::string named = jobs_[static_cast<size_t>(draw_.Below(static_cast<int>(jobs_.size())))];
  if (const std::string job = table_->JobOf(caller.key); !job.empty() && draw_.Chance(50)) {
    named = absl::StrCat(job, " ", caller.key);
  }
  const size_t space = named.find(' ');
  caller.key = named.substr(space + 1);
  const std::string job = named.substr(0, space);
  const bool lives = table_->JobOf(caller.key) == job;
  const State state = lives ? table_->StateOfFlight(table_->FlightOfKey(caller.key)) : State::kNone;
  Give(Input::kAttach, state, [&] { table_->Attach(caller.id, "ns", job, std::move(call)); });
}

void World::Uploads(SimCaller& caller, bool fails) {
  const FlightId flight = table_->FlightOfCall(caller.id);
  const State state = flight == 0 ? State::kNone : table_->StateOfFlight(flight);
  if (fails) {
    Give(Input::kUploadFailed, state,
         [&] { table_->Uploaded(caller.id, absl::InvalidArgumentError("graph_chunk: no zstd frame")); });
    return;
  }
  Give(Input::kUploaded, state,
       [&] { table_->Uploaded(caller.id, std::make_shared<const std::string>(caller.key)); });
}

// ---- What the table asks ---------------------------------------------------------------------

void World::Look(FlightId flight, const FlightRequest& request) {
  ++outcome_.events;
  const std::string key = request.compile_key.substr(0, request.compile_key.find('+'));
  for (const SimCaller* caller : active_) {
    if (caller->debug && table_->FlightOfCall(caller->id) == flight) Fail("a debug call is looked up");
  }
  looking_.insert(flight);
  keys_of_flights_[flight] = key;
  At(draw_.Upto(milliseconds(draw_.Chance(40) ? 40 : 2)), [this, flight, key] {
    auto known = std::make_shared<KnownKey>();
    if (refused_.contains(key)) known->refusal = absl::UnimplementedError("no");
    if (!Plant(Fault::kStaleStore, 20)) {
      for (const Variant& variant : variants_[key]) known->variants.push_back(variant.known);
    }
    looking_.erase(flight);
    Give(Input::kLooked, table_->StateOfFlight(flight), [&] { table_->Looked(flight, known); });
  });
}

size_t World::AtWork(bool gpu) const {
  return static_cast<size_t>(std::count_if(tasks_.begin(), tasks_.end(), [gpu](const auto& task) {
    return (task.second.task.kind == TaskQueue::Kind::kTune) == gpu;
  }));
}

void World::Start(TaskId id, FlightId flight, FlightRequestPtr request, const FlightTask& task) {
  ++outcome_.events;
  tasks_[id] = {flight, task};
  const bool tunes = task.kind == TaskQueue::Kind::kTune;
  if (flight == 0) {
    At(draw_.Upto(milliseconds(6)), [this, id] { EndTask(id); });
    return;
  }
  CheckStart(flight, *request, task);
  if (!compiles_.contains(flight)) CheckFirstStart(flight, *request);
  Compile& compile = compiles_[flight];
  if (compile.stopped || compile.told) Fail("a task starts of a flight that was stopped");
  compile.request = std::move(request);
  ++compile.at_work;
  const int steps = draw_.Below(3);
  for (int i = 0; i < steps; ++i) At(draw_.Upto(milliseconds(12)), [this, flight] { Progresses(flight); });
  if (tunes && draw_.Chance(60)) At(draw_.Upto(milliseconds(8)), [this, id, flight] { Asks(id, flight); });
  const milliseconds least(tunes ? 8 : 2), more(tunes ? 20 : task.kind == TaskQueue::Kind::kPlan ? 16 : 8);
  At(least + draw_.Upto(more), [this, id] { EndTask(id); });
}

void World::CheckStart(FlightId flight, const FlightRequest& request, const FlightTask& task) {
  const std::string key = request.compile_key.substr(0, request.compile_key.find('+'));
  if (request.graph == nullptr || *request.graph != key) Fail("a task starts without its graph");
  const bool wanted = std::any_of(active_.begin(), active_.end(), [&](const SimCaller* caller) {
    return !caller->ended && !caller->cancelled && caller->deadline > clock_.now &&
           table_->FlightOfCall(caller->id) == flight;
  });
  if (!wanted) Fail("a task starts that nobody waits for any more");
  const bool urgent = urgent_.erase({flight, task.number}) > 0;
  if (!urgent && !urgent_.empty() && task.kind != TaskQueue::Kind::kTune)
    Fail("a leased GPU waits for a worker that does something else");
}

// The flights that hold a place.
std::set<FlightId> World::Placed() const {
  std::set<FlightId> placed;
  for (const auto& [flight, compile] : compiles_) {
    if (!compile.told) placed.insert(flight);
  }
  for (const auto& [flight, variant] : storing_) placed.insert(flight);
  for (const SimCaller* caller : active_) {
    const FlightId flight = table_->FlightOfCall(caller->id);
    const State state = table_->StateOfFlight(flight);
    if (state == State::kQueued || state == State::kUploading) placed.insert(flight);
  }
  return placed;
}

uint64_t World::BytesOfGraphs() const {
  uint64_t bytes = 0;
  for (const FlightId flight : Placed()) {
    const auto key = keys_of_flights_.find(flight);
    bytes += key == keys_of_flights_.end() ? 0 : BytesOf(key->second);  // of one that comes just now
  }
  return bytes;
}

uint64_t World::BytesHeld() const {
  uint64_t bytes = BytesOfGraphs();
  for (const FlightId flight : Placed()) {
    const auto held = held_bytes_.find(flight);
    bytes += held == held_bytes_.end() ? 0 : held->second;
  }
  return bytes;
}

// What is held comes to no more than may be, or nothing has begun.
bool World::MayBegin() const {
  const bool begun = !storing_.empty() || std::any_of(compiles_.begin(), compiles_.end(),
                                                      [](const auto& of) { return !of.second.told; });
  return !begun || BytesHeld() <= options_.graphs_bytes_max;
}

void World::CheckFirstStart(FlightId flight, const FlightRequest& request) {
  ++outcome_.compiles;
  if (!MayBegin()) Fail("a compile begins though others hold more than may be");
  const std::string key = request.compile_key.substr(0, request.compile_key.find('+'));
  if (!request.debug) {
    for (const auto& [other, compile] : compiles_) {
      if (!compile.stopped && !compile.over && !compile.request->debug && keys_of_flights_[other] == key) {
        Fail(absl::StrCat("a second compile of ", key, " in one epoch: another runs"));
      }
    }
    for (const auto& [other, stored] : storing_) {
      if (keys_of_flights_[other] == key && !debug_flights_.contains(other))
        Fail(absl::StrCat("a second compile of ", key, ": one is being stored"));
    }
    for (const Variant& variant : variants_[key]) {
      if (!variant.by_debug && GuardsHold(variant.known.guards, request.hints)) {
        Fail(absl::StrCat("a second compile of ", key, " in one epoch: the store had what fits"));
      }
    }
  }
  keys_of_flights_[flight] = key;
  if (request.debug) debug_flights_.insert(flight);
}

void World::Stop(FlightId flight) {
  ++outcome_.events;
  const auto found = compiles_.find(flight);
  if (found == compiles_.end() || found->second.stopped) {
    Fail("a flight is stopped that does not run");
    return;
  }
  Compile& compile = found->second;
  compile.stopped = true;
  std::erase_if(urgent_, [flight](const auto& asked) { return asked.first == flight; });
  for (const auto& [id, task] : tasks_) {
    if (task.flight == flight && draw_.Chance(60))
      At(draw_.Upto(milliseconds(5)), [this, id = id] { EndTask(id); });
  }
  if (compile.at_work == 0) compiles_.erase(found);
}

void World::Progresses(FlightId flight) {
  const auto found = compiles_.find(flight);
  if (found == compiles_.end() || found->second.told) return;
  v1::CompileEvent event;
  event.mutable_emitted()->set_done(1);
  Give(Input::kProgress, table_->StateOfFlight(flight),
       [&] { table_->Progress(flight, "emitting", std::make_shared<const FlightEvent>(std::move(event))); });
}

// A GPU that is leased needs something of a worker.
void World::Asks(TaskId tuning, FlightId flight) {
  if (!tasks_.contains(tuning)) return;
  Compile& compile = compiles_.at(flight);
  FlightTask task = NewTask(compile, Role::kUrgent);
  task.urgent = !Plant(Fault::kNotUrgent, 50);
  if (!compile.stopped && !compile.over) {
    urgent_.insert({flight, task.number});
    ++compile.urgent_left;
  }
  Give(Input::kAsked, table_->StateOfFlight(flight), [&] { table_->Asked(flight, {task}); });
}

void World::EndTask(TaskId id) {
  const auto found = tasks_.find(id);
  if (found == tasks_.end()) return;
  const Task task = found->second;
  if (task.flight == 0) {
    tasks_.erase(found);
    Give(Input::kEnded, State::kNone, [&] { table_->Ended(id, 0.004, true); });
    return;
  }
  Compile& compile = compiles_.at(task.flight);
  if (task.task.kind == TaskQueue::Kind::kTune && compile.urgent_left > 0 && !compile.stopped) {
    At(milliseconds(1), [this, id] { EndTask(id); });
    return;
  }
  tasks_.erase(found);
  const bool crashed =
      !compile.stopped && !task.task.urgent && task.task.kind != TaskQueue::Kind::kTune && draw_.Chance(4);
  if (compile.stopped && Plant(Fault::kLeakedSlot, 30)) return;
  const auto ended = [this, id, flight = task.flight, crashed] {
    Give(Input::kEnded, table_->StateOfFlight(flight), [&] { table_->Ended(id, 0.008, !crashed); });
  };
  At(draw_.Upto(milliseconds(2)), [this, task, crashed] { Advance(task.flight, task.task.number, crashed); });
  if (task.task.number == 0 && Plant(Fault::kHeldWorker, 100)) {
    At(milliseconds(30), ended);
  } else {
    ended();
  }
}

// What a task has brought is worked on, and the table told: of several at a time in any order.
void World::Advance(FlightId flight, uint64_t number, bool crashed) {
  Compile& compile = compiles_.at(flight);
  FlightNext next;
  if (!compile.over && (!compile.stopped || draw_.Chance(30)))
    next = NextOf(compile, flight, number, crashed);
  if (!crashed) compile.held_bytes += static_cast<uint64_t>(draw_.Below(kAnswerBytesMax));
  next.held_bytes = compile.held_bytes;
  compile.over = compile.over || next.outcome.has_value();
  compile.made = compile.made || (next.outcome.has_value() && next.outcome->ok());
  if (draw_.Chance(30)) {
    At(draw_.Upto(milliseconds(2)), [this, flight, next = std::move(next)] { TakeIn(flight, next); });
  } else {
    TakeIn(flight, next);
  }
}

void World::TakeIn(FlightId flight, FlightNext next) {
  Compile& compile = compiles_.at(flight);
  --compile.at_work;
  if (!compile.stopped && Plant(Fault::kLostEnd, 5)) return;
  const State state = table_->StateOfFlight(flight);
  uint64_t& held = held_bytes_[flight];
  held = std::max(held, next.held_bytes);
  if (Plant(Fault::kUntold, 50)) next.held_bytes = 0;
  compile.told = compile.told || (!compile.stopped && next.outcome.has_value() && next.outcome->ok());
  // One that has failed is stopped by the table.
  if (compile.at_work == 0 && (compile.stopped || compile.made)) compiles_.erase(flight);
  const bool over = next.outcome.has_value();
  Give(!over                ? Input::kAdvanced
       : next.outcome->ok() ? Input::kCompiled
                            : Input::kRefused,
       state, [&] { table_->Advanced(flight, next); });
}

std::shared_ptr<const Artifact> World::Make(const FlightRequest& request, FlightId flight) {
  const int size = static_cast<int>(request.hints.values(0));
  const int first = size / 10 * 10;
  auto artifact = std::make_shared<Artifact>();
  artifact->compile_key = request.compile_key;
  artifact->variant_id = absl::StrCat("v", flight);
  artifact->guards = NatureOf(*request.graph) == Nature::kContradictory ? RangeOf(size + 1, size + 9)
                                                                        : RangeOf(first, first + 9);
  v1::Manifest manifest;
  manifest.set_request_key(*request.graph);
  manifest.set_variant_id(artifact->variant_id);
  *manifest.mutable_guards() = artifact->guards;
  artifact->signed_manifest.set_manifest(manifest.SerializeAsString());
  return artifact;
}

FlightTask World::NewTask(Compile& compile, Role role) {
  FlightTask task;
  task.kind = role == Role::kTune    ? TaskQueue::Kind::kTune
              : role == Role::kPlans ? TaskQueue::Kind::kPlan
                                     : TaskQueue::Kind::kEmit;
  task.number = ++compile.last_number;
  compile.roles[task.number] = role;
  return task;
}

FlightNext World::NextOf(Compile& compile, FlightId flight, uint64_t number, bool crashed) {
  FlightNext next;
  const Role role = compile.roles[number];
  if (crashed && draw_.Chance(70)) {
    FlightTask again = NewTask(compile, number == 0 ? Role::kPlans : role);
    again.number = number;
    next.tasks.push_back(again);
    return next;
  }
  if (crashed || draw_.Chance(2)) {
    next.outcome = absl::FailedPreconditionError("brought down two workers");
    return next;
  }
  switch (role) {
    case Role::kPlan:
      compile.tunes = draw_.Chance(30);
      if (compile.tunes)
        next.tasks.push_back(NewTask(compile, draw_.Chance(40) ? Role::kPlans : Role::kTune));
      AddEmits(compile, draw_.Below(4), &next);
      break;
    case Role::kPlans: next.tasks.push_back(NewTask(compile, Role::kTune)); break;
    case Role::kUrgent: --compile.urgent_left; return next;
    case Role::kEmit: --compile.emits_left; break;
    case Role::kTune:
      compile.tunes = false;
      compile.again = draw_.Chance(50);
      break;
  }
  if (compile.tunes || compile.emits_left > 0) return next;
  // Kernels whose schedules are known now.
  if (std::exchange(compile.again, false)) AddEmits(compile, 1 + draw_.Below(2), &next);
  if (compile.emits_left == 0) next.outcome = OutcomeOf(compile, flight);
  return next;
}

void World::AddEmits(Compile& compile, int emits, FlightNext* next) {
  compile.emits_left += emits;
  for (int i = 0; i < emits; ++i) next->tasks.push_back(NewTask(compile, Role::kEmit));
}

absl::StatusOr<std::shared_ptr<const Artifact>> World::OutcomeOf(const Compile& compile, FlightId flight) {
  const std::string key = keys_of_flights_[flight];
  if (NatureOf(key) == Nature::kRefused) {
    refused_.insert(key);
    return absl::UnimplementedError("no");
  }
  if (draw_.Chance(8)) return absl::DeadlineExceededError("the planning took too long");
  return Make(*compile.request, flight);
}

void World::Write(FlightId flight, std::shared_ptr<const Artifact> artifact) {
  ++outcome_.events;
  storing_[flight] = artifact->variant_id;
  const bool debug = debug_flights_.contains(flight);
  At(draw_.Upto(milliseconds(draw_.Chance(30) ? 40 : 4)), [this, flight, artifact, debug] {
    absl::Status stored =
        draw_.Chance(15) ? absl::ResourceExhaustedError("the disk is full") : absl::OkStatus();
    // Memory keeps what the disk refuses.
    Variant variant;
    variant.known.variant_id = artifact->variant_id;
    variant.known.guards = artifact->guards;
    variant.known.reply = std::make_shared<const std::string>(HitReply(artifact->signed_manifest));
    variant.known.durable = stored.ok();
    variant.by_debug = debug;
    variants_[keys_of_flights_[flight]].push_back(variant);
    if (stored.ok()) ever_durable_.insert(artifact->variant_id);
    storing_.erase(flight);
    if (Plant(Fault::kFalseDurable, 50)) stored = absl::OkStatus();
    Give(stored.ok() ? Input::kStored : Input::kNotStored, table_->StateOfFlight(flight),
         [&] { table_->Stored(flight, stored); });
  });
}

// ---- What callers hear -----------------------------------------------------------------------

void World::Asked(SimCaller& caller, Subscriber::Upload wanted) {
  ++outcome_.events;
  if (caller.cancelled || caller.ended) Fail("a caller is asked for a graph who is not there");
  if (wanted == Subscriber::Upload::kNever) {
    if (caller.told_never) Fail("a caller is told twice to keep its graph");
    caller.told_never = true;
    return;
  }
  if (caller.asked || caller.told_never) Fail("a caller is asked twice for its graph");
  caller.asked = true;
  last_asked_[table_->FlightOfCall(caller.id)] = clock_.now;
  // Some are slow, so that another is asked, and some fall silent until the transport cuts them off.
  const CallId id = caller.id;
  const int kind = draw_.Below(100);
  const microseconds delay = kind < 8    ? microseconds(milliseconds(250))
                             : kind < 20 ? milliseconds(20) + draw_.Upto(milliseconds(130))
                                         : draw_.Upto(milliseconds(6));
  At(delay, [this, id, kind] { Uploads(*callers_[id - 1], kind < 8 || draw_.Chance(kind < 20 ? 50 : 12)); });
}

bool World::IsStored(const std::string& key, const std::string& variant_id) {
  const std::vector<Variant>& variants = variants_[key];
  return std::any_of(variants.begin(), variants.end(),
                     [&](const Variant& variant) { return variant.known.variant_id == variant_id; });
}

void World::Heard(SimCaller& caller, const v1::CompileEvent& event) {
  ++outcome_.events;
  if (caller.ended) Fail(absl::StrCat("caller ", caller.id, " is told something after its end"));
  if (caller.cancelled) Fail(absl::StrCat("caller ", caller.id, " is told something after it left"));
  if (event.has_queued()) {
    jobs_.push_back(absl::StrCat(event.queued().job_id(), " ", caller.key));
    if (jobs_.size() > 6) jobs_.erase(jobs_.begin());
  }
  if (event.has_failed()) ++caller.answers;
  if (!event.has_done()) return;
  const v1::CompileEvent::Done& done = event.done();
  v1::Manifest manifest;
  manifest.ParseFromString(done.manifest().manifest());
  if (done.has_manifest()) {
    ++caller.answers;
    if (manifest.request_key() != caller.key) Fail("a caller gets the program of another key");
    const int size = Plant(Fault::kDrawsForOther, 20) ? caller.size + 10 : caller.size;
    if (!GuardsHold(manifest.guards(), HintsOf(size))) Fail("a caller gets a program that does not fit");
    if (done.durable()) ++outcome_.hits;
    if (done.durable() && !IsStored(caller.key, manifest.variant_id())) {
      Fail(absl::StrCat("caller ", caller.id, " is sent to what has been evicted"));
    }
    if (done.durable() && !ever_durable_.contains(manifest.variant_id())) {
      Fail("durable is said of what the store never took");
    }
  } else if (done.durable()) {
    const FlightId flight = table_->FlightOfCall(caller.id);
    if (!ever_durable_.contains(absl::StrCat("v", flight)))
      Fail("durable is said of what the store never took");
  }
  if (Plant(Fault::kTwoAnswers, 5)) Heard(caller, event);
}

void World::Ended(SimCaller& caller, const absl::Status& status) {
  ++outcome_.events;
  if (caller.ended) Fail(absl::StrCat("caller ", caller.id, " ends twice"));
  if (caller.cancelled) Fail(absl::StrCat("caller ", caller.id, " is told something after it left"));
  caller.ended = true;
  if (status.ok() && caller.answers != 1) {
    Fail(absl::StrCat("caller ", caller.id, " got ", caller.answers, " answers"));
  }
  if (absl::IsDeadlineExceeded(status) && clock_.now < caller.deadline) Fail("a deadline before its time");
  if (absl::IsResourceExhausted(status)) CheckRefusal(caller, status);
}

// ---- What must hold --------------------------------------------------------------------------

// Somebody has been asked, lately unless there is nobody else.
bool World::UploadIsComing(FlightId flight) {
  const auto has = [&](bool asked) {
    return std::any_of(active_.begin(), active_.end(), [&](const SimCaller* caller) {
      return !caller->attached && caller->asked == asked && table_->FlightOfCall(caller->id) == flight;
    });
  };
  return has(true) &&
         (!has(false) || clock_.now - kTimerLate <= last_asked_[flight] + options_.upload_patience);
}

bool World::HasSomethingComing(FlightId flight) {
  switch (table_->StateOfFlight(flight)) {
    case State::kLooking: return looking_.contains(flight);
    case State::kQueued: return AtWork(/*gpu=*/false) >= options_.tasks.workers || !MayBegin();
    case State::kRunning: return compiles_.contains(flight) && compiles_.at(flight).at_work > 0;
    case State::kWaiting:
      return compiles_.at(flight).at_work == 0 &&
             (AtWork(/*gpu=*/false) >= options_.tasks.workers || AtWork(/*gpu=*/true) >= options_.tasks.gpus);
    case State::kStoring: return storing_.contains(flight);
    case State::kUploading: return UploadIsComing(flight);
    case State::kNone:
    case State::kDying: return false;
  }
  return false;
}

void World::CheckRefusal(const SimCaller& caller, const absl::Status& status) {
  if (absl::StrContains(status.message(), "longer")) {
    ++outcome_.refused_early;
    if (caller.deadline == MonotonicTime::max()) Fail("a caller is refused that would wait for ever");
    if (table_->tasks().waiting_for_workers() == 0) Fail("a caller is refused for a queue that is empty");
    if (!PushbackOf(status).has_value()) Fail("a refusal does not say when to come again");
    return;
  }
  const bool places = table_->places() >= options_.tasks.workers + options_.queue_max;
  if (!places && table_->graphs_bytes() + kBytesMax <= options_.graphs_bytes_max)
    Fail("a caller is refused though there is a place");
  if (!PushbackOf(status).has_value()) Fail("a refusal does not say when to come again");
  // Flights that hold a place, and those of them that could give it to another tenant.
  std::set<FlightId> placed = Placed(), waiting;
  for (const SimCaller* other : active_) {
    const FlightId flight = table_->FlightOfCall(other->id);
    const State state = table_->StateOfFlight(flight);
    if (state == State::kQueued || state == State::kUploading || state == State::kWaiting)
      waiting.insert(flight);
  }
  const auto weight = [places](const std::string& key) { return places ? 1 : BytesOf(key); };
  std::map<std::string, uint64_t> held;
  std::set<std::string> could_give;
  placed.insert(waiting.begin(), waiting.end());
  for (const FlightId flight : placed) {
    held[TenantOf(keys_of_flights_[flight])] +=
        weight(keys_of_flights_[flight]) + (places ? 0 : held_bytes_[flight]);
  }
  for (const FlightId flight : waiting) could_give.insert(TenantOf(keys_of_flights_[flight]));
  for (const std::string& tenant : could_give) {
    if (held[tenant] > held[TenantOf(caller.key)] + weight(caller.key))
      Fail("a tenant is refused for one that holds more places or bytes");
  }
}

void World::CheckCall(const SimCaller& caller) {
  const FlightId flight = table_->FlightOfCall(caller.id);
  if (caller.ended || caller.cancelled) {
    if (flight != 0) Fail(absl::StrCat("caller ", caller.id, " is gone, and still waits"));
    return;
  }
  if (caller.deadline < clock_.now - kTimerLate)
    Fail(absl::StrCat("caller ", caller.id, " waits beyond its deadline"));
  if (!HasSomethingComing(flight)) {
    Fail(absl::StrCat("caller ", caller.id, " waits for the dead: a flight that is ",
                      FlightStateName(table_->StateOfFlight(flight))));
  }
}

// Who works is what the table believes, and nobody idles while there is something to do.
void World::CheckSlots() {
  const TaskQueue& tasks = table_->tasks();
  const size_t workers = AtWork(/*gpu=*/false), gpus = AtWork(/*gpu=*/true);
  if (workers > options_.tasks.workers || gpus > options_.tasks.gpus) Fail("more work than there are slots");
  if (workers < options_.tasks.workers && tasks.waiting_for_workers() > (MayBegin() ? 0 : table_->queued()))
    Fail("a worker idles while a task waits for one");
  if (gpus < options_.tasks.gpus && tasks.waiting_for_gpus() > 0)
    Fail("a GPU idles while a task waits for one");
  if (tasks.workers_busy() != workers || tasks.gpus_busy() != gpus) {
    Fail(absl::StrCat("a slot leaks: ", tasks.workers_busy(), " workers and ", tasks.gpus_busy(),
                      " GPUs taken, ", workers, " and ", gpus, " at work"));
  }
}

void World::Check() {
  if (!outcome_.violation.empty()) return;
  std::set<FlightId> queued, uploading;
  for (const SimCaller* caller : active_) {
    CheckCall(*caller);
    const FlightId flight = table_->FlightOfCall(caller->id);
    if (table_->StateOfFlight(flight) == State::kQueued) queued.insert(flight);
    if (table_->StateOfFlight(flight) == State::kUploading) uploading.insert(flight);
  }
  std::erase_if(active_, [](const SimCaller* caller) { return caller->ended || caller->cancelled; });
  CheckSlots();
  const size_t compiling =
      std::count_if(compiles_.begin(), compiles_.end(), [](const auto& of) { return !of.second.told; });
  if (table_->begun() != compiling + storing_.size()) {
    Fail(absl::StrCat("a place leaks: ", table_->begun(), " flights have begun, ", compiling,
                      " are compiled, ", storing_.size(), " stored"));
  }
  if (table_->queued() != queued.size()) Fail("a place leaks: a flight is queued for nobody");
  if (table_->places() != table_->begun() + queued.size() + uploading.size()) {
    Fail(absl::StrCat("a place leaks: ", table_->places(), " taken"));
  }
  if (const uint64_t bytes = BytesHeld(); table_->graphs_bytes() != bytes)
    Fail(absl::StrCat("bytes leak: ", table_->graphs_bytes(), " held, ", bytes, " there"));
  if (BytesOfGraphs() > options_.graphs_bytes_max) Fail("more bytes of graphs are held than there may be");
}

void World::CheckAtRest() {
  for (const auto& caller : callers_) {
    if (!caller->ended && !caller->cancelled)
      Fail(absl::StrCat("caller ", caller->id, " was never answered"));
  }
  if (table_->calls() + table_->flights() + table_->places() + table_->begun() + table_->graphs_bytes() +
          table_->tasks().waiting_for_workers() + table_->tasks().waiting_for_gpus() + AtWork(false) +
          AtWork(true) !=
      0) {
    Fail("something is left when all is over");
  }
  if (table_->NextTick().has_value()) Fail("a timer is left when all is over");
}

}  // namespace

const char* InputName(Input input) {
  static constexpr const char* kNames[] = {"compile", "debug",      "attach",   "uploaded", "upload-failed",
                                           "cancel",  "looked",     "progress", "ended",    "advanced",
                                           "asked",   "compiled",   "refused",  "chore",    "withdraw",
                                           "stored",  "not-stored", "tick"};
  return kNames[static_cast<int>(input)];
}

const char* FaultName(Fault fault) {
  static constexpr const char* kNames[] = {
      "none",           "second flight", "two answers",  "lost end",          "leaked slot", "false durable",
      "deaf to cancel", "late timer",    "stale store",  "another's variant", "one tenant",  "held worker",
      "no deadline",    "wall clock",    "untold plans", "not urgent"};
  return kNames[static_cast<int>(fault)];
}

Outcome Simulate(uint64_t seed, Fault fault, Coverage* coverage) {
  return World(seed, fault, coverage).Run();
}

}  // namespace kiln::sim
