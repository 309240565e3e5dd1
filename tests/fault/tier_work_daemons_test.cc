// A daemon without a GPU and daemons that have one, on the tier of a real redis-server: what the first can't
// measure the others do, and its program is recompiled by what they found. The GPU is a script.
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "compiler/support/digest.h"
#include "gtest/gtest.h"
#include "tests/fault/gang_members.h"
#include "tests/fault/kilnctl.h"
#include "tests/fault/process_facts.h"
#include "tests/fault/tier_daemons.h"
#include "tests/fault/tuners.h"

namespace kiln {
namespace {

constexpr char kAsks[] = "measuring { off: true }\n";

class TierWorkDaemons : public TierDaemons {
 protected:
  void SetUp() override {
    TierDaemons::SetUp();
    if (IsSkipped()) return;
    asks_ = std::make_unique<TestDaemon>(absl::StrCat(ConfigOf("asks"), kAsks));
  }
  // Each trusts the two others.
  std::string ConfigOf(const std::string& key, const std::string& work_list = "") {
    std::vector<std::string> others;
    for (const char* other : {"asks", "serves", "other"}) {
      if (key != other) others.push_back(other);
    }
    const std::string config = Config(key, others);
    if (work_list.empty()) return config;
    return absl::StrReplaceAll(config, {{"tier {", absl::StrCat("tier { work_list: ", work_list)}});
  }
  static std::string Gpu(const std::string& more = "candidate_seconds_max: 1") {
    return absl::StrCat("measuring { gpus: 1 binary: \"", SCRIPTED_TUNER, "\" lease_seconds_max: 60 ", more,
                        " }\n");
  }
  std::unique_ptr<TestDaemon> Serving(const std::string& key = "serves") {
    return std::make_unique<TestDaemon>(absl::StrCat(ConfigOf(key), Gpu()));
  }
  v1::TierWorkStatus WorkOf(TestDaemon& daemon) { return StatusOf(daemon).work(); }
  static v1::Tuning TuningOf(const CompileResult& result) {
    EXPECT_TRUE(result.done) << result.failed_reason << result.status.error_message();
    return result.manifest.tuning();
  }
  // What is served when what it waits for has come.
  v1::Tuning Remade(TestDaemon& daemon, const std::string& script, uint64_t programs = 1) {
    EXPECT_TRUE(Eventually([&] { return WorkOf(daemon).remade() >= programs; }, absl::Seconds(60)))
        << WorkOf(daemon).DebugString();
    return TuningOf(daemon.Compile(script));
  }
  static std::string Kilnctl(TestDaemon& daemon, const std::string& words) {
    return RunKilnctl(KILNCTL, "unix:" + daemon.socket(), words).text;
  }
  static bool GpuIsLeased(TestDaemon& daemon) {
    grpc::ClientContext context;
    v1::StatusReply reply;
    EXPECT_TRUE(daemon.admin().Status(&context, {}, &reply).ok());
    return reply.gpus_size() == 1 && reply.gpus(0).leased();
  }
  // Items that daemons have claimed.
  std::string Claimed() {
    return redis_->Ask({"EVAL", "return redis.call('XPENDING', KEYS[1], 'kiln')[1]", "1", Lists()[0]});
  }
  // Its GPU can't be opened from now on.
  static void TakeGpu(const TestDaemon& daemon) {
    int taken = 0;
    for (const pid_t zygote : ChildrenOf(daemon.pid())) {
      for (const pid_t tuner : ChildrenOf(zygote)) {
        if (!TunersOf(daemon).contains(tuner)) continue;
        EXPECT_EQ(kill(zygote, SIGKILL), 0);
        EXPECT_EQ(kill(tuner, SIGKILL), 0);
        ++taken;
      }
    }
    EXPECT_EQ(taken, 1);
  }
  std::vector<std::string> Lists() { return redis_->Keys("kiln:1:test:*}:w"); }
  int64_t Length() {
    int64_t length = 0;
    for (const std::string& list : Lists()) {
      int64_t of_it = 0;
      if (absl::SimpleAtoi(redis_->Ask({"XLEN", list}), &of_it)) length += of_it;
    }
    return length;
  }

