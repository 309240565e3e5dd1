// What a FlightTable does of itself, input by input; whole histories are in tests/sim.
#include "server/flight/flight_table.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/flight/refusals.h"

namespace kiln {
namespace {

struct StillClock final : public Clock {
  MonotonicTime Now() const override { return now; }
  absl::Time WallNow() const override { return absl::UnixEpoch(); }
  void Pass(std::chrono::seconds seconds) { now += seconds; }
  MonotonicTime now{std::chrono::hours(1)};
};

struct Listener final : public Subscriber {
  void Event(const FlightEventPtr& event) override {
    if (event->message().has_done()) served = true;
    if (event->message().has_failed()) failed = true;
  }
  void Graph(Upload wanted) override { asked = asked || wanted == Upload::kNow; }
  void End(const absl::Status& status) override { ended = status; }
  bool asked = false;
  bool served = false;
  bool failed = false;
  std::optional<absl::Status> ended;
};

// A key with one variant, which is not outdated, or is.
KnownKeyPtr KnownOf(bool outdated) {
  auto known = std::make_shared<KnownKey>();
  KnownVariant& variant = known->variants.emplace_back();
  v1::SignedManifest manifest;
  manifest.set_manifest(v1::Manifest().SerializeAsString());
  variant.reply = std::make_shared<const std::string>(HitReply(manifest));
  variant.durable = true;
  variant.outdated = outdated;
  return known;
}

struct Whose {
  std::string tenant = "red";
  Caller::Class work_class = Caller::Class::kInteractive;
  uint64_t upload_bytes = 0;
};

class FlightTableTest : public ::testing::Test, public Workers, public FlightStore {
 protected:
  explicit FlightTableTest(FlightClaims* claims = nullptr) {
    FlightTable::Options options;
    options.tasks.workers = 1;
    options.tasks.forwards = 1;
    options.graphs_bytes_max = 1000;
    options.callers_bytes_max = 1000;
    options.quotas["red"] = 500;
    options.new_job_id = [this] { return absl::StrCat("job ", ++jobs_); };
    table_ = std::make_unique<FlightTable>(std::move(options), &clock_, this, this, claims);
  }
  void Start(TaskId task, FlightId flight, FlightRequestPtr, const FlightTask& what) override {
    task_ = task;
    kind_ = what.kind;
    running_ = flight;
  }
  void Stop(FlightId) override {}
  void Look(FlightId flight, const FlightRequest&) override { looked_ = flight; }
  void Write(FlightId, std::shared_ptr<const Artifact>) override {}

  // Of a graph that it says has `graph_bytes`; the header has ten.
  std::shared_ptr<Listener> Compile(CallId id, const std::string& key, uint64_t graph_bytes) {
    return Compile(id, key, graph_bytes, {}, std::nullopt);
  }
  std::shared_ptr<Listener> Compile(CallId id, const std::string& key, uint64_t graph_bytes, Whose whose,
                                    std::optional<std::chrono::seconds> waits) {
    auto listener = std::make_shared<Listener>();
    FlightRequest request;
    request.ns = request.caller.tenant = whose.tenant;
    request.compile_key = key;
    request.bytes.all = 10 + graph_bytes;
    request.bytes.graph = graph_bytes;
    FlightCall call;
    call.subscriber = listener;
    call.work_class = whose.work_class;
    call.upload_bytes = whose.upload_bytes;
    if (waits.has_value()) call.deadline = clock_.Now() + *waits;
    table_->Compile(id, std::move(request), std::move(call));
    FindNothing();
    return listener;
  }
  void Upload(CallId id, size_t bytes) {
    table_->Uploaded(id, std::make_shared<const std::string>(bytes, 'x'));
    FindNothing();  // for who joined later than the first look
  }
  void FindNothing() {
    if (looked_ != 0) table_->Looked(std::exchange(looked_, 0), found_);
  }

  // A compile that is its plan's alone.
  void CompileIn(double seconds) {
    const FlightId flight = running_;
    table_->Ended(task_, seconds, /*typical=*/true);
    FlightNext next;
    next.outcome = std::make_shared<const Artifact>();
    table_->Advanced(flight, next);
    table_->Stored(flight, absl::OkStatus());
  }

