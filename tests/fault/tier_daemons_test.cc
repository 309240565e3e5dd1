// Daemons with stores of their own and one shared tier: what one has compiled the others do not.
#include "tests/fault/tier_daemons.h"

#include <algorithm>
#include <csignal>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache/shared/tier_claims.h"
#include "cache/shared/tier_value.h"
#include "compiler/graph/key.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "gtest/gtest.h"
#include "tests/fault/process_facts.h"

namespace kiln {
namespace {

std::vector<std::string> Scripts(int count) {
  std::vector<std::string> scripts;
  for (int i = 0; i < count; ++i) scripts.push_back(absl::StrCat("name program ", i, "\nkernels 3"));
  return scripts;
}

TEST_F(TierDaemons, TheSecondCompilesNothing) {
  const std::vector<std::string> scripts = Scripts(20);
  TestDaemon first(Config("first", {"second"}));
  TestDaemon second(Config("second", {"first"}));
  EXPECT_EQ(CompileAll(first, scripts), 20);
  AwaitWrites(first, 20);
  EXPECT_EQ(CompileAll(second, scripts), 0);
  const v1::TierStatus status = StatusOf(second);
  EXPECT_EQ(status.hits(), 20) << status.DebugString();
  EXPECT_EQ(status.refused(), 0);

  // What it serves is what was compiled, durable, with its objects, and known without the tier from now on.
  const CompileResult made = first.Compile(scripts[0]);
  const CompileResult taken = second.Compile(scripts[0]);
  EXPECT_EQ(made.manifest_bytes, taken.manifest_bytes);
  EXPECT_TRUE(taken.durable);
  ASSERT_EQ(taken.manifest.kernels_size(), 3);
  std::vector<std::string> digests;
  for (const v1::ManifestKernel& kernel : taken.manifest.kernels())
    digests.push_back(kernel.object().digest());
  grpc::Status fetched;
  EXPECT_FALSE(second.Fetch(taken.manifest, digests, &fetched).empty());
  EXPECT_TRUE(fetched.ok()) << fetched.error_message();
  redis_->Kill();
  EXPECT_EQ(CompileAll(second, scripts), 0);
}

// The control.
TEST_F(TierDaemons, WithoutATierTheSecondCompilesAll) {
  const std::vector<std::string> scripts = Scripts(5);
  TestDaemon first(Config("first", {"second"}));
  TestDaemon second(Config("second", {"first"}, /*tier=*/false));
  EXPECT_EQ(CompileAll(first, scripts), 5);
  AwaitWrites(first, 5);
  EXPECT_EQ(CompileAll(second, scripts), 5);
}

TEST_F(TierDaemons, WhoseKeyIsNotTrustedIsBelievedNothing) {
  const std::vector<std::string> scripts = Scripts(5);
  TestDaemon first(Config("first", {}));
  TestDaemon second(Config("second", {}));
  EXPECT_EQ(CompileAll(first, scripts), 5);
  AwaitWrites(first, 5);
  EXPECT_EQ(CompileAll(second, scripts), 5);
  EXPECT_GE(StatusOf(second).refused(), 5);  // again when it has claimed the key
}

TEST_F(TierDaemons, RefusalsAreSharedToo) {
  TestDaemon first(Config("first", {"second"}));
  TestDaemon second(Config("second", {"first"}));
  const std::string script = "refuse 12 no such operator";
  EXPECT_EQ(first.Compile(script).failed_code, 12);
  AwaitWrites(first, 1);
  const CompileResult told = second.Compile(script);
  EXPECT_EQ(told.failed_code, 12);
  EXPECT_EQ(told.failed_reason, "no such operator");
  EXPECT_EQ(second.Stats().compiles(), 0);
}

// ---- What brings workers down ---------------------------------------------------------------------

TEST_F(TierDaemons, WhatBroughtWorkersDownIsTriedTwiceInTheCluster) {
  for (const bool shared : {true, false}) {  // the control
    TestDaemon first(Config("first", {"second"}, shared));
    TestDaemon second(Config("second", {"first"}, shared));
    const CompileResult killed = first.Compile("name killer\ncrash");
    EXPECT_EQ(killed.failed_code, grpc::FAILED_PRECONDITION);
    EXPECT_EQ(first.Stats().worker_crashes(), 2);
    if (shared) AwaitWrites(first, 1);
    const CompileResult told = second.Compile("name killer\ncrash");
    EXPECT_EQ(told.failed_code, grpc::FAILED_PRECONDITION) << told.failed_reason;
    EXPECT_EQ(second.Stats().worker_crashes(), shared ? 0 : 2);
    // Another's graph is none of it.
    EXPECT_TRUE(second.Compile("name other").done);
  }
}

// Of a daemon that lost one worker, and whose caller did not wait for more.
TEST_F(TierDaemons, OneCrashOfEachIsTwoOfAll) {
  const std::string script = "name killer\nsleep_ms 1000\ncrash";
  for (const bool shared : {true, false}) {  // the control
    redis_->Ask({"FLUSHALL"});
    TestDaemon first(Config("first", {"second"}, shared));
    TestDaemon second(Config("second", {"first"}, shared));
    std::thread caller([&] { first.Compile(script, {}, absl::Milliseconds(1700)); });
    EXPECT_TRUE(Eventually([&] { return first.Stats().worker_crashes() == 1; }));
    caller.join();
    EXPECT_TRUE(Eventually([&] {
      grpc::ClientContext context;
      v1::JobsReply jobs;
      return first.admin().Jobs(&context, {}, &jobs).ok() && jobs.jobs_size() == 0;
    }));
    ASSERT_EQ(first.Stats().worker_crashes(), 1);
    EXPECT_EQ(second.Compile(script).failed_code, grpc::FAILED_PRECONDITION);
    EXPECT_EQ(second.Stats().worker_crashes(), shared ? 1 : 2);
    EXPECT_EQ(redis_->Keys("*:x").size(), shared ? 1u : 0u);
  }
}

// Who may write the tier can make one crash count for two, and refuse nothing.
TEST_F(TierDaemons, ALieAboutCrashesRefusesNothing) {
  TestDaemon daemon(Config("daemon", {}));
  const std::string script = "name healthy";
  const std::string key =
      CompileKey("test", RequestKey(SectionsOf(script)), kProgramFormatVersion, "scripted-1");
  redis_->Ask({"SET", TierName("test", key, "x"), "1000"});
  EXPECT_TRUE(daemon.Compile(script).done);
  AwaitWrites(daemon, 1);
  EXPECT_TRUE(redis_->Keys("*:x").empty()) << "forgiven by its program";
}

// A person's word ends it for all that ask then.
TEST_F(TierDaemons, ARefusalThatIsRemovedLeavesTheTier) {
  TestDaemon first(Config("first", {"second"}));
  TestDaemon second(Config("second", {"first"}));
  EXPECT_EQ(first.Compile("name killer\ncrash").failed_code, grpc::FAILED_PRECONDITION);
  AwaitWrites(first, 1);
  EXPECT_EQ(redis_->Keys("*:f").size(), 1u);
  grpc::ClientContext context;
  v1::RemoveRequest request;
  request.set_key_prefix(ToHex(RequestKey(SectionsOf("name killer\ncrash"))).substr(0, 16));
  v1::RemoveReply reply;
  const grpc::Status removed = first.admin().Remove(&context, request, &reply);
  EXPECT_TRUE(removed.ok()) << removed.error_message();
  EXPECT_EQ(reply.failures(), 1);
  EXPECT_TRUE(redis_->Keys("*:f").empty());
  EXPECT_TRUE(redis_->Keys("*:x").empty());
  second.Compile("name killer\ncrash");
  EXPECT_EQ(second.Stats().worker_crashes(), 2) << "tried again";
}

TEST_F(TierDaemons, VariantsComeOneByOne) {
  TestDaemon first(Config("first", {"second"}));
  TestDaemon second(Config("second", {"first"}));
  const std::string script = "name sized\nguarded";
  EXPECT_TRUE(first.Compile(script, {150}).done);
  AwaitWrites(first, 1);
  EXPECT_TRUE(second.Compile(script, {160}).done);
  EXPECT_EQ(second.Stats().compiles(), 0);
  EXPECT_TRUE(first.Compile(script, {250}).done);
  AwaitWrites(first, 2);
  EXPECT_TRUE(second.Compile(script, {260}).done);
  EXPECT_EQ(second.Stats().compiles(), 0);
  EXPECT_TRUE(second.Compile(script, {350}).done);
  EXPECT_EQ(second.Stats().compiles(), 1);
}

// By what a daemon has had for long, when it is asked for it.
TEST_F(TierDaemons, AFlushedTierIsFilledByUse) {
  TestDaemon first(Config("first", {"second"}));
  TestDaemon second(Config("second", {"first"}));
  const std::string script = "name kept\nkernels 3";
  EXPECT_TRUE(first.Compile(script).done);
  AwaitWrites(first, 1);
  redis_->Ask({"FLUSHALL"});
  first.Stop(SIGTERM);
  first.Start();
  EXPECT_TRUE(first.Lookup(script).has_hit());
  AwaitWrites(first, 1);
  EXPECT_EQ(CompileAll(second, {script}), 0);
}

// ---- Claims ----------------------------------------------------------------------------------

class TierClaimsOfDaemons : public TierDaemons {
 protected:
  void SetUp() override {
    TierDaemons::SetUp();
    if (IsSkipped()) return;
    for (const char* key : {"a", "b", "c"}) {
      std::vector<std::string> others = {"a", "b", "c"};
      others.erase(std::find(others.begin(), others.end(), key));
      daemons_.push_back(std::make_unique<TestDaemon>(Config(key, others)));
    }
  }
  // All at once, spread over the daemons, and all are served. What they are served: each manifest's bytes,
  // once.
  std::set<std::string> AskAll(const std::string& script) {
    const size_t callers_count = static_cast<size_t>(Count(300, 1000));
    std::vector<CompileResult> results(callers_count);
    std::vector<std::thread> callers;
    for (size_t i = 0; i < callers_count; ++i) {
      callers.emplace_back(
          [&, i] { results[i] = daemons_[i % daemons_.size()]->Compile(script, {}, absl::Seconds(120)); });
    }
    for (std::thread& caller : callers) caller.join();
    std::set<std::string> manifests;
    for (const CompileResult& result : results) {
      EXPECT_TRUE(result.done) << result.failed_reason << result.status.error_message();
      manifests.insert(result.manifest_bytes);
    }
    return manifests;
  }
  uint64_t Compiles() {
    uint64_t compiles = 0;
    for (const std::unique_ptr<TestDaemon>& daemon : daemons_) compiles += daemon->Stats().compiles();
    return compiles;
  }
  bool IsClaimed() { return !redis_->Keys("*:c").empty(); }