  std::unique_ptr<TestDaemon> asks_;
};

TEST_F(TierWorkDaemons, WhatOneCantMeasureAnotherDoes) {
  const std::unique_ptr<TestDaemon> serves = Serving();
  EXPECT_TRUE(Eventually([&] { return WorkOf(*serves).serves_size() == 1; }, absl::Seconds(20)));
  EXPECT_EQ(WorkOf(*serves).serves(0), "sm_90");
  EXPECT_EQ(WorkOf(*asks_).serves_size(), 0);

  const absl::Time begin = absl::Now();
  const CompileResult first = asks_->Compile("gemms 1 0");
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  EXPECT_EQ(TuningOf(first).measurements_size(), 0);
  EXPECT_EQ(TuningOf(first).waits_for(), "sm_90");
  EXPECT_NE(TuningOf(first).without().find("waits for a device of kind sm_90"), std::string::npos)
      << TuningOf(first).without();

  const v1::Tuning remade = Remade(*asks_, "gemms 1 0");
  EXPECT_EQ(remade.waits_for(), "");
  EXPECT_EQ(remade.without(), "");
  EXPECT_EQ(remade.gpu().name(), "scripted GPU");
  ASSERT_EQ(remade.measurements_size(), 2);
  EXPECT_EQ(remade.measurements(0).winner().algorithm().data(), "faster");
  EXPECT_EQ(asks_->Stats().tunables_measured(), 0);
  EXPECT_EQ(serves->Stats().tunables_measured(), 2);
  EXPECT_EQ(WorkOf(*asks_).asked(), 2);
  EXPECT_EQ(WorkOf(*asks_).waiting(), 0);
  EXPECT_TRUE(Eventually([&] { return WorkOf(*serves).measured() == 2; }));
  EXPECT_EQ(Length(), 0);
  // And it is the program from now on, for the other daemon too.
  const CompileResult again = asks_->Compile("gemms 1 0");
  EXPECT_NE(again.manifest.variant_id(), first.manifest.variant_id());
  EXPECT_EQ(serves->Compile("gemms 1 0").manifest.variant_id(), again.manifest.variant_id());
  EXPECT_EQ(serves->Stats().tunables_measured(), 2);
}

// What is measured for another daemon's tenant runs in a process that has run nobody else's kernels.
TEST_F(TierWorkDaemons, TwoTenantsItemsNeverMeetInAProcess) {
  const auto with_blue = [](const std::string& config) {
    return absl::StrReplaceAll(config,
                               {{"namespaces: \"test\"", "namespaces: \"test\" namespaces: \"blue\""}});
  };
  const std::string two_tenants = absl::StrReplaceAll(
      with_blue(ConfigOf("serves")),
      {{"listen {", absl::StrCat("listen { tenants { name: \"blue\" uids: ", geteuid() + 1, " }")}});
  TestDaemon serves(absl::StrCat(two_tenants, Gpu()));
  TestDaemon blue(absl::StrCat(
      absl::StrReplaceAll(with_blue(ConfigOf("other")), {{"name: \"test\"", "name: \"blue\""}}), kAsks));
  // The gemm's winner.
  const auto measure = [&](TestDaemon& asks, int gemm) {
    const std::string script = absl::StrCat("gemms ", gemm);
    TuningOf(asks.Compile(script));
    const v1::Tuning tuning = Remade(asks, script, WorkOf(asks).remade() + 1);
    EXPECT_EQ(tuning.measurements_size(), 1) << tuning.without();
    return tuning.measurements_size() == 1 ? tuning.measurements(0).winner().algorithm().data() : "";
  };
  EXPECT_EQ(measure(*asks_, 1), "faster");
  std::string winner;
  for (int gemm = 16384; winner != "seen" && gemm < 10 * 16384; gemm += 2 * 16384)
    winner = measure(*asks_, gemm);
  EXPECT_EQ(winner, "seen") << "the control: the tenant's own is kept, unless it is idle for ten seconds";
  const std::set<pid_t> of_test = TunersOf(serves);
  EXPECT_EQ(measure(blue, 16384), "");
  for (const pid_t tuner : TunersOf(serves)) EXPECT_FALSE(of_test.contains(tuner));
  EXPECT_EQ(serves.Stats().worker_crashes(), 0);
}

// The control: it is the list that does it.
TEST_F(TierWorkDaemons, WhoDoesNotAskKeepsItsDefault) {
  const std::unique_ptr<TestDaemon> serves = Serving();
  TestDaemon alone(absl::StrCat(ConfigOf("other", "WORK_LIST_SERVE"), kAsks));
  EXPECT_TRUE(Eventually([&] { return WorkOf(*serves).serves_size() == 1; }, absl::Seconds(20)));
  const v1::Tuning tuning = TuningOf(alone.Compile("gemms 1"));
  EXPECT_EQ(tuning.waits_for(), "");
  EXPECT_NE(tuning.without().find("off"), std::string::npos) << tuning.without();
  absl::SleepFor(absl::Seconds(3));
  EXPECT_EQ(TuningOf(alone.Compile("gemms 1")).measurements_size(), 0);
  EXPECT_TRUE(Lists().empty());
}

TEST_F(TierWorkDaemons, EachKindOfTunableIsMeasuredElsewhere) {
  const std::unique_ptr<TestDaemon> serves = Serving();
  EXPECT_TRUE(Eventually([&] { return WorkOf(*serves).serves_size() == 1; }, absl::Seconds(20)));
  // A kernel of our own for a gemm is emitted where it is measured, and so are a kernel's schedules.
  TuningOf(asks_->Compile("rows 9\ngemms 1\nschedules 1 0\nconvolutions 1"));
  const v1::Tuning tuning = Remade(*asks_, "rows 9\ngemms 1\nschedules 1 0\nconvolutions 1");
  EXPECT_EQ(tuning.without(), "");
  ASSERT_EQ(tuning.measurements_size(), 4);
  EXPECT_EQ(tuning.measurements(0).winner().native().name(), "faster");
  EXPECT_EQ(tuning.measurements(1).winner().plan().engine(), 1);
  EXPECT_EQ(tuning.measurements(2).winner().schedule().threads().threads(), 1);
  EXPECT_FALSE(tuning.measurements(3).has_winner());
  EXPECT_EQ(asks_->Stats().tunables_measured(), 0);
  // It is the program that who has the device makes.
  const CompileResult made = asks_->Compile("rows 9\ngemms 1\nschedules 1 0\nconvolutions 1");
  for (const std::string& name : redis_->Keys("*:m")) redis_->Ask({"DEL", name});
  const CompileResult own = serves->Compile("rows 9\ngemms 1\nschedules 1 0\nconvolutions 1");
  EXPECT_EQ(own.manifest.SerializeAsString(), made.manifest.SerializeAsString());
}

// The second layout is planned when the first is priced: the program is recompiled more than once.
TEST_F(TierWorkDaemons, TheLayoutOfImagesIsFoundElsewhere) {
  const std::unique_ptr<TestDaemon> serves = Serving();
  const std::string script = "convolutions 0 0\ntraced 1 1";
  EXPECT_FALSE(TuningOf(asks_->Compile(script)).images().as_traced());
  v1::Tuning tuning;
  EXPECT_TRUE(Eventually(
      [&] {
        tuning = TuningOf(asks_->Compile(script));
        return tuning.waits_for().empty();
      },
      absl::Seconds(60)));
  EXPECT_EQ(tuning.images().without(), "");
  EXPECT_TRUE(tuning.images().as_traced());
  ASSERT_EQ(tuning.measurements_size(), 1);
  EXPECT_EQ(tuning.measurements(0).winner().plan().engine(), 1);
  EXPECT_LE(WorkOf(*asks_).remade(), 3);
}

TEST_F(TierWorkDaemons, WhereNobodyHasTheDeviceTheDefaultIsServedAndTheReasonTold) {
  const CompileResult first = asks_->Compile("gemms 1");
  EXPECT_EQ(TuningOf(first).waits_for(), "sm_90");
  EXPECT_NE(TuningOf(first).without().find("no daemon of the shared tier has told of such a device"),
            std::string::npos)
      << TuningOf(first).without();
  EXPECT_TRUE(Eventually([&] { return Length() == 1; }));
  // The same tunable in other programs, and at another daemon, is on the list once.
  TestDaemon other(absl::StrCat(ConfigOf("other"), kAsks));
  TuningOf(asks_->Compile("gemms 1\nname another"));
  TuningOf(other.Compile("gemms 1\nname a third"));
  EXPECT_TRUE(Eventually([&] { return WorkOf(*asks_).waiting() == 2 && WorkOf(other).waiting() == 1; }));
  absl::SleepFor(absl::Seconds(3));
  EXPECT_EQ(Length(), 1);
  EXPECT_EQ(WorkOf(*asks_).asked() + WorkOf(other).asked(), 1);
  EXPECT_EQ(asks_->Compile("gemms 1").manifest.variant_id(), first.manifest.variant_id());

  // A device that comes later serves what waits, and each is measured once.
  const std::unique_ptr<TestDaemon> serves = Serving();
  EXPECT_EQ(Remade(*asks_, "gemms 1", 2).measurements(0).winner().algorithm().data(), "faster");
  Remade(other, "gemms 1\nname a third");
  EXPECT_EQ(serves->Stats().tunables_measured(), 1);
}

TEST_F(TierWorkDaemons, PeopleAreToldWhatWaitsAndWhoMeasures) {
  const CompileResult waits = asks_->Compile("gemms 1");
  EXPECT_TRUE(Eventually([&] { return WorkOf(*asks_).waiting() == 1; }));
  const std::string key = ToHex(waits.manifest.compile_key()).substr(0, 12);
  EXPECT_NE(Kilnctl(*asks_, "why " + key).find("waits for a device of kind sm_90"), std::string::npos);
  EXPECT_NE(Kilnctl(*asks_, "show " + key).find("waits for a device of kind sm_90"), std::string::npos);
  EXPECT_NE(Kilnctl(*asks_, "status").find("1 programs wait for other devices"), std::string::npos);
  const std::unique_ptr<TestDaemon> serves = Serving();
  Remade(*asks_, "gemms 1");
  EXPECT_EQ(Kilnctl(*asks_, "why " + key).find("waits for"), std::string::npos);
  EXPECT_NE(Kilnctl(*asks_, "why " + key).find("measurements that another daemon has made since"),
            std::string::npos);
  EXPECT_TRUE(Eventually([&] { return WorkOf(*serves).measured() == 1; }));
  EXPECT_NE(Kilnctl(*serves, "status").find("measures for others on sm_90: 1 measured"), std::string::npos);
}

TEST_F(TierWorkDaemons, OfAnotherKindOfDeviceItIsNotMeasured) {
  const std::unique_ptr<TestDaemon> serves = Serving();  // sm_90
  EXPECT_EQ(TuningOf(asks_->Compile("gemms 1\nsm_80")).waits_for(), "sm_80");
  // Who has a GPU of another kind asks as well.
  EXPECT_EQ(TuningOf(serves->Compile("gemms 2\nsm_80")).waits_for(), "sm_80");
  EXPECT_TRUE(Eventually([&] { return Length() == 2; }));
  absl::SleepFor(absl::Seconds(3));
  EXPECT_EQ(Length(), 2);
  EXPECT_EQ(serves->Stats().tunables_measured(), 0);
}

TEST_F(TierWorkDaemons, WhatCantBeMeasuredKeepsItsDefaultAndIsAskedForOnce) {
  const std::unique_ptr<TestDaemon> serves = Serving();
  EXPECT_TRUE(Eventually([&] { return WorkOf(*serves).serves_size() == 1; }, absl::Seconds(20)));
  TuningOf(asks_->Compile("gemms 64 1"));  // the tuner crashes over the first
  const v1::Tuning tuning = Remade(*asks_, "gemms 64 1");
  ASSERT_EQ(tuning.measurements_size(), 1);
  EXPECT_EQ(tuning.measurements(0).winner().algorithm().data(), "faster");
  EXPECT_EQ(tuning.waits_for(), "sm_90");
  EXPECT_EQ(WorkOf(*serves).failed(), 1);
  absl::SleepFor(absl::Seconds(3));
  EXPECT_EQ(WorkOf(*asks_).waiting(), 1) << "somebody may be able to later";
  EXPECT_EQ(WorkOf(*asks_).asked(), 2);
  EXPECT_EQ(WorkOf(*asks_).remade(), 1);
  EXPECT_EQ(WorkOf(*serves).failed(), 1);
}

// Who comes late is served what the gang was promised; another gang has the better one.
TEST_F(TierWorkDaemons, AGangGoesOnWithWhatItWasPromised) {
  const Served promised = Ask(*ClientOf(*asks_), "gemms 1", 0, GangOf("a"));
  ASSERT_TRUE(promised.status.ok()) << promised.status;
  const std::unique_ptr<TestDaemon> serves = Serving();
  ASSERT_TRUE(Eventually([&] { return WorkOf(*asks_).remade() == 1; }, absl::Seconds(60)));
  const Served late = Ask(*ClientOf(*asks_), "gemms 1", 0, GangOf("a"));
  EXPECT_EQ(late.variant, promised.variant) << late.status;
  const Served other = Ask(*ClientOf(*asks_), "gemms 1", 0, GangOf("b"));
  EXPECT_TRUE(other.status.ok()) << other.status;
  EXPECT_NE(other.variant, promised.variant);
  // Also at another daemon, and when the better one is there.
  EXPECT_EQ(Ask(*ClientOf(*serves), "gemms 1", 0, GangOf("a")).variant, promised.variant);
  EXPECT_EQ(Ask(*ClientOf(*serves), "gemms 1", 0, GangOf("b")).variant, other.variant);
  EXPECT_EQ(Ask(*ClientOf(*asks_), "gemms 1", 0).variant, other.variant);
}

// Another variant of the key, which waits for nothing, says nothing of the first.
TEST_F(TierWorkDaemons, EachVariantWaitsForItsOwn) {
  const std::string script = "gemms 1\nguarded";
  EXPECT_EQ(TuningOf(asks_->Compile(script, {5})).waits_for(), "sm_90");
  EXPECT_TRUE(Eventually([&] { return Length() == 1; }));
  asks_->Stop(SIGTERM);
  asks_->Configure(absl::StrCat(ConfigOf("asks", "WORK_LIST_SERVE"), kAsks));
  asks_->Start();
  EXPECT_EQ(TuningOf(asks_->Compile(script, {105})).waits_for(), "");
  asks_->Stop(SIGTERM);
  asks_->Configure(absl::StrCat(ConfigOf("asks"), kAsks));
  asks_->Start();
  const std::unique_ptr<TestDaemon> serves = Serving();
  EXPECT_TRUE(Eventually([&] { return WorkOf(*serves).measured() == 1; }, absl::Seconds(20)));
  asks_->Compile(script, {5});
  EXPECT_TRUE(Eventually([&] { return WorkOf(*asks_).remade() == 1; }, absl::Seconds(20)));
  EXPECT_EQ(TuningOf(asks_->Compile(script, {5})).measurements_size(), 1);
  EXPECT_EQ(TuningOf(asks_->Compile(script, {105})).measurements_size(), 0) << "which has waited for nothing";
}

// ---- Where another can't be made -------------------------------------------------------------

TEST_F(TierWorkDaemons, WhatIsOutdatedIsServedByADaemonThatTakesNothingNew) {
  const CompileResult first = asks_->Compile("gemms 1");
  EXPECT_TRUE(Eventually([&] { return Length() == 1; }));
  const std::unique_ptr<TestDaemon> serves = Serving();
  ASSERT_TRUE(Eventually([&] { return WorkOf(*asks_).remade() == 1; }, absl::Seconds(60)));
  Kilnctl(*asks_, "drain");
  EXPECT_NE(Kilnctl(*asks_, "status").find("drained"), std::string::npos);
  const CompileResult drained = asks_->Compile("gemms 1");
  EXPECT_TRUE(drained.done) << drained.failed_reason << drained.status.error_message();
  EXPECT_TRUE(drained.durable);
  EXPECT_EQ(drained.manifest.variant_id(), first.manifest.variant_id());
  EXPECT_FALSE(asks_->Compile("gemms 2").done) << "the control";
  Kilnctl(*asks_, "drain --undo");
  EXPECT_NE(asks_->Compile("gemms 1").manifest.variant_id(), first.manifest.variant_id());
}

TEST_F(TierWorkDaemons, WhatIsOutdatedIsAHitForWhoMayNotCompile) {
  const std::string compiles = absl::StrCat(ConfigOf("asks"), kAsks);
  const std::string reads =
      absl::StrReplaceAll(compiles, {{"name: \"test\"", "name: \"test\" roles: ROLE_READ"}});
  const CompileResult first = asks_->Compile("gemms 1");
  EXPECT_TRUE(Eventually([&] { return Length() == 1; }));
  const std::unique_ptr<TestDaemon> serves = Serving();
  EXPECT_TRUE(Eventually([&] { return WorkOf(*serves).measured() == 1; }, absl::Seconds(20)));
  for (const std::string* config : {&reads, &compiles}) {
    asks_->Stop(SIGTERM);
    asks_->Configure(*config);
    asks_->Start();
    EXPECT_TRUE(asks_->Lookup("gemms 1").has_hit());
    EXPECT_TRUE(Eventually([&] { return WorkOf(*asks_).remade() == 1; }, absl::Seconds(20)));
    EXPECT_EQ(asks_->Lookup("gemms 1").has_hit(), config == &reads);
  }
}

// ---- Starts and flushes ----------------------------------------------------------------------

// After a start it goes on waiting, by what the store says of the program that is asked for.
TEST_F(TierWorkDaemons, AStartForgetsNothing) {
  TuningOf(asks_->Compile("gemms 1"));
  EXPECT_TRUE(Eventually([&] { return Length() == 1; }));
  asks_->Stop(SIGTERM);
  const std::unique_ptr<TestDaemon> serves = Serving();
  EXPECT_TRUE(Eventually([&] { return WorkOf(*serves).measured() == 1; }, absl::Seconds(20)));
  asks_->Start();
  EXPECT_EQ(TuningOf(asks_->Compile("gemms 1")).waits_for(), "sm_90") << "the one that is stored";
  EXPECT_EQ(Remade(*asks_, "gemms 1").measurements_size(), 1);
  EXPECT_EQ(WorkOf(*asks_).asked(), 0);
}

TEST_F(TierWorkDaemons, AFlushedTierIsAskedAgain) {
  TuningOf(asks_->Compile("gemms 1"));
  EXPECT_TRUE(Eventually([&] { return Length() == 1; }));
  redis_->Ask({"FLUSHALL"});
  EXPECT_TRUE(Eventually([&] { return Length() == 1; }, absl::Seconds(60)));
  EXPECT_EQ(WorkOf(*asks_).asked(), 2);
  const std::unique_ptr<TestDaemon> serves = Serving();
  EXPECT_EQ(Remade(*asks_, "gemms 1").measurements_size(), 1);
}

// ---- Daemons that end ------------------------------------------------------------------------

TEST_F(TierWorkDaemons, AnotherTakesOverFromOneThatWasKilled) {
  std::unique_ptr<TestDaemon> serves = Serving();
  EXPECT_TRUE(Eventually([&] { return WorkOf(*serves).serves_size() == 1; }, absl::Seconds(20)));
  TuningOf(asks_->Compile("gemms 4"));  // one that hangs for a second
  ASSERT_TRUE(Eventually([&] { return GpuIsLeased(*serves); }, absl::Seconds(20)));
  serves->Stop(SIGKILL);
  EXPECT_EQ(Length(), 1) << "it has been measured already";
  const std::unique_ptr<TestDaemon> other = Serving("other");
  EXPECT_EQ(Remade(*asks_, "gemms 4").measurements_size(), 1);
  EXPECT_EQ(other->Stats().tunables_measured(), 1);
  EXPECT_EQ(Length(), 0);
}

TEST_F(TierWorkDaemons, OneThatIsStoppedLeavesItToAnother) {
  std::unique_ptr<TestDaemon> serves = Serving();
  EXPECT_TRUE(Eventually([&] { return WorkOf(*serves).serves_size() == 1; }, absl::Seconds(20)));
  TuningOf(asks_->Compile("gemms 4"));
  ASSERT_TRUE(Eventually([&] { return GpuIsLeased(*serves); }, absl::Seconds(20)));
  const absl::Time begin = absl::Now();
  serves->Stop(SIGTERM);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  const std::unique_ptr<TestDaemon> other = Serving("other");
  EXPECT_EQ(Remade(*asks_, "gemms 4").measurements_size(), 1);
}

// What another is to emit is emitted before a GPU is taken for it, and one whose workers are busy gives it
// back.
TEST_F(TierWorkDaemons, WorkersThatAreBusyKeepNoGpu) {
  TestDaemon busy(absl::StrCat(ConfigOf("serves"), Gpu()), {}, "", /*workers=*/1);
  EXPECT_TRUE(Eventually([&] { return WorkOf(busy).serves_size() == 1; }, absl::Seconds(20)));
  std::thread own([&] { busy.Compile("sleep_ms 60000", {}, absl::Seconds(14)); });
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::JobsReply jobs;
    return busy.admin().Jobs(&context, {}, &jobs).ok() && jobs.jobs_size() == 1 &&
           jobs.jobs(0).phase() == "planning";
  }));
  TuningOf(asks_->Compile("rows 9\ngemms 1"));
  ASSERT_TRUE(Eventually([&] { return Length() == 1 && Claimed() == "1"; }, absl::Seconds(10)));
  const std::unique_ptr<TestDaemon> other = Serving("other");
  bool leased = false;
  EXPECT_TRUE(Eventually(
      [&] {
        leased = leased || GpuIsLeased(busy);
        return WorkOf(*other).measured() == 1;
      },
      absl::Seconds(15)));
  EXPECT_FALSE(leased);
  const v1::Tuning remade = Remade(*asks_, "rows 9\ngemms 1");
  ASSERT_EQ(remade.measurements_size(), 1);
  EXPECT_EQ(remade.measurements(0).winner().native().name(), "faster");
  EXPECT_EQ(WorkOf(busy).failed(), 0);
  own.join();
}

