// Ranks of one job, of one daemon and of several: equal hints get one variant, and nobody has a program where
// another is told to fall back. The controls are the same callers without a gang.
#include "server/flight/gangs.h"

#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "compiler/graph/key.h"
#include "compiler/support/signature.h"
#include "gtest/gtest.h"
#include "kiln/client.h"
#include "tests/fault/gang_members.h"
#include "tests/fault/redis_server.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

constexpr char kScript[] = "name sized\naround 50";

// ---- One daemon ------------------------------------------------------------------------------

// Of the two variants that hold for 190 the one that everybody else gets is stored later.
TEST(Gangs, MembersKeepTheirVariantWhenAnotherFitsAsWell) {
  TestDaemon daemon;
  const std::unique_ptr<Client> client = ClientOf(daemon);
  bool differ = false;
  for (int i = 0; i < 20 && !differ; ++i) {  // which of them comes first is their digests' matter
    const std::string script = absl::StrCat(kScript, "\nkernels ", i + 1);
    const std::string theirs = Ask(*client, script, 230).variant;
    EXPECT_EQ(Ask(*client, script, 190, GangOf("a")).variant, theirs);
    EXPECT_NE(Ask(*client, script, 145).variant, theirs);
    differ = Ask(*client, script, 190).variant != theirs;
    const Served again = Ask(*client, script, 190, GangOf("a"));
    EXPECT_EQ(again.variant, theirs);
    EXPECT_TRUE(again.hit);
    EXPECT_EQ(Ask(*client, script, 190, GangOf("b")).variant, Ask(*client, script, 190).variant)
        << "a new start";
  }
  EXPECT_TRUE(differ) << "the control";
}

