// A kilnd that passes on to another one what it lacks: what is compiled where, what is believed, and what
// becomes of its callers when the other is away. Every daemon has a store and a key of its own.
#include "server/upstream/upstream.h"

#include <signal.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache/signatures.h"
#include "compiler/graph/key.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "compiler/support/manifest_objects.h"
#include "compiler/support/monotonic_time.h"
#include "compiler/support/protocol.h"
#include "compiler/support/signature.h"
#include "compiler/support/zstd.h"
#include "gtest/gtest.h"
#include "server/flight/upstream_artifact.h"
#include "tests/fault/certificates.h"
#include "tests/fault/slow_fetches.h"
#include "tests/fault/test_daemon.h"
#include "tests/fault/upstream_daemons.h"

namespace kiln {
namespace {

using UpstreamTest = UpstreamDaemons;

constexpr char kLongCompile[] = "name long\nsleep_ms 1000";

// `compile` asks the local one for kLongCompile; the farm freezes meanwhile, and it is compiled here.
void ExpectFoundOut(TestDaemon& farm, TestDaemon& local, const std::function<void()>& compile) {
  const MonotonicTime begin = MonotonicNow();
  std::thread caller(compile);
  EXPECT_TRUE(Eventually([&] { return farm.Stats().compiles() == 1; }));
  kill(farm.pid(), SIGSTOP);
  caller.join();
  EXPECT_LT(SecondsBetween(begin, MonotonicNow()), 20);
  EXPECT_EQ(local.Stats().compiles(), 1);
  kill(farm.pid(), SIGCONT);
}

// ---- What is compiled where ------------------------------------------------------------------

TEST_F(UpstreamTest, TheFarmCompilesOnceForAll) {
  TestDaemon farm(Signing("farm", {}));
  TestDaemon local(LocalOf(farm));
  const std::string script = "name program\nkernels 3";
  const CompileResult made = local.Compile(script);
  EXPECT_TRUE(made.done && made.durable) << made.failed_reason << made.status.error_message();
  EXPECT_EQ(local.Stats().compiles(), 0);
  EXPECT_EQ(local.Stats().forwarded(), 1);
  EXPECT_EQ(farm.Stats().compiles(), 1);
  bool told = false;
  for (const v1::CompileEvent& event : made.events) told = told || event.has_emitted();
  EXPECT_TRUE(told) << "how far the farm is, is told on";

  // Another host's daemon finds it there.
  TestDaemon second(absl::StrCat(Signing("second", {"farm"}), Asks(farm)));
  const CompileResult taken = second.Compile(script);
  EXPECT_EQ(taken.manifest_bytes, made.manifest_bytes);
  EXPECT_EQ(farm.Stats().compiles(), 1);
  EXPECT_EQ(StatusOf(second).hits(), 1);
  EXPECT_EQ(second.Stats().compiles() + second.Stats().forwarded(), 0);

  // What has come is the daemon's own.
  farm.Stop(SIGKILL);
  for (TestDaemon* daemon : {&local, &second}) {
    EXPECT_TRUE(daemon->Lookup(script).has_hit());
    const std::set<std::string> digests = ObjectsIn(made.manifest);
    grpc::Status fetched;
    EXPECT_FALSE(daemon->Fetch(made.manifest, {digests.begin(), digests.end()}, &fetched).empty());
    EXPECT_TRUE(fetched.ok()) << fetched.error_message();
  }
}

// The control.
TEST_F(UpstreamTest, WithoutAnUpstreamEachCompiles) {
  TestDaemon farm(Signing("farm", {}));
  TestDaemon local(Signing("local", {"farm"}));
  EXPECT_TRUE(local.Compile("name program").done);
  EXPECT_EQ(local.Stats().compiles(), 1);
  EXPECT_EQ(farm.Stats().compiles(), 0);
}

TEST_F(UpstreamTest, EightCallersAreOneUploadAndOneFetch) {
  TestDaemon farm(Signing("farm", {}));
  TestDaemon local(LocalOf(farm));
  const std::string script = "name wanted\nsleep_ms 500\nkernels 4";
  std::vector<std::thread> callers;
  std::atomic<int> served{0};
  for (int i = 0; i < 8; ++i) callers.emplace_back([&] { served += local.Compile(script).done; });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(served, 8);
  EXPECT_EQ(farm.Stats().graphs_uploaded(), 1);
  EXPECT_EQ(farm.Stats().compiles(), 1);
  EXPECT_EQ(local.Stats().compiles(), 0);
  const CompileResult again = local.Compile(script);
  EXPECT_EQ(farm.Stats().fetched_objects(), ObjectsIn(again.manifest).size());
  EXPECT_EQ(StatusOf(local).fetched_objects(), ObjectsIn(again.manifest).size());
}

TEST_F(UpstreamTest, VariantsOfAKeyComeOneByOne) {
  TestDaemon farm(Signing("farm", {}));
  TestDaemon local(LocalOf(farm));
  const std::string script = "name sized\nguarded";
  EXPECT_TRUE(farm.Compile(script, {150}).done);
  EXPECT_TRUE(local.Compile(script, {160}).done);
  EXPECT_EQ(farm.Stats().compiles(), 1);
  // Two at once, whose sizes no variant of either daemon fits, and no one variant both.
  std::thread other([&] { EXPECT_TRUE(local.Compile(script, {250}).done); });
  EXPECT_TRUE(local.Compile(script, {350}).done);
  other.join();
  EXPECT_EQ(farm.Stats().compiles(), 3);
  EXPECT_EQ(local.Stats().compiles(), 0);
}

TEST_F(UpstreamTest, WhatTheFarmRefusesIsRefused) {
  TestDaemon farm(Signing("farm", {}));
  TestDaemon local(LocalOf(farm));
  const std::string script = "refuse 12 no such operator";
  for (int i = 0; i < 2; ++i) {  // by its compile, then by its record
    const CompileResult told = local.Compile(script);
    EXPECT_EQ(told.failed_code, 12);
    EXPECT_EQ(told.failed_reason, "no such operator");
  }
  EXPECT_EQ(farm.Stats().compiles(), 1);
  EXPECT_EQ(local.Stats().compiles(), 0);
}

TEST_F(UpstreamTest, WhomNobodyWaitsForIsStoppedThere) {
  TestDaemon farm(Signing("farm", {}));
  TestDaemon local(LocalOf(farm));
  std::thread left([&] { local.Compile("hang", {}, absl::Seconds(2)); });
  EXPECT_TRUE(Eventually([&] { return Jobs(farm) == 1; }));
  left.join();
  EXPECT_TRUE(Eventually([&] { return Jobs(farm) == 0; }));
  EXPECT_EQ(Jobs(local), 0);
  EXPECT_EQ(local.Stats().compiles(), 0);
  EXPECT_TRUE(StatusOf(local).connected()) << "that was no silence of the farm's";
}

// Another build's program has another key: it is kept under it, and found.
TEST_F(UpstreamTest, AFarmOfAnotherCompilerIsServedFrom) {
  TestDaemon farm(Signing("farm", {}));
  TestDaemon local(LocalOf(farm), {}, SCRIPTED_WORKER_2);
  const std::string script = "name elsewhere";
  const CompileResult made = local.Compile(script);
  ASSERT_TRUE(made.done) << made.failed_reason;
  const std::string request_key = RequestKey(SectionsOf(script));
  EXPECT_EQ(made.manifest.compile_key(),
            CompileKey("test", request_key, kProgramFormatVersion, "scripted-1"));
  EXPECT_TRUE(local.Lookup(script).has_hit());
  EXPECT_TRUE(local.Compile(script).done);
  EXPECT_EQ(farm.Stats().compiles(), 1);
  EXPECT_EQ(local.Stats().compiles(), 0);
  // What is made here meanwhile has this compiler's key.
  farm.Stop(SIGKILL);
  const CompileResult here = local.Compile("name here");
  ASSERT_TRUE(here.done) << here.failed_reason;
  EXPECT_EQ(here.manifest.compile_key(),
            CompileKey("test", RequestKey(SectionsOf("name here")), kProgramFormatVersion, "scripted-2"));
  EXPECT_TRUE(local.Lookup("name here").has_hit());
  EXPECT_TRUE(local.Lookup(script).has_hit());
}

// ---- Where the farm is away ------------------------------------------------------------------

TEST_F(UpstreamTest, AFarmThatDiesWhileItCompilesIsReplacedHere) {
  TestDaemon farm(Signing("farm", {}));
  TestDaemon local(LocalOf(farm));
  std::thread caller([&] {
    const CompileResult result = local.Compile("name long\nsleep_ms 3000");
    EXPECT_TRUE(result.done) << result.failed_reason << result.status.error_message();
  });
  EXPECT_TRUE(Eventually([&] { return farm.Stats().compiles() == 1; }));
  farm.Stop(SIGKILL);
  caller.join();
  EXPECT_EQ(local.Stats().compiles(), 1);
  EXPECT_FALSE(StatusOf(local).connected());

  // It is asked again when it is back, by itself.
  farm.Start();
  EXPECT_TRUE(Eventually([&] { return StatusOf(local).connected(); }));
  EXPECT_TRUE(local.Compile("name after").done);
  EXPECT_EQ(farm.Stats().compiles(), 1);
  EXPECT_EQ(local.Stats().compiles(), 1);
}

TEST_F(UpstreamTest, ByConfigurationNothingIsCompiledHere) {
  TestDaemon farm(Signing("farm", {}));
  TestDaemon local(LocalOf(farm, "when_away: AWAY_FAIL"));
  EXPECT_TRUE(local.Compile("name before").done);
  std::thread caller([&] {
    const CompileResult told = local.Compile("name long\nsleep_ms 3000");
    EXPECT_FALSE(told.done);
    EXPECT_EQ(told.failed_code, static_cast<int>(absl::StatusCode::kUnavailable));
    EXPECT_TRUE(absl::StrContains(told.failed_reason, farm.socket())) << told.failed_reason;
  });
  EXPECT_TRUE(Eventually([&] { return farm.Stats().compiles() == 2; }));
  farm.Stop(SIGKILL);
  caller.join();
  const CompileResult told = local.Compile("name after");  // which is told before it uploads
  EXPECT_EQ(told.failed_code, static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(absl::StrContains(told.failed_reason, "AWAY_FAIL")) << told.failed_reason;
  EXPECT_TRUE(local.Lookup("name before").has_hit()) << "what is here is served";
  EXPECT_EQ(local.Stats().compiles(), 0);
}

TEST_F(UpstreamTest, AFarmThatTakesNoCompilesIsNotWaitedFor) {
  TestDaemon farm(Signing("farm", {}));
  TestDaemon local(LocalOf(farm));
  EXPECT_TRUE(farm.Compile("name before").done);
  grpc::ClientContext context;
  v1::DrainReply drained;
  EXPECT_TRUE(farm.admin().Drain(&context, {}, &drained).ok());
  EXPECT_TRUE(local.Compile("name before").done);
  EXPECT_EQ(local.Stats().compiles(), 0) << "a drained one has hits";
  EXPECT_TRUE(local.Compile("name after").done);
  EXPECT_EQ(local.Stats().compiles(), 1);
  EXPECT_TRUE(StatusOf(local).connected());
  EXPECT_TRUE(absl::StrContains(StatusOf(local).message(), "drained")) << StatusOf(local).message();
}

TEST_F(UpstreamTest, AFullFarmIsWaitedFor) {
  TestDaemon farm(absl::StrCat(Signing("farm", {}), "admission { queue_max: 1 }"), {}, "", /*workers=*/1);
  TestDaemon local(LocalOf(farm));
  std::vector<std::thread> callers;
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back(
        [&, i] { EXPECT_TRUE(local.Compile(absl::StrCat("name program ", i, "\nsleep_ms 100")).done); });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(farm.Stats().compiles(), 6);
  EXPECT_EQ(local.Stats().compiles(), 0);
}

// What it holds back is asked for again, and what has come is not.
TEST_F(UpstreamTest, ObjectsThatAFullFarmHoldsBackAllCome) {
  TestDaemon farm(LittleRoomForObjects());
  SlowFetches slow(farm);
  slow.Add(farm.Compile(LargeProgram("held")).manifest, 1);
  slow.Add(farm.Compile(LargeProgram("held"), {}, absl::Seconds(60), "others").manifest, 1);
  // The code, which there is no room for, and its listing, which there is.
  const v1::Manifest wanted = farm.Compile(LargeProgram("wanted")).manifest;
  std::vector<v1::ObjectRef> objects;
  for (const v1::ObjectRef* object : ObjectsOf(wanted)) objects.push_back(*object);
  ASSERT_EQ(objects.size(), 2u);
  Upstream::Options options;
  options.address = absl::StrCat("unix:", farm.socket());
  const absl::StatusOr<std::unique_ptr<Upstream>> upstream = Upstream::Create(options);
  ASSERT_TRUE(upstream.ok()) << upstream.status();
  auto waits =
      std::async(std::launch::async, [&] { return (*upstream)->Fetch({"test", "", {}}, wanted, objects); });
  EXPECT_EQ(waits.wait_for(std::chrono::milliseconds(1500)), std::future_status::timeout);
  slow.End();
  const absl::StatusOr<Upstream::Objects> fetched = waits.get();
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_EQ(fetched->size(), objects.size());
  for (const v1::ObjectRef& object : objects) {
    ASSERT_TRUE(fetched->contains(object.digest()));
    const absl::StatusOr<std::string> raw = ZstdDecompress(fetched->at(object.digest()), object.raw_size());
    EXPECT_TRUE(raw.ok() && Sha256(*raw) == object.digest()) << raw.status();
  }
  EXPECT_EQ((*upstream)->counts().fetched_objects, objects.size());
  EXPECT_EQ(farm.Stats().fetched_objects(), 2 + objects.size());
}

// By a unix socket, whose kernel knows of no silence.
TEST_F(UpstreamTest, AFarmThatFreezesWhileItCompilesIsFoundOut) {
  TestDaemon farm(Signing("farm", {}));
  TestDaemon local(LocalOf(farm));
  ExpectFoundOut(farm, local, [&] { EXPECT_TRUE(local.Compile(kLongCompile).done); });
}

// Where nothing is compiled here its callers are told so, and when to come again.
TEST_F(UpstreamTest, WhatAFullFarmSaysIsPassedThrough) {
  TestDaemon farm(absl::StrCat(Signing("farm", {}), "admission { queue_max: 1 }"), {}, "", /*workers=*/1);
  TestDaemon local(LocalOf(farm, "when_away: AWAY_FAIL"));
  std::vector<std::thread> busy;
  for (int i = 0; i < 2; ++i)
    busy.emplace_back([&, i] { farm.Compile(absl::StrCat("name busy ", i, "\nsleep_ms 4000")); });
  EXPECT_TRUE(Eventually([&] { return Jobs(farm) == 2; }));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(1500));
  const auto stream = local.compiler().Compile(&context);
  Send("test", "name other", stream.get());
  v1::CompileEvent event;
  while (stream->Read(&event)) EXPECT_FALSE(event.has_failed()) << event.failed().reason();
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_TRUE(ComeAgainOf(context).has_value());
  for (std::thread& caller : busy) caller.join();
  EXPECT_EQ(local.Stats().compiles(), 0);
  EXPECT_TRUE(StatusOf(local).connected());
}

// A call at the farm has its first caller's time, and is begun again for whoever waits longer, who joins what
// runs there.
TEST_F(UpstreamTest, WhoWaitsLongerIsServedThoughTheFirstHasLeft) {
  TestDaemon farm(Signing("farm", {}));
  TestDaemon local(LocalOf(farm));
  const std::string script = "name long\nsleep_ms 5000";
  std::thread first([&] {
    EXPECT_EQ(local.Compile(script, {}, absl::Seconds(3)).status.error_code(),
              grpc::StatusCode::DEADLINE_EXCEEDED);
  });
  EXPECT_TRUE(Eventually([&] { return farm.Stats().compiles() == 1; }));
  EXPECT_TRUE(local.Compile(script).done);
  first.join();
  EXPECT_EQ(farm.Stats().compiles(), 1);
  EXPECT_EQ(local.Stats().compiles(), 0);
  // The control: where nobody waits longer it ends with its time.
  EXPECT_FALSE(local.Compile("name alone\nsleep_ms 5000", {}, absl::Seconds(2)).done);
  EXPECT_TRUE(Eventually([&] { return Jobs(farm) == 0; }, absl::Seconds(3)));
}

// One that hangs costs its first caller the limit, and then nobody anything.
TEST_F(UpstreamTest, ASilentFarmIsAskedOnce) {
  TestDaemon farm(Signing("farm", {}));
  TestDaemon local(absl::StrCat(Signing("local", {"farm"}), "upstream { address: \"unix:", farm.socket(),
                                "\" lookup_ms_max: 1500 }\n"));
  kill(farm.pid(), SIGSTOP);
  const auto seconds_of = [&](const std::string& script) {
    const MonotonicTime begin = MonotonicNow();
    EXPECT_TRUE(local.Compile(script).done);
    return SecondsBetween(begin, MonotonicNow());
  };
  EXPECT_GE(seconds_of("name first"), 1.5);
  for (int i = 0; i < 5; ++i) EXPECT_LT(seconds_of(absl::StrCat("name later ", i)), 1.5);
  EXPECT_EQ(local.Stats().compiles(), 6);
  kill(farm.pid(), SIGCONT);
  EXPECT_TRUE(Eventually([&] { return StatusOf(local).connected(); }));
  EXPECT_TRUE(local.Compile("name back").done);
  EXPECT_EQ(local.Stats().compiles(), 6);
}

TEST_F(UpstreamTest, ADeadOneCostsALookUpLessThanAMillisecond) {
  Upstream::Options options;
  options.address = absl::StrCat("unix:", directory_, "/nobody.sock");
  const absl::StatusOr<std::unique_ptr<Upstream>> upstream = Upstream::Create(options);
  ASSERT_TRUE(upstream.ok()) << upstream.status();
  constexpr int kLookUps = 1000;
  const MonotonicTime begin = MonotonicNow();
  for (int i = 0; i < kLookUps; ++i)
    EXPECT_TRUE(absl::IsUnavailable((*upstream)->LookUp({"test", "", {}}, "key", {}, {}).status()));
  EXPECT_LT(SecondsBetween(begin, MonotonicNow()), 1e-3 * kLookUps);
}

// ---- What is believed ------------------------------------------------------------------------

TEST_F(UpstreamTest, WhatNoTrustedKeySignsIsNotServed) {
  TestDaemon farm(Signing("farm", {}));
  TestDaemon local(absl::StrCat(Signing("local", {}), Asks(farm)));
  const CompileResult made = local.Compile("name program");  // by its compile
  EXPECT_TRUE(made.done);
  EXPECT_EQ(local.Stats().compiles(), 1);
  EXPECT_TRUE(farm.Compile("name other").done);
  EXPECT_TRUE(local.Compile("name other").done);  // by its look-up
  EXPECT_EQ(local.Stats().compiles(), 2);
  const v1::UpstreamStatus status = StatusOf(local);
  EXPECT_EQ(status.refused(), 2);
  EXPECT_EQ(status.hits() + status.forwarded(), 0);
  EXPECT_TRUE(absl::StrContains(status.message(), "signing.trusted")) << status.message();
  const v1::SignedManifest served = local.Lookup("name program").hit().manifest();
  EXPECT_NE(served.key_id(), farm.Lookup("name program").hit().manifest().key_id());
}

// Every bit of what is answered, in turn; and what would be believed without the signature.
TEST_F(UpstreamTest, FlippedAnswersAreRefused) {
  TestDaemon farm(Signing("farm", {}));
  const std::string script = "name program\nkernels 2";
  ASSERT_TRUE(farm.Compile(script).done);
  const v1::SignedManifest good = farm.Lookup(script).hit().manifest();
  v1::SigningConfig config;
  config.set_key_file(absl::StrCat(directory_, "/local.pem"));
  v1::TrustedKeyConfig& trusted = *config.add_trusted();
  trusted.set_public_key(
      absl::Base64Escape(SigningKey::LoadOrMake(absl::StrCat(directory_, "/farm.pem"))->public_key()));
  trusted.add_namespaces("test");
  const absl::StatusOr<Signatures> signatures = Signatures::Load(config);
  ASSERT_TRUE(signatures.ok()) << signatures.status();
  FlightRequest request;
  request.ns = "test";
  request.request_key = RequestKey(SectionsOf(script));
  const auto open = [&](const Signatures* who, const v1::SignedManifest& answer) {
    return OpenUpstreamManifest(who, answer, request, "scripted-1").status();
  };
  ASSERT_TRUE(open(&*signatures, good).ok()) << open(&*signatures, good);
  int lies = 0, believed = 0;
  for (size_t bit = 0; bit < 8 * good.manifest().size(); ++bit) {
    v1::SignedManifest flipped = good;
    (*flipped.mutable_manifest())[bit / 8] ^= static_cast<char>(1 << bit % 8);
    ++lies;
    EXPECT_TRUE(absl::IsDataLoss(open(&*signatures, flipped))) << bit;
    believed += open(nullptr, flipped).ok();
  }
  EXPECT_GT(believed, lies / 10) << "the control: without the signature";
  // Whole, and for somebody or something else.
  const FlightRequest asked = request;
  request.ns = "other";
  EXPECT_TRUE(absl::IsDataLoss(open(nullptr, good)));
  request = asked;
  request.request_key[0] ^= 1;
  EXPECT_TRUE(absl::IsDataLoss(open(nullptr, good)));
  request = asked;
  EXPECT_TRUE(absl::IsDataLoss(OpenUpstreamManifest(nullptr, good, request, "scripted-2").status()));
  EXPECT_TRUE(open(nullptr, good).ok()) << "the control";
}

// ---- Daemons in a row ------------------------------------------------------------------------

TEST_F(UpstreamTest, ACircleOfDaemonsEndsWithAProgram) {
  TestDaemon one(Signing("local", {"farm"}));
  TestDaemon other(absl::StrCat(Signing("farm", {"local"}), Asks(one)));
  one.Stop(SIGTERM);
  one.Configure(LocalOf(other));
  one.Start();
  EXPECT_TRUE(Eventually([&] { return StatusOf(one).connected() || StatusOf(other).connected(); }));
  std::vector<std::thread> callers;
  for (TestDaemon* daemon : {&one, &other}) {
    callers.emplace_back([daemon] {
      const MonotonicTime begin = MonotonicNow();
      for (int i = 0; i < 10; ++i) EXPECT_TRUE(daemon->Compile(absl::StrCat("name program ", i)).done);
      EXPECT_LT(SecondsBetween(begin, MonotonicNow()), 30);
    });
  }
  for (std::thread& caller : callers) caller.join();
  const std::string messages = StatusOf(one).message() + StatusOf(other).message();
  EXPECT_TRUE(absl::StrContains(messages, "passes on to this kilnd")) << messages;
}

class HopsTest : public UpstreamTest {
 protected:
  HopsTest() : end_(Signing("end", {})), daemon_(absl::StrCat(Signing("local", {"end"}), Asks(end_))) {}
  grpc::Status LookUp(const std::string& hops) {
    grpc::ClientContext context;
    if (!hops.empty()) context.AddMetadata(kHopsMetadata, hops);
    v1::LookupRequest request;
    request.set_namespace_("test");
    request.set_request_key(std::string(32, 'k'));
    v1::LookupReply reply;
    return daemon_.compiler().Lookup(&context, request, &reply);
  }
  TestDaemon end_;
  TestDaemon daemon_;
};

TEST_F(HopsTest, ACallPassesTwoDaemonsAndNoMore) {
  EXPECT_TRUE(LookUp("").ok());
  EXPECT_TRUE(LookUp("aa,bb").ok());
  const grpc::Status far = LookUp("aa,bb,cc");
  EXPECT_EQ(far.error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_TRUE(absl::StrContains(far.error_message(), "aa,bb,cc")) << far.error_message();
  EXPECT_EQ(LookUp("aa,").error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(LookUp("no id").error_code(), grpc::INVALID_ARGUMENT);
}

TEST_F(HopsTest, ACallThatComesRoundIsRefused) {
  grpc::ClientContext context;
  v1::HelloRequest hello;
  hello.set_protocol_min(kProtocol.min);
  hello.set_protocol_max(kProtocol.max);
  v1::HelloReply reply;
  ASSERT_TRUE(daemon_.compiler().Hello(&context, hello, &reply).ok());
  ASSERT_EQ(reply.forwarders_size(), 1);
  const grpc::Status round = LookUp(absl::StrCat(reply.forwarders(0), ",bb"));
  EXPECT_EQ(round.error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_TRUE(absl::StrContains(round.error_message(), "come round")) << round.error_message();
}

TEST_F(UpstreamTest, TheThirdInARowCompiles) {
  TestDaemon last(Signing("last", {}));
  TestDaemon third(absl::StrCat(Signing("third", {"last"}), Asks(last)));
  TestDaemon second(absl::StrCat(Signing("second", {"third", "last"}), Asks(third)));
  TestDaemon first(absl::StrCat(Signing("first", {"second", "third", "last"}), Asks(second)));
  EXPECT_TRUE(second.Compile("name short").done);
  EXPECT_EQ(last.Stats().compiles(), 1);
  EXPECT_TRUE(first.Compile("name long").done);
  EXPECT_EQ(last.Stats().compiles(), 1);
  EXPECT_EQ(third.Stats().compiles(), 1);
  EXPECT_EQ(first.Stats().compiles() + second.Stats().compiles(), 0);
}

// ---- By TLS, for several tenants -------------------------------------------------------------

using UpstreamTlsTest = UpstreamTlsDaemons;

TEST_F(UpstreamTlsTest, TenantsOfOneConnectionNeverMeet) {
  TestDaemon farm(Farm());
  TestDaemon local(Local(farm, "edge", "names_tenants: true"));
  const std::string script = "name shared\nkernels 2";
  EXPECT_EQ(CompileAs("red", local, script), "red");
  EXPECT_EQ(farm.Stats().compiles(), 1);
  EXPECT_EQ(CompileAs("blue", local, script), "blue");
  EXPECT_EQ(farm.Stats().compiles(), 2) << "what red has is nobody else's";
  EXPECT_EQ(CompileAs("red", farm, script), "red") << "and red's own there";
  EXPECT_EQ(farm.Stats().compiles(), 2);
  EXPECT_EQ(local.Stats().compiles(), 0);
  // For whom it does not speak, it does not ask.
  EXPECT_EQ(CompileAs("green", local, script), "green");
  EXPECT_EQ(farm.Stats().compiles(), 2);
  EXPECT_EQ(local.Stats().compiles(), 1);
  EXPECT_TRUE(absl::StrContains(StatusOf(local).message(), "green")) << StatusOf(local).message();
  EXPECT_TRUE(StatusOf(local).connected());
}

TEST_F(UpstreamTlsTest, ACertificateSpeaksForItsTenantAlone) {
  TestDaemon farm(Farm());
  TestDaemon local(Local(farm, "red", ""));
  EXPECT_EQ(CompileAs("red", local, "name program"), "red");
  EXPECT_EQ(farm.Stats().compiles(), 1);
  EXPECT_EQ(CompileAs("blue", local, "name program"), "blue");
  EXPECT_EQ(farm.Stats().compiles(), 1);
  EXPECT_EQ(local.Stats().compiles(), 1);
  EXPECT_TRUE(absl::StrContains(StatusOf(local).message(), "tenant \"red\"")) << StatusOf(local).message();
}

// A host that is gone says nothing, not even that.
TEST_F(UpstreamTlsTest, AFarmThatFreezesWhileItCompilesIsFoundOut) {
  TestDaemon farm(Farm());
  TestDaemon local(Local(farm, "red", ""));
  ExpectFoundOut(farm, local, [&] { EXPECT_EQ(CompileAs("red", local, kLongCompile), "red"); });
}

TEST_F(UpstreamTlsTest, WhoseCertificateIsNotTakenSaysSoAndIsTakenWhenItIsGood) {
  TestDaemon farm(Farm());
  const TestAuthority other;
  CertificateWish wish;
  wish.uris = {"kiln:red"};
  WritePair("mine", other.Issue(wish));
  TestDaemon local(Local(farm, "mine", ""));
  EXPECT_EQ(CompileAs("red", local, "name before"), "red");
  EXPECT_EQ(local.Stats().compiles(), 1);
  EXPECT_FALSE(StatusOf(local).connected());
  EXPECT_FALSE(StatusOf(local).message().empty());
  WritePair("mine", PairOf("red"));
  EXPECT_TRUE(Eventually([&] { return StatusOf(local).connected(); }));
  EXPECT_EQ(CompileAs("red", local, "name after"), "red");
  EXPECT_EQ(farm.Stats().compiles(), 1);
  EXPECT_EQ(local.Stats().compiles(), 1);
}

}  // namespace
}  // namespace kiln