// Without `WORK_LIST_ASK` too: what it can't do others are not kept from.
TEST_F(TierWorkDaemons, WhoseGpuHasGoneLeavesTheItemToAnother) {
  TestDaemon serves(absl::StrCat(ConfigOf("serves", "WORK_LIST_SERVE"), Gpu()));
  EXPECT_TRUE(Eventually([&] { return WorkOf(serves).serves_size() == 1; }, absl::Seconds(20)));
  TakeGpu(serves);
  TuningOf(asks_->Compile("gemms 1"));
  EXPECT_TRUE(Eventually([&] { return WorkOf(serves).serves_size() == 0; }, absl::Seconds(20)));
  EXPECT_EQ(WorkOf(serves).failed(), 0);
  EXPECT_EQ(Length(), 1);
  const std::unique_ptr<TestDaemon> other = Serving("other");
  EXPECT_EQ(Remade(*asks_, "gemms 1").measurements_size(), 1);
  EXPECT_EQ(other->Stats().tunables_measured(), 1);
}

// A tier that lets daemons read, and change lists, and nothing else.
TEST_F(TierWorkDaemons, ARecordThatTheTierDoesNotTakeIsOfferedAgain) {
  const std::unique_ptr<TestDaemon> serves = Serving();
  EXPECT_TRUE(Eventually([&] { return WorkOf(*serves).serves_size() == 1; }, absl::Seconds(20)));
  redis_->Ask({"ACL", "SETUSER", "default", "resetkeys", "%R~*", "~kiln:1:test:{w:*"});
  TuningOf(asks_->Compile("gemms 1"));
  EXPECT_TRUE(Eventually([&] { return serves->Stats().tunables_measured() == 1; }, absl::Seconds(20)));
  absl::SleepFor(absl::Seconds(2));
  EXPECT_EQ(Length(), 1);
  EXPECT_EQ(WorkOf(*serves).measured(), 0);
  redis_->Ask({"ACL", "SETUSER", "default", "~*"});
  EXPECT_EQ(Remade(*asks_, "gemms 1").measurements_size(), 1);
  EXPECT_EQ(serves->Stats().tunables_measured(), 1);
}