  std::vector<std::unique_ptr<TestDaemon>> daemons_;
};

TEST_F(TierClaimsOfDaemons, CallersOfThreeDaemonsCostOneCompileAndHaveTheSameBytes) {
  const std::set<std::string> manifests = AskAll("name wanted\nsleep_ms 1000\nkernels 4");
  EXPECT_EQ(manifests.size(), 1);
  EXPECT_EQ(manifests.count(""), 0);
  EXPECT_EQ(Compiles(), 1);
  EXPECT_TRUE(Eventually([&] { return !IsClaimed(); }));
}

// The control: it is the tier that makes it one compile.
TEST_F(TierClaimsOfDaemons, WithTheTierCutEachDaemonCompilesOnce) {
  redis_->Kill();
  const std::set<std::string> manifests = AskAll("name wanted\nsleep_ms 1000\nkernels 4");
  EXPECT_EQ(manifests.size(), 1) << "whoever made it";
  EXPECT_EQ(manifests.count(""), 0);
  EXPECT_EQ(Compiles(), 3);
}

TEST_F(TierClaimsOfDaemons, WhoWaitsHoldsNoWorker) {
  std::thread long_one([&] { daemons_[0]->Compile("name long\nsleep_ms 4000"); });
  EXPECT_TRUE(Eventually([&] { return IsClaimed(); }));
  std::thread waiting([&] { EXPECT_TRUE(daemons_[1]->Compile("name long\nsleep_ms 4000").done); });
  const auto jobs = [&](TestDaemon& daemon) {
    grpc::ClientContext context;
    v1::JobsReply reply;
    EXPECT_TRUE(daemon.admin().Jobs(&context, {}, &reply).ok());
    return reply;
  };
  EXPECT_TRUE(Eventually([&] { return jobs(*daemons_[1]).jobs_size() == 1; }));
  EXPECT_EQ(jobs(*daemons_[1]).jobs(0).phase(), "looking");
  EXPECT_TRUE(daemons_[1]->Compile("name short").done);
  EXPECT_EQ(jobs(*daemons_[1]).jobs_size(), 1);
  long_one.join();
  waiting.join();
  EXPECT_EQ(daemons_[1]->Stats().compiles(), 1);  // the short one
}

// Who has claimed it dies, at one point or another: the next takes over, and nobody fails.
TEST_F(TierClaimsOfDaemons, TheNextTakesOverWhereTheOwnerDies) {
  for (const char* point : {"name plans\nsleep_ms 3000", "name emits\nkernels 30\nemit slow"}) {
    const std::string script = point;
    std::thread owner([&] { daemons_[0]->Compile(script); });
    EXPECT_TRUE(Eventually([&] { return daemons_[0]->Stats().compiles() == 1; })) << script;
    const uint64_t before = daemons_[1]->Stats().compiles();
    std::thread waiting([&] { EXPECT_TRUE(daemons_[1]->Compile(script).done) << script; });
    absl::SleepFor(absl::Milliseconds(500));
    EXPECT_EQ(daemons_[1]->Stats().compiles(), before) << script << ": it waits";
    daemons_[0]->Stop(SIGKILL);
    owner.join();
    waiting.join();
    EXPECT_EQ(daemons_[1]->Stats().compiles(), before + 1) << script;
    EXPECT_EQ(CompileAll(*daemons_[2], {script}), 0) << script;
    daemons_[0]->Start();
  }
}

// Its objects reach the tier and its manifest does not: who waits compiles, and is not kept waiting.
TEST_F(TierClaimsOfDaemons, TheNextTakesOverWhereTheManifestIsNotTaken) {
  redis_->Ask({"ACL", "SETUSER", "default", "-hset"});
  std::thread owner([&] { EXPECT_TRUE(daemons_[0]->Compile("name half\nsleep_ms 1000").done); });
  EXPECT_TRUE(Eventually([&] { return daemons_[0]->Stats().compiles() == 1; }));
  EXPECT_TRUE(daemons_[1]->Compile("name half\nsleep_ms 1000").done);
  owner.join();
  EXPECT_EQ(Compiles(), 2);
  EXPECT_EQ(StatusOf(*daemons_[0]).dropped_writes(), 1);
}

// Whom everybody has left gives its claim to who still wants the program.
TEST_F(TierClaimsOfDaemons, TheNextTakesOverWhereNobodyWaitsForTheOwner) {
  const std::string script = "name left\nsleep_ms 2000";
  std::thread left([&] { daemons_[0]->Compile(script, {}, absl::Milliseconds(700)); });
  EXPECT_TRUE(Eventually([&] { return IsClaimed(); }));
  EXPECT_TRUE(daemons_[1]->Compile(script).done);
  left.join();
  EXPECT_EQ(daemons_[1]->Stats().compiles(), 1);
}

// While the tier is being asked: a claim by then would be nobody's, and the others would wait for its
// patience.
TEST_F(TierClaimsOfDaemons, WhomEverybodyLeftEarlyClaimsNothing) {
  const std::string script = "name early";
  redis_->Pause();
  EXPECT_FALSE(daemons_[0]->Compile(script, {}, absl::Milliseconds(500)).done);
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::JobsReply jobs;
    return daemons_[0]->admin().Jobs(&context, {}, &jobs).ok() && jobs.jobs().empty();
  }));
  const uint64_t misses = StatusOf(*daemons_[0]).misses();
  redis_->Continue();
  EXPECT_TRUE(Eventually([&] { return StatusOf(*daemons_[0]).misses() > misses; }));
  EXPECT_TRUE(daemons_[1]->Compile(script, {}, kClaimPatience / 2).done);
}

}  // namespace
}  // namespace kiln
