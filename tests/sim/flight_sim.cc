#include "tests/sim/flight_sim.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/graph/guards.h"

namespace kiln::sim {
namespace {

using State = FlightTable::State;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int kRequests = 240;
constexpr int kKeys = 14;
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

class SimClock final : public Clock {
 public:
  MonotonicTime Now() const override { return now; }
  absl::Time WallNow() const override { return absl::FromChrono(std::chrono::system_clock::time_point{}); }
  MonotonicTime now{std::chrono::hours(1)};
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

constexpr uint64_t kBytesMax = 7;  // of a request
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
  void Start(FlightId flight, FlightRequestPtr request) override;
  void Stop(FlightId flight) override;
  void Look(FlightId flight, const std::string& compile_key) override;
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
  struct Task {
    FlightRequestPtr request;
    bool stopped = false;
  };

  void At(microseconds delay, std::function<void()> what);
  void Give(Input input, State state, const std::function<void()>& input_call);
  void Fail(std::string what);
  void Check();
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
  void Progresses(FlightId flight);
  void EndTask(FlightId flight);
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
  std::map<FlightId, Task> tasks_;      // with the workers
  std::map<FlightId, std::string> storing_;
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
  options_.runners = 1 + static_cast<size_t>(draw_.Below(4));
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
  const microseconds late = fault_ == Fault::kLateTimer ? microseconds(milliseconds(30)) : microseconds(0);
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
  if (draw_.Chance(20)) request.caller.work_class = Caller::Class::kBackground;
  request.compile_key = caller.key;
  request.debug = caller.debug;
  request.bytes = BytesOf(caller.key);
  if (Plant(Fault::kSecondFlight, 5)) request.compile_key += "+";
  FlightCall call;
  call.hints = HintsOf(caller.size);
  call.deadline = caller.deadline;
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

void World::Look(FlightId flight, const std::string& compile_key) {
  ++outcome_.events;
  const std::string key = compile_key.substr(0, compile_key.find('+'));
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

void World::Start(FlightId flight, FlightRequestPtr request) {
  ++outcome_.events;
  ++outcome_.compiles;
  const std::string key = request->compile_key.substr(0, request->compile_key.find('+'));
  if (request->graph == nullptr || *request->graph != key) Fail("a compile starts without its graph");
  if (!request->debug) {
    for (const auto& [other, task] : tasks_) {
      if (!task.stopped && !task.request->debug && keys_of_flights_[other] == key) {
        Fail(absl::StrCat("a second compile of ", key, " in one epoch: another runs"));
      }
    }
    for (const auto& [other, stored] : storing_) {
      if (keys_of_flights_[other] == key && !debug_flights_.contains(other))
        Fail(absl::StrCat("a second compile of ", key, ": one is being stored"));
    }
    for (const Variant& variant : variants_[key]) {
      if (!variant.by_debug && GuardsHold(variant.known.guards, request->hints)) {
        Fail(absl::StrCat("a second compile of ", key, " in one epoch: the store had what fits"));
      }
    }
  }
  keys_of_flights_[flight] = key;
  if (request->debug) debug_flights_.insert(flight);
  tasks_[flight] = Task{std::move(request), false};
  const int steps = draw_.Below(4);
  for (int i = 0; i < steps; ++i) At(draw_.Upto(milliseconds(12)), [this, flight] { Progresses(flight); });
  At(milliseconds(12) + draw_.Upto(milliseconds(30)), [this, flight] { EndTask(flight); });
}

void World::Stop(FlightId flight) {
  ++outcome_.events;
  const auto found = tasks_.find(flight);
  if (found == tasks_.end() || found->second.stopped) {
    Fail("a flight is stopped that does not run");
    return;
  }
  found->second.stopped = true;
  if (draw_.Chance(60)) At(draw_.Upto(milliseconds(5)), [this, flight] { EndTask(flight); });
}

void World::Progresses(FlightId flight) {
  if (!tasks_.contains(flight)) return;
  v1::CompileEvent event;
  event.mutable_emitted()->set_done(1);
  Give(Input::kProgress, table_->StateOfFlight(flight),
       [&] { table_->Progress(flight, "emitting", std::make_shared<const FlightEvent>(std::move(event))); });
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

void World::EndTask(FlightId flight) {
  const auto found = tasks_.find(flight);
  if (found == tasks_.end()) return;
  const Task task = found->second;
  tasks_.erase(found);
  const std::string key = keys_of_flights_[flight];
  absl::StatusOr<std::shared_ptr<const Artifact>> made = absl::CancelledError("nobody waits");
  if (!task.stopped || draw_.Chance(30)) {
    if (NatureOf(key) == Nature::kRefused) {
      made = absl::UnimplementedError("no");
      refused_.insert(key);
    } else if (draw_.Chance(8)) {
      made = absl::DeadlineExceededError("the planning took too long");
    } else {
      made = Make(*task.request, flight);
    }
  }
  if (task.stopped ? Plant(Fault::kLeakedSlot, 30) : Plant(Fault::kLostEnd, 5)) return;
  Give(made.ok() ? Input::kCompiled : Input::kRefused, table_->StateOfFlight(flight),
       [&] { table_->Compiled(flight, made, 0); });
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
  return has(true) && (!has(false) || clock_.now <= last_asked_[flight] + options_.upload_patience);
}

bool World::HasSomethingComing(FlightId flight) {
  switch (table_->StateOfFlight(flight)) {
    case State::kLooking: return looking_.contains(flight);
    case State::kQueued: return table_->running() >= options_.runners;
    case State::kRunning: return tasks_.contains(flight);
    case State::kStoring: return storing_.contains(flight);
    case State::kUploading: return UploadIsComing(flight);
    case State::kNone:
    case State::kDying: return false;
  }
  return false;
}

void World::CheckRefusal(const SimCaller& caller, const absl::Status& status) {
  const bool places = table_->places() >= options_.runners + options_.queue_max;
  if (!places && table_->graphs_bytes() + kBytesMax <= options_.graphs_bytes_max)
    Fail("a caller is refused though there is a place");
  if (!PushbackOf(status).has_value()) Fail("a refusal does not say when to come again");
  // Flights that hold a place, and those of them that could give it to another tenant.
  std::set<FlightId> placed, waiting;
  for (const auto& [flight, task] : tasks_) placed.insert(flight);
  for (const auto& [flight, variant] : storing_) placed.insert(flight);
  for (const SimCaller* other : active_) {
    const FlightId flight = table_->FlightOfCall(other->id);
    const State state = table_->StateOfFlight(flight);
    if (state == State::kQueued || state == State::kUploading) waiting.insert(flight);
  }
  const auto weight = [places](const std::string& key) { return places ? 1 : BytesOf(key); };
  std::map<std::string, uint64_t> held;
  std::set<std::string> could_give;
  placed.insert(waiting.begin(), waiting.end());
  for (const FlightId flight : placed)
    held[TenantOf(keys_of_flights_[flight])] += weight(keys_of_flights_[flight]);
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
  if (caller.deadline < clock_.now) Fail(absl::StrCat("caller ", caller.id, " waits beyond its deadline"));
  if (!HasSomethingComing(flight)) {
    Fail(absl::StrCat("caller ", caller.id, " waits for the dead: a flight that is ",
                      FlightStateName(table_->StateOfFlight(flight))));
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
  if (table_->running() > options_.runners) Fail("more flights run than there are runners");
  if (table_->running() != tasks_.size() + storing_.size()) {
    Fail(absl::StrCat("a slot leaks: ", table_->running(), " taken, ", tasks_.size() + storing_.size(),
                      " at work"));
  }
  if (table_->queued() != queued.size()) Fail("a place leaks: a flight is queued for nobody");
  if (table_->places() != table_->running() + queued.size() + uploading.size()) {
    Fail(absl::StrCat("a place leaks: ", table_->places(), " taken"));
  }
  uint64_t bytes = 0;
  for (const auto& [flight, task] : tasks_) bytes += BytesOf(keys_of_flights_[flight]);
  for (const auto& [flight, variant] : storing_) bytes += BytesOf(keys_of_flights_[flight]);
  for (const FlightId flight : queued) bytes += BytesOf(keys_of_flights_[flight]);
  for (const FlightId flight : uploading) bytes += BytesOf(keys_of_flights_[flight]);
  if (table_->graphs_bytes() != bytes)
    Fail(absl::StrCat("bytes leak: ", table_->graphs_bytes(), " held, ", bytes, " there"));
  if (bytes > options_.graphs_bytes_max) Fail("more bytes of graphs are held than there may be");
}

void World::CheckAtRest() {
  for (const auto& caller : callers_) {
    if (!caller->ended && !caller->cancelled)
      Fail(absl::StrCat("caller ", caller->id, " was never answered"));
  }
  if (table_->calls() + table_->flights() + table_->places() + table_->running() + table_->graphs_bytes() !=
      0) {
    Fail("something is left when all is over");
  }
  if (table_->NextTick().has_value()) Fail("a timer is left when all is over");
}

}  // namespace

const char* InputName(Input input) {
  static constexpr const char* kNames[] = {"compile", "debug",      "attach",   "uploaded", "upload-failed",
                                           "cancel",  "looked",     "progress", "compiled", "refused",
                                           "stored",  "not-stored", "tick"};
  return kNames[static_cast<int>(input)];
}

const char* FaultName(Fault fault) {
  static constexpr const char* kNames[] = {"none",        "second flight",     "two answers",    "lost end",
                                           "leaked slot", "false durable",     "deaf to cancel", "late timer",
                                           "stale store", "another's variant", "one tenant"};
  return kNames[static_cast<int>(fault)];
}

Outcome Simulate(uint64_t seed, Fault fault, Coverage* coverage) {
  return World(seed, fault, coverage).Run();
}

}  // namespace kiln::sim