  // Three tenants ask, and one worker has made two plans. The first was long, holds so much, and needs an
  // emit: whose task is next.
  CallId NextBesidePlanOf(uint64_t held_bytes) {
    for (const CallId call : {1, 2, 3}) {
      Compile(call, absl::StrCat("key ", call), 10, {absl::StrCat("tenant ", call)}, std::nullopt);
      Upload(call, 10);
    }
    table_->Ended(task_, 100, /*typical=*/true);
    EXPECT_EQ(running_, table_->FlightOfCall(2));
    FlightNext next;
    next.tasks.push_back({TaskQueue::Kind::kEmit, 1, false});
    next.held_bytes = held_bytes;
    table_->Advanced(table_->FlightOfCall(1), next);
    table_->Ended(task_, 1, /*typical=*/true);
    for (const CallId call : {1, 2, 3}) {
      if (running_ == table_->FlightOfCall(call)) return call;
    }
    return 0;
  }

  StillClock clock_;
  FlightId looked_ = 0;
  KnownKeyPtr found_ = std::make_shared<const KnownKey>();  // by each look
  TaskId task_ = 0;                                         // the last that was started, and its flight
  FlightId running_ = 0;
  TaskQueue::Kind kind_ = TaskQueue::Kind::kTune;
  int jobs_ = 0;
  std::unique_ptr<FlightTable> table_;
};

// Each of many who send a byte now and then may come to all that he has said.
TEST_F(FlightTableTest, AsksForNoUploadThatThereIsNoRoomFor) {
  const Whose slow = {.upload_bytes = 200};
  std::vector<std::shared_ptr<Listener>> callers;
  for (CallId call = 1; call <= 6; ++call) callers.push_back(Compile(call, "a", 1, slow, std::nullopt));
  const auto asked = [&] {
    return std::count_if(callers.begin(), callers.end(), [](const auto& caller) { return caller->asked; });
  };
  EXPECT_EQ(table_->graphs_bytes(), 10u + 200);
  for (int i = 0; i < 10; ++i) {
    clock_.Pass(std::chrono::seconds(5));
    table_->Tick();
  }
  EXPECT_EQ(asked(), 4);
  EXPECT_EQ(table_->graphs_bytes(), 10u + 4 * 200);
  // Others have what is left, and no more.
  EXPECT_FALSE(Compile(7, "b", 10, {.upload_bytes = 100}, std::nullopt)->ended.has_value());
  EXPECT_TRUE(Compile(8, "c", 10, {.upload_bytes = 100}, std::nullopt)->ended.has_value());
  table_->Cancel(7);
  // One that goes makes room for the next.
  table_->Cancel(2);
  EXPECT_EQ(table_->graphs_bytes(), 10u + 3 * 200);
  clock_.Pass(std::chrono::seconds(5));
  table_->Tick();
  EXPECT_EQ(asked(), 5);
  ASSERT_TRUE(callers[4]->asked);
  Upload(5, 100);
  EXPECT_EQ(table_->graphs_bytes(), 110u) << "the uploads of the others are not wanted any more";
  for (CallId call = 1; call <= 6; ++call) table_->Cancel(call);
  table_->Ended(task_, 1, /*typical=*/true);
  table_->Advanced(running_, {});
  EXPECT_EQ(table_->graphs_bytes(), 0u);
}

TEST_F(FlightTableTest, WhoseUploadThereIsNoRoomForIsToldWhenNobodyElseUploads) {
  Compile(1, "a", 700);
  Compile(2, "b", 10, {.upload_bytes = 50}, std::nullopt);
  const auto large = Compile(3, "b", 10, {.upload_bytes = 500}, std::nullopt);
  table_->Cancel(2);
  EXPECT_FALSE(large->asked);
  ASSERT_TRUE(large->ended.has_value());
  EXPECT_EQ(large->ended->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(table_->graphs_bytes(), 710u);
}

// What is unpacked is there, though its caller has left or somebody else's graph has come.
TEST_F(FlightTableTest, AnUploadIsChargedUntilItIsUnpackedWhoeverLeaves) {
  const Whose large = {.upload_bytes = 600};
  Compile(1, "a", 10, large, std::nullopt);
  EXPECT_EQ(table_->graphs_bytes(), 10u + 600);
  ASSERT_TRUE(table_->Unpacks(1));
  EXPECT_EQ(table_->graphs_bytes(), 10u + 600) << "it is charged once";
  table_->Cancel(1);
  EXPECT_EQ(table_->flights() + table_->places(), 0u);
  EXPECT_EQ(table_->graphs_bytes(), 600u);
  EXPECT_EQ(table_->Tenants().at("red").graphs_bytes, 600u);
  const auto refused = Compile(2, "b", 10, large, std::nullopt);
  ASSERT_TRUE(refused->ended.has_value());
  EXPECT_EQ(refused->ended->code(), absl::StatusCode::kResourceExhausted);
  Upload(1, 10);
  EXPECT_EQ(table_->graphs_bytes(), 0u);
  EXPECT_FALSE(table_->Tenants().contains("red"));
  EXPECT_FALSE(Compile(3, "b", 10, large, std::nullopt)->ended.has_value());
  table_->Cancel(3);  // the control: nothing is unpacked
  EXPECT_EQ(table_->graphs_bytes(), 0u);
}

TEST_F(FlightTableTest, WhatIsUnpackedForNobodyIsChargedBesideTheGraphThatCame) {
  const Whose slow = {.upload_bytes = 200};
  Compile(1, "a", 10, slow, std::chrono::seconds(60));
  Compile(2, "a", 10, slow, std::nullopt);
  clock_.Pass(std::chrono::seconds(5));
  table_->Tick();
  ASSERT_TRUE(table_->Unpacks(1));
  ASSERT_TRUE(table_->Unpacks(2));
  EXPECT_EQ(table_->graphs_bytes(), 10u + 2 * 200);
  Upload(2, 10);
  EXPECT_EQ(table_->graphs_bytes(), 20u + 200);
  EXPECT_FALSE(table_->Unpacks(1)) << "a graph is here";
  clock_.Pass(std::chrono::seconds(60));
  table_->Tick();  // its caller's time is over as well
  EXPECT_EQ(table_->graphs_bytes(), 20u + 200);
  table_->Uploaded(1, absl::InvalidArgumentError("no zstd frame"));
  EXPECT_EQ(table_->graphs_bytes(), 20u);
}

TEST_F(FlightTableTest, NothingIsUnpackedThatNobodyWants) {
  EXPECT_FALSE(table_->Unpacks(1)) << "no such call";
  Compile(1, "a", 10);
  Compile(2, "a", 10);
  EXPECT_FALSE(table_->Unpacks(2)) << "not asked to upload";
  table_->Cancel(1);
  EXPECT_FALSE(table_->Unpacks(1)) << "gone";
  EXPECT_TRUE(table_->Unpacks(2));
}

// While the store is asked, and of who joins, there is no place that would bound them.
TEST_F(FlightTableTest, WhatIsKeptOfCallersWithoutAPlaceIsBounded) {
  CallId last = 0;
  const auto compile = [&](const std::string& tenant, const std::string& key) {
    auto listener = std::make_shared<Listener>();
    FlightRequest request;
    request.ns = request.caller.tenant = tenant;
    request.compile_key = tenant + key;
    request.bytes.all = request.bytes.header = 60;
    FlightCall call;
    call.subscriber = listener;
    call.bytes = 40;
    table_->Compile(++last, std::move(request), std::move(call));
    return listener;
  };
  // One tenant has half of all, and leaves something to the next.
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(compile("red", absl::StrCat("key ", i))->ended.has_value()) << i;
  EXPECT_EQ(table_->callers_bytes(), 500u);
  const auto refused = compile("red", "one more");
  ASSERT_TRUE(refused->ended.has_value());
  EXPECT_EQ(refused->ended->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(PushbackOf(*refused->ended).has_value());
  EXPECT_FALSE(compile("blue", "a")->ended.has_value());
  // Who joins is kept too, without a header.
  EXPECT_FALSE(compile("blue", "a")->ended.has_value());
  EXPECT_EQ(table_->callers_bytes(), 640u);
  FlightCall call;
  call.bytes = 400;
  const auto attached = std::make_shared<Listener>();
  call.subscriber = attached;
  table_->Attach(++last, "blue", "job 6", std::move(call));
  ASSERT_TRUE(attached->ended.has_value());
  EXPECT_EQ(attached->ended->code(), absl::StatusCode::kResourceExhausted) << *attached->ended;
  for (CallId id = 1; id <= last; ++id) table_->Cancel(id);
  EXPECT_EQ(table_->callers_bytes(), 0u);
  // With a place the header is charged there.
  const auto placed = compile("red", "placed");
  FindNothing();
  EXPECT_EQ(table_->callers_bytes(), 40u);
  EXPECT_EQ(table_->graphs_bytes(), 60u);
  table_->Cancel(last);
  EXPECT_EQ(table_->callers_bytes() + table_->graphs_bytes(), 0u);
}

TEST_F(FlightTableTest, ChargesWhatIsUploadedWhateverTheFirstCallerSaid) {
  const auto liar = Compile(1, "a", 1), honest = Compile(2, "a", 600);
  EXPECT_EQ(table_->graphs_bytes(), 11u);
  ASSERT_TRUE(liar->asked);
  table_->Cancel(1);
  ASSERT_TRUE(honest->asked);
  Upload(2, 600);
  EXPECT_EQ(table_->graphs_bytes(), 610u);
  // Another of that kind would be more than there may be.
  Compile(3, "b", 1);
  const auto second = Compile(4, "b", 600);
  table_->Cancel(3);
  Upload(4, 600);
  ASSERT_TRUE(second->ended.has_value());
  EXPECT_EQ(second->ended->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(table_->graphs_bytes(), 610u);
}

TEST_F(FlightTableTest, ChargesWhatWasSaidOnce) {
  Compile(1, "a", 600);
  Upload(1, 600);
  EXPECT_EQ(table_->graphs_bytes(), 610u);
  table_->Cancel(1);
}

// ---- Whose connection broke ------------------------------------------------------------------

TEST_F(FlightTableTest, AFlightGoesOnForAWhileForWhoseConnectionBroke) {
  const auto lost = Compile(1, "a", 10);
  Upload(1, 10);
  table_->Cancel(1, FlightTable::Gone::kLost);
  table_->Cancel(1);  // as each call ends
  EXPECT_EQ(table_->StateOfFlight(1), FlightTable::State::kRunning);
  // He is back, and leaves.
  FlightCall back;
  auto listener = std::make_shared<Listener>();
  back.subscriber = listener;
  table_->Attach(2, "red", "job 1", std::move(back));
  EXPECT_FALSE(listener->ended.has_value());
  EXPECT_EQ(table_->calls(), 1) << "one of him";
  CompileIn(1);
  EXPECT_TRUE(listener->ended.has_value() && listener->ended->ok());
  EXPECT_FALSE(lost->ended.has_value()) << "nobody is told there";
  EXPECT_EQ(table_->flights() + table_->calls(), 0);
}

// Whatever others do meanwhile: one leaves, one is lost as well, one joins and leaves.
TEST_F(FlightTableTest, AFlightGoesOnForWhoWasLostWhileOthersCome) {
  Compile(1, "a", 10);
  Upload(1, 10);
  Compile(2, "a", 10);
  table_->Cancel(1, FlightTable::Gone::kLost);
  table_->Cancel(2);
  EXPECT_EQ(table_->StateOfFlight(1), FlightTable::State::kRunning);
  Compile(3, "a", 10);
  table_->Cancel(3, FlightTable::Gone::kLost);
  Compile(4, "a", 10);
  table_->Cancel(4);
  EXPECT_EQ(table_->StateOfFlight(1), FlightTable::State::kRunning);
  EXPECT_EQ(table_->calls(), 2) << "two may come again";
  // The control: nobody is lost any more.
  clock_.Pass(std::chrono::seconds(30));
  table_->Tick();
  EXPECT_EQ(table_->StateOfFlight(1), FlightTable::State::kDying);
}

TEST_F(FlightTableTest, ADaemonThatStopsAwaitsNobody) {
  for (const CallId call : {1, 2}) {
    Compile(call, absl::StrCat("key ", call), 10);
    Upload(call, 10);
  }
  table_->Cancel(2, FlightTable::Gone::kLost);
  EXPECT_EQ(table_->flights(), 2);
  table_->Drain();
  EXPECT_EQ(table_->flights(), 1) << "the control: who is there is waited for";
  EXPECT_EQ(table_->calls(), 1);
}

TEST_F(FlightTableTest, WhoDoesNotComeBackIsForgotten) {
  Compile(1, "a", 10);
  Upload(1, 10);
  table_->Cancel(1, FlightTable::Gone::kLost);
  const MonotonicTime until = *table_->NextTick();
  EXPECT_EQ(until, clock_.now + std::chrono::seconds(30));
  clock_.now = until - std::chrono::milliseconds(1);
  table_->Tick();
  EXPECT_EQ(table_->StateOfFlight(1), FlightTable::State::kRunning);
  clock_.now = until;
  table_->Tick();
  EXPECT_EQ(table_->StateOfFlight(1), FlightTable::State::kDying);
  EXPECT_EQ(table_->calls(), 0);
}

TEST_F(FlightTableTest, ACompileThatEndsMeanwhileIsStored) {
  Compile(1, "a", 10);
  Upload(1, 10);
  table_->Cancel(1, FlightTable::Gone::kLost);
  CompileIn(1);  // which has it written
  EXPECT_EQ(table_->flights() + table_->calls(), 0) << "nobody goes on in a next flight";
}

// The controls: no deadline is put off, and there has to be something to come back to.
TEST_F(FlightTableTest, NobodyIsAwaitedLongerThanHeWaits) {
  Compile(1, "a", 10, {}, std::chrono::seconds(7));
  Upload(1, 10);
  table_->Cancel(1, FlightTable::Gone::kLost);
  EXPECT_EQ(*table_->NextTick(), clock_.now + std::chrono::seconds(7));
}

TEST_F(FlightTableTest, WhoLeavesOrHasNotUploadedIsNotAwaited) {
  Compile(1, "left", 10);
  Upload(1, 10);
  table_->Cancel(1);
  EXPECT_EQ(table_->StateOfFlight(1), FlightTable::State::kDying);
  const auto half = Compile(2, "half", 10);
  EXPECT_TRUE(half->asked);
  table_->Cancel(2, FlightTable::Gone::kLost);
  EXPECT_EQ(table_->FlightOfKey("half"), 0u);
}

// What a tenant's programs of a class took is said of these alone.
TEST_F(FlightTableTest, LongProgramsOfOneRefuseNoShortOnesOfAnother) {
  const std::chrono::seconds waits(10);
  const Whose background{"red", Caller::Class::kBackground};
  Compile(1, "first", 10, background, std::nullopt);
  Upload(1, 10);
  CompileIn(100);
  // One at work and one that waits: there is a queue.
  for (const CallId call : {2, 3}) {
    Compile(call, absl::StrCat("key ", call), 10, background, std::nullopt);
    Upload(call, 10);
  }
  const auto refused = [&](CallId call, const Whose& whose) {
    const auto listener = Compile(call, absl::StrCat("key ", call), 10, whose, waits);
    return listener->ended.has_value() && absl::IsResourceExhausted(*listener->ended);
  };
  EXPECT_TRUE(refused(4, background));
  EXPECT_FALSE(refused(5, {"red", Caller::Class::kInteractive}));
  EXPECT_FALSE(refused(6, {"blue", Caller::Class::kBackground}));
  EXPECT_FALSE(refused(7, {"blue", Caller::Class::kInteractive}));
}

// Of many that are refused together, one is told to come behind the other, as far as anybody is told; another
// tenant does not wait for them.
TEST_F(FlightTableTest, WhoIsRefusedComesBehindThoseThatWereBefore) {
  Compile(1, "first", 10, {}, std::nullopt);
  Upload(1, 10);
  CompileIn(4);
  Compile(2, "blue's", 10, {"blue"}, std::nullopt);
  Upload(2, 10);
  CompileIn(4);
  for (const CallId call : {3, 4}) {
    Compile(call, absl::StrCat("key ", call), 10, {}, std::nullopt);
    Upload(call, 10);
  }
  CallId call = 5;
  const auto told = [&](const std::string& tenant) {
    const auto listener = Compile(call, absl::StrCat("key ", call), 10, {tenant},
                                  std::chrono::seconds(tenant == "red" ? 5 : 1));
    ++call;
    const auto pushback = PushbackOf(listener->ended.value_or(absl::OkStatus()));
    EXPECT_TRUE(pushback.has_value()) << tenant;
    return std::chrono::duration<double>(pushback.value_or(std::chrono::milliseconds(0))).count();
  };
  std::vector<double> red;
  for (int i = 0; i < 20; ++i) red.push_back(told("red"));
  EXPECT_LT(red[0], 10);
  EXPECT_GT(red[5], red[0]);
  EXPECT_EQ(red.back(), 30);
  EXPECT_TRUE(std::is_sorted(red.begin(), red.end()));
  EXPECT_LT(told("blue"), 10);
  // Who was told is due, and comes or does not.
  clock_.Pass(std::chrono::seconds(31));
  EXPECT_EQ(told("red"), red[0]);
}

// A plan is held until its kernels are there, so these go before other plans while there is much of it.
TEST_F(FlightTableTest, WhatHoldsMuchIsFinishedBeforeOthersBegin) { EXPECT_EQ(NextBesidePlanOf(2'000), 1u); }
TEST_F(FlightTableTest, WhatHoldsLittleWaitsForItsTurn) { EXPECT_EQ(NextBesidePlanOf(10), 3u); }

TEST_F(FlightTableTest, ADrainedOneTakesNothingNewAndKeepsWhatItHas) {
  const auto before = Compile(1, "a", 10);
  Upload(1, 10);
  table_->SetDrained(true);
  const auto refused = Compile(2, "b", 10), joined = Compile(3, "a", 10);
  ASSERT_TRUE(refused->ended.has_value());
  EXPECT_EQ(refused->ended->code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(PushbackOf(*refused->ended).has_value()) << "it says when to come again";
  EXPECT_FALSE(refused->asked);
  EXPECT_FALSE(before->ended.has_value());
  EXPECT_FALSE(joined->ended.has_value()) << "a flight of that key is there";
  const auto tenants = table_->Tenants();
  ASSERT_EQ(tenants.size(), 1u);
  EXPECT_EQ(tenants.at("red").queued + tenants.at("red").running, 1u);
  EXPECT_EQ(tenants.at("red").graphs_bytes, 20u);
  table_->SetDrained(false);
  const auto after = Compile(4, "b", 10);
  EXPECT_TRUE(after->asked) << "the control";
  EXPECT_EQ(table_->Tenants().at("red").waiting, 1u);
}

// ---- What is outdated ------------------------------------------------------------------------

TEST(ChooseVariant, WhatIsOutdatedIsTakenWhereNothingElseFitsAndNobodyMakesAnother) {
  KnownKey known = *KnownOf(/*outdated=*/true);
  EXPECT_EQ(ChooseVariant(known, {}), nullptr);
  EXPECT_EQ(ChooseVariant(known, {}, Outdated::kTake), &known.variants[0]);
  known.variants.push_back(KnownOf(/*outdated=*/true)->variants[0]);
  EXPECT_EQ(ChooseVariant(known, {}, Outdated::kTake), &known.variants[0]);
  known.variants.push_back(KnownOf(/*outdated=*/false)->variants[0]);
  EXPECT_EQ(ChooseVariant(known, {}), &known.variants[2]);
  EXPECT_EQ(ChooseVariant(known, {}, Outdated::kTake), &known.variants[2]);
}

TEST_F(FlightTableTest, WhatIsNotOutdatedIsServedAtOnce) {
  found_ = KnownOf(/*outdated=*/false);
  const auto caller = Compile(1, "a", 10);
  EXPECT_TRUE(caller->served);
  EXPECT_FALSE(caller->asked);
}

TEST_F(FlightTableTest, ForWhatIsOutdatedAnotherIsMade) {
  found_ = KnownOf(/*outdated=*/true);
  const auto caller = Compile(1, "a", 10);
  EXPECT_FALSE(caller->served);
  EXPECT_TRUE(caller->asked);
}

TEST_F(FlightTableTest, WhatIsOutdatedIsServedWhereNothingIsBegun) {
  table_->SetDrained(true);
  const auto refused = Compile(1, "a", 10);
  EXPECT_FALSE(refused->served) << "the control";
  found_ = KnownOf(/*outdated=*/true);
  const auto drained = Compile(2, "b", 10);
  EXPECT_TRUE(drained->served);
  EXPECT_TRUE(drained->ended->ok()) << *drained->ended;
  table_->SetDrained(false);
  found_ = std::make_shared<const KnownKey>();
  Compile(3, "c", 10);
  Upload(3, 10);
  CompileIn(501);  // the quota of the hour
  EXPECT_FALSE(Compile(4, "d", 10)->served) << "the control";
  found_ = KnownOf(/*outdated=*/true);
  EXPECT_TRUE(Compile(5, "e", 10)->served);
}

TEST_F(FlightTableTest, WhatIsOutdatedIsServedWhereTheCompileFails) {
  for (const absl::Status& why : {absl::InternalError("crashed"), absl::CancelledError("stopped"),
                                  absl::UnimplementedError("refused for good")}) {
    for (const bool outdated : {true, false}) {
      found_ = std::make_shared<const KnownKey>();
      if (outdated) found_ = KnownOf(true);
      const CallId call = running_ + 1000;
      const auto caller = Compile(call, absl::StrCat("key ", call), 10);
      Upload(call, 10);
      const FlightId flight = running_;
      table_->Ended(task_, 1, /*typical=*/true);
      FlightNext next;
      next.outcome = why;
      table_->Advanced(flight, next);
      ASSERT_TRUE(caller->ended.has_value());
      EXPECT_EQ(caller->served, outdated) << why;
      EXPECT_EQ(caller->failed || !caller->ended->ok(), !outdated) << why;
    }
  }
}

// With other daemons beside this one.
class FlightClaimsTest : public FlightClaims, public FlightTableTest {
 protected:
  FlightClaimsTest() : FlightTableTest(this) {}
  void LookFurther(FlightId flight, const FlightRequest& request, const v1::Hints&,
                   KnownKeyPtr known) override {
    asked_.push_back(flight);
    EXPECT_EQ(request.ns, "red");
    known_ = std::move(known);
  }
  void Over(FlightId flight) override { over_.push_back(flight); }
  // What the others say: a refusal is all that this test has of a key.
  void Say(FlightTable::Where where, const absl::Status& refusal = absl::OkStatus()) {
    auto known = std::make_shared<KnownKey>(*known_);
    known->refusal = refusal;
    table_->Looked(asked_.back(), std::move(known), where);
  }

  std::vector<FlightId> asked_, over_;
  KnownKeyPtr known_;
};

TEST_F(FlightClaimsTest, WhoWaitsForOthersHasNoPlaceAndNoUpload) {
  const auto caller = Compile(1, "a", 10);
  ASSERT_EQ(asked_.size(), 1u);
  EXPECT_FALSE(caller->asked);
  EXPECT_EQ(table_->places(), 0u);
  EXPECT_EQ(table_->graphs_bytes(), 0u);
  Say(FlightTable::Where::kEverywhere);
  EXPECT_TRUE(caller->asked);
  EXPECT_EQ(table_->places(), 1u);
  EXPECT_TRUE(over_.empty());
  table_->Cancel(1);
  EXPECT_EQ(over_, asked_);
}

TEST_F(FlightClaimsTest, TheStoreHavingMoreIsAskedForAgain) {
  const auto caller = Compile(1, "a", 10);
  Say(FlightTable::Where::kHere);  // and what it has does not fit
  ASSERT_EQ(asked_.size(), 2u);
  EXPECT_EQ(asked_[0], asked_[1]);
  EXPECT_FALSE(caller->asked);
  Say(FlightTable::Where::kHere, absl::UnimplementedError("no such operator"));
  EXPECT_TRUE(caller->ended.has_value());
  EXPECT_EQ(over_, std::vector<FlightId>{asked_[0]});
}

// What another daemon compiles where it has the graph.
TEST_F(FlightClaimsTest, WhatAnotherCompilesTakesNoWorker) {
  Compile(1, "a", 10);
  Say(FlightTable::Where::kEverywhere);
  Upload(1, 10);
  EXPECT_EQ(kind_, TaskQueue::Kind::kPlan);
  const FlightId here = running_;
  const auto caller = Compile(2, "b", 10);
  Say(FlightTable::Where::kElsewhere);
  ASSERT_TRUE(caller->asked);
  EXPECT_EQ(running_, here);
  Upload(2, 10);
  EXPECT_EQ(running_, table_->FlightOfCall(2)) << "beside what the one worker does";
  EXPECT_EQ(kind_, TaskQueue::Kind::kForward);
  EXPECT_EQ(table_->places(), 2u);
  // Its program is served like any other.
  const FlightId flight = running_;
  table_->Ended(task_, 0, /*typical=*/false);
  FlightNext next;
  next.outcome = std::make_shared<const Artifact>();
  table_->Advanced(flight, next);
  EXPECT_EQ(table_->StateOfFlight(flight), FlightTable::State::kStoring);
  table_->Stored(flight, absl::OkStatus());
  EXPECT_TRUE(caller->ended.has_value() && caller->ended->ok());
  EXPECT_EQ(table_->places(), 1u);
}

TEST_F(FlightClaimsTest, WhatComesBackWithoutAProgramIsCompiledHere) {
  Compile(1, "a", 10);
  Say(FlightTable::Where::kElsewhere);
  Upload(1, 10);
  const FlightId flight = running_;
  EXPECT_EQ(kind_, TaskQueue::Kind::kForward);
  table_->Ended(task_, 0, /*typical=*/false);
  FlightNext next;
  next.tasks.push_back({TaskQueue::Kind::kPlan, 0, false});
  table_->Advanced(flight, next);
  EXPECT_EQ(kind_, TaskQueue::Kind::kPlan);
  EXPECT_EQ(running_, flight);
  EXPECT_EQ(table_->places(), 1u);
}

// Seconds of this daemon's workers are not what it takes.
TEST_F(FlightClaimsTest, NoQuotaIsForWhatAnotherCompiles) {
  const auto begins = [&](CallId id, const std::string& key, FlightTable::Where where) {
    const auto caller = Compile(id, key, 10);
    Say(where);
    return !caller->ended.has_value();
  };
  Compile(1, "a", 10);
  Say(FlightTable::Where::kEverywhere);
  Upload(1, 10);
  CompileIn(1000);
  EXPECT_TRUE(begins(2, "b", FlightTable::Where::kElsewhere));
  EXPECT_FALSE(begins(3, "c", FlightTable::Where::kEverywhere)) << "the control";
}

TEST_F(FlightClaimsTest, WhoeverLeavesMeanwhileLeavesNothing) {
  Compile(1, "a", 10);
  table_->Cancel(1);
  EXPECT_EQ(over_, asked_);
  EXPECT_EQ(table_->flights(), 0u);
  Say(FlightTable::Where::kEverywhere);  // too late, and nobody minds
  EXPECT_EQ(table_->flights(), 0u);
}

}  // namespace
}  // namespace kiln
