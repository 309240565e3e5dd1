#include "tests/sim/flight_world.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compiler/graph/guards.h"

namespace kiln::sim {
namespace {

constexpr int kRequests = 240;
constexpr absl::Duration kWallJump = absl::Seconds(1'000'000);
constexpr int kSizes = 60;  // hints are below; a variant fits a range of ten

}  // namespace

Nature NatureOf(const std::string& key) {
  const int number = std::stoi(key.substr(1));
  if (number % 7 == 5) return Nature::kRefused;
  if (number % 7 == 6) return Nature::kContradictory;
  return number % 2 == 0 ? Nature::kGood : Nature::kGoodToo;
}

std::string TenantOf(const std::string& key) {
  const int number = std::stoi(key.substr(1));
  return number < kKeys / 2 ? "greedy" : number % 2 == 0 ? "even" : "odd";
}

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
  options_.lost_patience = milliseconds(60);
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
    At(draw_.Upto(milliseconds(80)), [this, caller] { Departs(*caller); });
  }
  if (!jobs_.empty() && draw_.Chance(12)) {
    TryAttach(*caller);
  } else {
    AskForKey(*caller);
  }
}

State World::StateOf(const SimCaller& caller) const {
  return table_->StateOfFlight(table_->FlightOfCall(caller.id));
}

// It leaves, or its connection breaks.
void World::Departs(SimCaller& caller) {
  if (caller.cancelled) return;
  const State state = StateOf(caller);
  const bool breaks = draw_.Chance(40), deaf = !caller.ended && Plant(Fault::kDeafToCancel, 50);
  if (deaf) {
    caller.cancelled = true;
  } else if (breaks) {
    Give(Input::kLost, state, [&] {
      table_->Cancel(caller.id, FlightTable::Gone::kLost);
      caller.lost = table_->FlightOfCall(caller.id) != 0;
      caller.cancelled = !caller.lost;
      if (caller.lost) caller.deadline = std::min(caller.deadline, clock_.now + options_.lost_patience);
    });
  } else {
    caller.cancelled = true;
    Give(Input::kCancel, state, [&] { table_->Cancel(caller.id); });
  }
}

void World::AskForKey(SimCaller& caller) {
  FlightRequest request;
  request.ns = "ns";
  request.caller.tenant = Plant(Fault::kOneTenant, 100) ? "all" : TenantOf(caller.key);
  request.caller.job = absl::StrCat("job", caller.id % 5);
  request.compile_key = caller.key;
  request.debug = caller.debug;
  request.bytes.all = BytesOf(caller.key);
  request.bytes.graph = kUploadsOfPlaceMax;
  if (Plant(Fault::kSecondFlight, 5)) request.compile_key += "+";
  FlightCall call;
  call.hints = HintsOf(caller.size);
  if (draw_.Chance(20)) call.work_class = Caller::Class::kBackground;
  call.upload_bytes = kUploadBytes;
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
  if (fails) {
    Give(Input::kUploadFailed, StateOf(caller),
         [&] { table_->Uploaded(caller.id, absl::InvalidArgumentError("graph_chunk: no zstd frame")); });
    return;
  }
  bool wanted = false;
  Give(Input::kUnpacks, StateOf(caller), [&] {
    wanted = table_->Unpacks(caller.id);
    if (wanted) unpacking_.insert(&caller);
  });
  if (!wanted) return;
  At(draw_.Upto(milliseconds(draw_.Chance(10) ? 60 : 2)), [this, id = caller.id] {
    const SimCaller& unpacked = *callers_[id - 1];
    Give(Input::kUploaded, StateOf(unpacked), [&] {
      unpacking_.erase(&unpacked);
      table_->Uploaded(id, std::make_shared<const std::string>(unpacked.key));
    });
  });
}

// ---- What callers hear -----------------------------------------------------------------------

void World::Asked(SimCaller& caller, Subscriber::Upload wanted) {
  ++outcome_.events;
  if (caller.lost || caller.cancelled || caller.ended) Fail("a caller is asked for a graph who is not there");
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
  if (caller.lost || caller.cancelled)
    Fail(absl::StrCat("caller ", caller.id, " is told something after it left"));
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
  if (caller.lost || caller.cancelled)
    Fail(absl::StrCat("caller ", caller.id, " is told something after it left"));
  caller.ended = true;
  if (status.ok() && caller.answers != 1) {
    Fail(absl::StrCat("caller ", caller.id, " got ", caller.answers, " answers"));
  }
  if (absl::IsDeadlineExceeded(status) && clock_.now < caller.deadline) Fail("a deadline before its time");
  if (absl::IsResourceExhausted(status)) CheckRefusal(caller, status);
}

}  // namespace kiln::sim