// ---- Who is believed -------------------------------------------------------------------------

TEST_F(TierWorkDaemons, AnItemThatDoesNotHoldIsRefused) {
  // One that nobody trusted has signed, beside those that are damaged in the tier.
  TestDaemon stranger(absl::StrCat(Config("stranger", {}), kAsks));
  TuningOf(stranger.Compile("gemms 1"));
  TuningOf(asks_->Compile("gemms 2"));
  EXPECT_TRUE(Eventually([&] { return Length() == 2; }));
  redis_->Ask({"XADD", Lists()[0], "*", "s", std::string(32, 's'), "i", "a lie"});
  redis_->Ask({"XADD", Lists()[0], "*", "what", "is this"});
  const std::unique_ptr<TestDaemon> serves = Serving();
  EXPECT_EQ(Remade(*asks_, "gemms 2").measurements_size(), 1);
  EXPECT_TRUE(Eventually([&] { return WorkOf(*serves).refused() >= 3; })) << WorkOf(*serves).DebugString();
  EXPECT_EQ(serves->Stats().tunables_measured(), 1);
  EXPECT_EQ(WorkOf(*serves).measured(), 1);
  EXPECT_TRUE(Eventually([&] { return Length() <= 1; }));
  EXPECT_EQ(serves->Stats().worker_crashes(), 0);
}

// A tenant whose quota is used up there is not measured for.
TEST_F(TierWorkDaemons, WhatIsMeasuredIsTheTenantsSeconds) {
  const std::string config = absl::StrReplaceAll(
      ConfigOf("serves"), {{"name: \"test\"", "name: \"test\" compile_seconds_per_hour: 1"}});
  TestDaemon serves(absl::StrCat(config, Gpu()));
  EXPECT_TRUE(Eventually([&] { return WorkOf(serves).serves_size() == 1; }, absl::Seconds(20)));
  // Each takes a second and more: those that hang lose after one.
  TuningOf(asks_->Compile("gemms 4 5 6"));
  EXPECT_TRUE(Eventually([&] { return WorkOf(serves).measured() >= 1; }, absl::Seconds(20)));
  absl::SleepFor(absl::Seconds(3));
  EXPECT_EQ(WorkOf(serves).measured(), 1);
  EXPECT_EQ(Length(), 2);
}

}  // namespace
}  // namespace kiln