// A failure that the service forgets is the gang's until the job starts anew.
TEST(Gangs, WhatOneWasRefusedAllAreRefused) {
  TestDaemon daemon("workers { plan_seconds_max: 1 }");
  const std::unique_ptr<Client> client = ClientOf(daemon);
  const std::string script = absl::StrCat(kScript, "\nslow_from 1000");
  const Served refused = Ask(*client, script, 1000, GangOf("a"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(refused.status)) << refused.status;
  EXPECT_FALSE(IsWithoutVerdict(refused.status));
  // With other sizes, for which there is a program by now.
  const std::string variant = Ask(*client, script, 100).variant;
  EXPECT_FALSE(variant.empty());
  const Served other = Ask(*client, script, 100, GangOf("a"));
  EXPECT_EQ(other.status.message(), refused.status.message());
  EXPECT_FALSE(IsWithoutVerdict(other.status));
  EXPECT_EQ(Ask(*client, script, 100, GangOf("b")).variant, variant) << "a new start";
}

TEST(Gangs, WhoGetsNoVariantBesideOthersIsToldSo) {
  TestDaemon daemon("workers { plan_seconds_max: 1 }");
  const std::unique_ptr<Client> client = ClientOf(daemon);
  const std::string script = absl::StrCat(kScript, "\nslow_from 1000");
  const Served served = Ask(*client, script, 100, GangOf("a"));
  EXPECT_TRUE(served.status.ok()) << served.status;
  const Served refused = Ask(*client, script, 1000, GangOf("a"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(refused.status)) << refused.status;
  EXPECT_TRUE(IsWithoutVerdict(refused.status));
  EXPECT_EQ(Ask(*client, script, 100, GangOf("a")).variant, served.variant);
  // The control: without a gang nobody is told.
  const Served alone = Ask(*client, script, 1000);
  EXPECT_TRUE(absl::IsDeadlineExceeded(alone.status)) << alone.status;
  EXPECT_FALSE(IsWithoutVerdict(alone.status));
}

TEST(Gangs, WhoIsNotAnsweredKnowsNothingOfTheOthers) {
  TestDaemon daemon;
  const std::unique_ptr<Client> client = ClientOf(daemon);
  daemon.Stop(SIGKILL);
  EXPECT_TRUE(IsWithoutVerdict(Ask(*client, kScript, 100, GangOf("a")).status));
  EXPECT_FALSE(IsWithoutVerdict(Ask(*client, kScript, 100).status));
  v1::Gang alone = GangOf("a");
  alone.set_size(1);
  EXPECT_FALSE(IsWithoutVerdict(Ask(*client, kScript, 100, alone).status));
}

TEST(Gangs, AnIdIsSixteenBytes) {
  TestDaemon daemon;
  for (const size_t bytes : {1, 15, 17}) {
    v1::Gang gang;
    gang.set_id(std::string(bytes, 'a'));
    gang.set_size(4);
    v1::LookupRequest lookup;
    lookup.set_request_key(RequestKey(SectionsOf(kScript)));
    *lookup.mutable_gang() = gang;
    grpc::ClientContext looking, attaching;
    v1::LookupReply reply;
    const grpc::Status looked = daemon.compiler().Lookup(&looking, lookup, &reply);
    EXPECT_EQ(looked.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << bytes;
    EXPECT_NE(looked.error_message().find("gang.id"), std::string::npos) << looked.error_message();
    v1::CompileHeader header;
    *header.mutable_sections() = SectionsOf(kScript);
    header.set_graph_bytes(sizeof(kScript) - 1);
    header.mutable_hints()->add_values(100);
    *header.mutable_gang() = gang;
    const CompileResult compiled = daemon.Compile(header, kScript, absl::Seconds(60));
    EXPECT_EQ(compiled.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << bytes;
    v1::AttachRequest attach;
    *attach.mutable_gang() = gang;
    EXPECT_EQ(daemon.compiler().Attach(&attaching, attach)->Finish().error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
  // The control: no id, and one of the right length, without others.
  const std::unique_ptr<Client> client = ClientOf(daemon);
  v1::Gang one = GangOf("a");
  one.set_size(1);
  EXPECT_TRUE(Ask(*client, kScript, 100, one).status.ok());
}

// ---- Several daemons -------------------------------------------------------------------------

constexpr int kDaemons = 3;

// Daemons that trust each other and share a tier. Of kScript the first has the variant for 150, the second
// the one for 230, and the third none: both hold for 190.
class GangsOfDaemons : public testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::IsThere())
      GTEST_SKIP() << "no redis-server on this host (apt-get install redis-server)";
    char path[] = "/tmp/kiln-keys-XXXXXX";
    keys_ = mkdtemp(path);
    redis_ = std::make_unique<RedisServer>();
    for (int i = 0; i < kDaemons; ++i) daemons_.push_back(std::make_unique<TestDaemon>(Config(i)));
    redis_->Kill();
    apart_ = {Ask(*ClientOf(Daemon(0)), kScript, 150).variant,
              Ask(*ClientOf(Daemon(1)), kScript, 230).variant};
    EXPECT_NE(apart_[0], apart_[1]);
    redis_->Start();
    for (int i = 0; i < kDaemons; ++i) AwaitTier(i);
  }
  void TearDown() override { std::filesystem::remove_all(keys_); }

  // The third gives up a plan after a second.
  std::string Config(int daemon) {
    std::string config = absl::StrCat("listen { tenants { name: \"test\" uids: ", geteuid(), " } }\n",
                                      "signing { key_file: \"", keys_, "/", daemon, ".pem\"\n");
    for (int other = 0; other < kDaemons; ++other) {
      if (other == daemon) continue;
      absl::StatusOr<SigningKey> key = SigningKey::LoadOrMake(absl::StrCat(keys_, "/", other, ".pem"));
      EXPECT_TRUE(key.ok()) << key.status();
      absl::StrAppend(&config, "trusted { public_key: \"", absl::Base64Escape(key->public_key()),
                      "\" namespaces: \"test\" }\n");
    }
    // The limit is a loaded machine's.
    absl::StrAppend(&config, "}\ntier { lookup_ms_max: 10000 addresses: \"", redis_->address(), "\" }\n");
    if (daemon == 2) absl::StrAppend(&config, "workers { plan_seconds_max: 1 }\n");
    return config;
  }
  TestDaemon& Daemon(int i) { return *daemons_[static_cast<size_t>(i)]; }
  void AwaitTier(int daemon) {
    EXPECT_TRUE(Eventually([&] {
      grpc::ClientContext context;
      v1::StatusReply reply;
      return Daemon(daemon).admin().Status(&context, {}, &reply).ok() && reply.tier().connected();
    }));
  }
  bool HasVerdicts() { return !redis_->Keys("*:g:*").empty(); }

  std::string keys_;
  std::unique_ptr<RedisServer> redis_;
  std::vector<std::unique_ptr<TestDaemon>> daemons_;
  std::array<std::string, 2> apart_;
};

TEST_F(GangsOfDaemons, MembersOfTwoDaemonsGetOneVariant) {
  for (const bool reversed : {false, true}) {
    const v1::Gang gang = GangOf(reversed ? "b" : "a");
    const int first = reversed ? 1 : 0;
    EXPECT_EQ(Ask(*ClientOf(Daemon(first)), kScript, 190, gang).variant, apart_[first]);
    EXPECT_EQ(Ask(*ClientOf(Daemon(1 - first)), kScript, 190, gang).variant, apart_[first]);
    EXPECT_EQ(Ask(*ClientOf(Daemon(2)), kScript, 190, gang).variant, apart_[first]);
    // What the list does not cover is added, once.
    EXPECT_EQ(Ask(*ClientOf(Daemon(2)), kScript, reversed ? 140 : 240, gang).variant, apart_[1 - first]);
    EXPECT_EQ(Ask(*ClientOf(Daemon(1 - first)), kScript, 190, gang).variant, apart_[first]);
  }
}

// The control, while each has but its own.
TEST_F(GangsOfDaemons, WithoutAGangTheyGetTwo) {
  EXPECT_EQ(Ask(*ClientOf(Daemon(0)), kScript, 190).variant, apart_[0]);
  EXPECT_EQ(Ask(*ClientOf(Daemon(1)), kScript, 190).variant, apart_[1]);
}

TEST_F(GangsOfDaemons, AVerdictIsPutBackIntoAFlushedTier) {
  const v1::Gang gang = GangOf("a");
  EXPECT_EQ(Ask(*ClientOf(Daemon(0)), kScript, 190, gang).variant, apart_[0]);
  EXPECT_TRUE(HasVerdicts());
  redis_->Ask({"FLUSHALL"});
  EXPECT_TRUE(Eventually([&] { return HasVerdicts(); }));
  EXPECT_EQ(Ask(*ClientOf(Daemon(1)), kScript, 190, gang).variant, apart_[0]);
}

// As by a replica that lags and becomes the master.
TEST_F(GangsOfDaemons, AVerdictThatTheTierLostAPartOfIsMadeWhole) {
  const v1::Gang gang = GangOf("a");
  EXPECT_EQ(Ask(*ClientOf(Daemon(0)), kScript, 190, gang).variant, apart_[0]);
  const std::string key = redis_->Keys("*:g:*").at(0), before = redis_->Ask({"GET", key});
  EXPECT_EQ(Ask(*ClientOf(Daemon(1)), kScript, 240, gang).variant, apart_[1]);
  const size_t whole = redis_->Ask({"GET", key}).size();
  ASSERT_GT(whole, before.size());
  redis_->Ask({"SET", key, before});
  EXPECT_TRUE(Eventually([&] { return redis_->Ask({"GET", key}).size() == whole; }));
  EXPECT_EQ(Ask(*ClientOf(Daemon(2)), kScript, 240, gang).variant, apart_[1]);
}

// Another daemon's members may have asked later than this one's.
TEST_F(GangsOfDaemons, NobodyShortensAVerdictsLife) {
  EXPECT_EQ(Ask(*ClientOf(Daemon(0)), kScript, 190, GangOf("a")).variant, apart_[0]);
  const std::string key = redis_->Keys("*:g:*").at(0);
  const absl::Duration longer = kGangVerdictLife + absl::Minutes(10);
  redis_->Ask({"PEXPIRE", key, absl::StrCat(absl::ToInt64Milliseconds(longer))});
  absl::SleepFor(kKeepEvery + absl::Seconds(1));
  EXPECT_EQ(
      redis_->Ask({"EVAL",
                   absl::StrCat("return redis.call('PTTL', KEYS[1]) > ",
                                absl::ToInt64Milliseconds(kGangVerdictLife), " and 'longer' or 'shorter'"),
                   "1", key}),
      "longer");
  // A shorter one is put off.
  redis_->Ask({"PEXPIRE", key, "60000"});
  EXPECT_TRUE(Eventually([&] {
    return redis_->Ask({"EVAL", "return redis.call('PTTL', KEYS[1]) > 60000 and 'longer' or 'shorter'", "1",
                        key}) == "longer";
  }));
}

// The control: nobody is there who holds it.
TEST_F(GangsOfDaemons, AFlushedVerdictThatNobodyHoldsIsGone) {
  const v1::Gang gang = GangOf("a");
  EXPECT_EQ(Ask(*ClientOf(Daemon(0)), kScript, 190, gang).variant, apart_[0]);
  Daemon(0).Stop(SIGKILL);
  redis_->Ask({"FLUSHALL"});
  EXPECT_EQ(Ask(*ClientOf(Daemon(1)), kScript, 190, gang).variant, apart_[1]);
}

TEST_F(GangsOfDaemons, WithTheTierCutWhatIsNotHeldIsNoVerdict) {
  EXPECT_EQ(Ask(*ClientOf(Daemon(0)), kScript, 190, GangOf("a")).variant, apart_[0]);
  redis_->Kill();
  EXPECT_EQ(Ask(*ClientOf(Daemon(0)), kScript, 190, GangOf("a")).variant, apart_[0]);
  for (const int daemon : {0, 2}) {  // a hit and a miss
    const Served other = Ask(*ClientOf(Daemon(daemon)), kScript, 190, GangOf("b"));
    EXPECT_TRUE(IsWithoutVerdict(other.status)) << other.status;
    EXPECT_NE(other.status.message().find("shared tier"), absl::string_view::npos) << other.status;
  }
  EXPECT_EQ(Ask(*ClientOf(Daemon(0)), kScript, 190).variant, apart_[0]) << "the control";
  redis_->Start();
  AwaitTier(0);
  EXPECT_EQ(Ask(*ClientOf(Daemon(0)), kScript, 190, GangOf("b")).variant, apart_[0]);
}

// What nobody signed whom the daemons trust gives way.
TEST_F(GangsOfDaemons, AForgedVerdictIsNobodys) {
  const v1::Gang gang = GangOf("a");
  EXPECT_EQ(Ask(*ClientOf(Daemon(1)), kScript, 190, gang).variant, apart_[1]);
  const std::vector<std::string> names = redis_->Keys("*:g:*");
  ASSERT_EQ(names.size(), 1u);
  std::string other = names[0];
  other.replace(other.size() - 32, 32, absl::BytesToHexString(std::string(16, 'b')));
  redis_->Ask({"COPY", names[0], other});  // another gang's: under this name it is nobody's
  EXPECT_EQ(Ask(*ClientOf(Daemon(0)), kScript, 190, GangOf("b")).variant, apart_[0]);
  redis_->Ask({"SET", names[0], "nonsense"});
  EXPECT_FALSE(Ask(*ClientOf(Daemon(2)), kScript, 190, gang).variant.empty());
}

// ---- A job -----------------------------------------------------------------------------------

constexpr int kRanks = 64;
constexpr char kFails[] = "name fails on the third\naround 50\nslow_from 1000";
constexpr char kLong[] = "name long\naround 50\nsleep_ms 1500";

// What the ranks of a job were served, all in all.
class Job {
 public:
  void Take(const std::string& script, int64_t hint, const Served& served) {
    absl::MutexLock lock(&mutex_);
    if (served.status.ok()) {
      variants_[{script, hint}].insert(served.variant);
      programs_.insert(script);
      hits_ += served.hit;
      compiles_ += !served.hit;
    } else if (IsWithoutVerdict(served.status)) {
      ++without_verdict_;
    } else {
      fallbacks_.insert(script);
    }
  }
  bool HasTwoVariantsOfEqualHints() {
    absl::MutexLock lock(&mutex_);
    for (const auto& [asked, variants] : variants_) {
      if (variants.size() > 1) return true;
    }
    return false;
  }
  bool HasAProgramBesideAFallback() {
    absl::MutexLock lock(&mutex_);
    for (const std::string& script : fallbacks_) {
      if (programs_.contains(script)) return true;
    }
    return false;
  }
  std::array<int, 3> Counts() {
    absl::MutexLock lock(&mutex_);
    return {hits_, compiles_, without_verdict_};
  }

 private:
  absl::Mutex mutex_;
  std::map<std::pair<std::string, int64_t>, std::set<std::string>> variants_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> programs_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> fallbacks_ ABSL_GUARDED_BY(mutex_);
  int hits_ ABSL_GUARDED_BY(mutex_) = 0;
  int compiles_ ABSL_GUARDED_BY(mutex_) = 0;
  int without_verdict_ ABSL_GUARDED_BY(mutex_) = 0;
};

class GangOfManyRanks : public GangsOfDaemons {
 protected:
  // Ranks of the daemons named, all at once, each a libkiln of its own.
  void AskRanks(Job& job, const std::string& script, const std::vector<int64_t>& hints, const v1::Gang& gang,
                const std::set<int>& daemons = {0, 1, 2}) {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      const int daemon = rank % kDaemons;
      if (!daemons.contains(daemon)) continue;
      ranks.emplace_back([&, hint = hints[static_cast<size_t>(rank / kDaemons) % hints.size()], daemon] {
        job.Take(script, hint, Ask(*ClientOf(Daemon(daemon)), script, hint, gang));
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }

  // Of one graph daemons have different variants, and are asked before they have fetched each other's; then
  // hints differ; one can't be compiled at the third daemon, whose ranks come first; while one is compiled a
  // daemon is killed. In the end all are asked for again.
  void Run(Job& job, const v1::Gang& gang) {
    AskRanks(job, kScript, {190}, gang);
    AskRanks(job, kScript, {190, 150, 230, 500}, gang);
    AskRanks(job, kFails, {1000, 1010}, gang, {2});
    AskRanks(job, kFails, {1000, 1010}, gang);
    std::thread killer([&] {
      absl::SleepFor(absl::Milliseconds(700));
      Daemon(0).Stop(SIGKILL);
    });
    AskRanks(job, kLong, {500, 510, 590}, gang);
    killer.join();
    Daemon(0).Start();
    AwaitTier(0);
    AskRanks(job, kScript, {190, 150, 230, 500}, gang);
    AskRanks(job, kFails, {1000, 1010}, gang);
    AskRanks(job, kLong, {500, 510, 590}, gang);
  }
};

TEST_F(GangOfManyRanks, IsServedOneVerdictAGraph) {
  Job job;
  v1::Gang gang = GangOf("a");
  gang.set_size(kRanks);
  Run(job, gang);
  EXPECT_FALSE(job.HasTwoVariantsOfEqualHints());
  EXPECT_FALSE(job.HasAProgramBesideAFallback());
  const auto [hits, compiles, without_verdict] = job.Counts();
  EXPECT_GT(hits, 0);
  EXPECT_GT(compiles, 0);
  EXPECT_GT(without_verdict, 0) << "those of the daemon that was killed";
  EXPECT_LE(without_verdict, kRanks / kDaemons + 1) << "and nobody else";
}

// The control.
TEST_F(GangOfManyRanks, WithoutAGangItIsServedSeveral) {
  Job job;
  Run(job, {});
  EXPECT_TRUE(job.HasTwoVariantsOfEqualHints());
  EXPECT_TRUE(job.HasAProgramBesideAFallback());
}

}  // namespace
}  // namespace kiln
