#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/graph/guards.h"
#include "tests/sim/flight_world.h"

namespace kiln::sim {
namespace {

constexpr int kAnswerBytesMax = 8;  // of a worker

}  // namespace

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
    // For who was lost nobody looks at the clock but the timer.
    const MonotonicTime until = caller->deadline + (caller->lost ? kTimerLate : milliseconds(0));
    return !caller->ended && !caller->cancelled && until > clock_.now &&
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

// While its flight waits for uploads, that one's place is theirs.
bool World::IsCharged(const SimCaller& unpacked) const { return StateOf(unpacked) != State::kUploading; }

uint64_t World::BytesHeld() const {
  uint64_t bytes = BytesOfGraphs();
  for (const SimCaller* unpacked : unpacking_) bytes += IsCharged(*unpacked) ? kUploadBytes : 0;
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

}  // namespace kiln::sim
