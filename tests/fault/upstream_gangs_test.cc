// Ranks of one job on two hosts, whose daemons pass on to one farm what they lack: the farm says what they
// are served, whatever is here. The controls are the same callers without a gang, of whom each daemon serves
// its own.
#include <array>
#include <csignal>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "tests/fault/gang_members.h"
#include "tests/fault/upstream_daemons.h"

namespace kiln {
namespace {

constexpr char kScript[] = "name sized\naround 50";
constexpr char kSlow[] = "name fails at the farm\naround 50\nslow_from 1000";
constexpr int kHosts = 2;
constexpr int kRanksOfAHost = 4;

// Of kScript the first host has the variant for 150, the second the one for 230, and the farm none: both hold
// for 190. The farm gives up a plan after two seconds, and the first host has a program of kSlow.
class UpstreamGangs : public UpstreamDaemons {
 protected:
  void SetUp() override {
    farm_ =
        std::make_unique<TestDaemon>(absl::StrCat(Signing("farm", {}), "workers { plan_seconds_max: 2 }\n"));
    for (int i = 0; i < kHosts; ++i) {
      hosts_.push_back(std::make_unique<TestDaemon>(
          absl::StrCat(Signing(absl::StrCat("host", i), {"farm"}), Asks(*farm_))));
    }
    farm_->Stop(SIGKILL);
    apart_ = {Ask(*ClientOf(Host(0)), kScript, 150).variant, Ask(*ClientOf(Host(1)), kScript, 230).variant};
    EXPECT_NE(apart_[0], apart_[1]);
    EXPECT_TRUE(Ask(*ClientOf(Host(0)), kSlow, 1000).status.ok());
    StartFarm();
  }
  void StartFarm() {
    farm_->Start();
    for (int i = 0; i < kHosts; ++i)
      EXPECT_TRUE(Eventually([&] { return StatusOf(Host(i)).connected(); })) << i;
  }
  TestDaemon& Host(int i) { return *hosts_[static_cast<size_t>(i)]; }

  // What all ranks were served, who ask at once.
  struct Job {
    std::set<std::string> variants;
    int without_verdict = 0;
    int fallbacks = 0;
  };
  Job AskRanks(const std::string& script, int64_t hint, const v1::Gang& gang) {
    Job job;
    absl::Mutex mutex;
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kHosts * kRanksOfAHost; ++rank) {
      ranks.emplace_back([&, rank] {
        const Served served = Ask(*ClientOf(Host(rank % kHosts)), script, hint, gang);
        absl::MutexLock lock(&mutex);
        if (served.status.ok()) job.variants.insert(served.variant);
        job.without_verdict += IsWithoutVerdict(served.status);
        job.fallbacks += !served.status.ok() && !IsWithoutVerdict(served.status);
      });
    }
    for (std::thread& rank : ranks) rank.join();
    return job;
  }

  std::unique_ptr<TestDaemon> farm_;
  std::vector<std::unique_ptr<TestDaemon>> hosts_;
  std::array<std::string, kHosts> apart_;
};

TEST_F(UpstreamGangs, MembersOfTwoHostsGetOneVariant) {
  const Job job = AskRanks(kScript, 190, GangOf("a"));
  EXPECT_EQ(job.variants.size(), 1u);
  EXPECT_EQ(job.without_verdict + job.fallbacks, 0);
  EXPECT_EQ(farm_->Stats().compiles(), 1);
  EXPECT_LE(Host(0).Stats().forwarded(), 1) << "one for all of a host";
  EXPECT_LE(Host(1).Stats().forwarded(), 1);
  // Of other sizes, too: the first of the farm's list that holds.
  const Served wide = Ask(*ClientOf(Host(0)), kScript, 235, GangOf("a"));
  EXPECT_EQ(wide.variant, *job.variants.begin());
  // What has come is here: later members cost the farm a question each.
  const v1::StatsReply before = farm_->Stats();
  EXPECT_EQ(AskRanks(kScript, 190, GangOf("a")).variants, job.variants);
  const v1::StatsReply after = farm_->Stats();
  EXPECT_EQ(after.fetched_objects(), before.fetched_objects());
  EXPECT_EQ(after.graphs_uploaded(), before.graphs_uploaded());
  EXPECT_EQ(after.compiles(), before.compiles());
}

TEST_F(UpstreamGangs, WithoutAGangTheyGetTwo) {
  const Job job = AskRanks(kScript, 190, {});
  EXPECT_EQ(job.variants, (std::set<std::string>{apart_[0], apart_[1]}));
}

TEST_F(UpstreamGangs, NobodyHasAProgramBesideAFallback) {
  const Job job = AskRanks(kSlow, 1000, GangOf("a"));
  EXPECT_TRUE(job.variants.empty());
  EXPECT_EQ(job.fallbacks, kHosts * kRanksOfAHost);
  EXPECT_EQ(job.without_verdict, 0);
}

TEST_F(UpstreamGangs, WithoutAGangOneHasAProgramBesideAFallback) {
  const Job job = AskRanks(kSlow, 1000, {});
  EXPECT_EQ(job.variants.size(), 1u);
  EXPECT_EQ(job.fallbacks, kRanksOfAHost);
}

// What is here may not be what others are served.
TEST_F(UpstreamGangs, WithTheFarmAwayThereIsNoVerdict) {
  const Job before = AskRanks(kScript, 190, GangOf("a"));
  EXPECT_EQ(before.variants.size(), 1u);
  farm_->Stop(SIGKILL);
  const Job away = AskRanks(kScript, 190, GangOf("a"));
  EXPECT_TRUE(away.variants.empty());
  EXPECT_EQ(away.without_verdict, kHosts * kRanksOfAHost);
  const Served told = Ask(*ClientOf(Host(0)), kScript, 190, GangOf("b"));
  EXPECT_TRUE(absl::StrContains(told.status.message(), farm_->socket())) << told.status;
  EXPECT_FALSE(Ask(*ClientOf(Host(0)), kScript, 190).variant.empty()) << "the control";
  StartFarm();
  EXPECT_EQ(AskRanks(kScript, 190, GangOf("c")).variants.size(), 1u);
}

// One that dies over the program that they wait for.
TEST_F(UpstreamGangs, AFarmThatDiesTakesTheVerdictAlong) {
  std::thread killer([&] {
    EXPECT_TRUE(Eventually([&] { return farm_->Stats().compiles() == 1; }));
    farm_->Stop(SIGKILL);
  });
  const Job job = AskRanks("name long\nsleep_ms 1500", 190, GangOf("a"));
  killer.join();
  EXPECT_TRUE(job.variants.empty());
  EXPECT_EQ(job.without_verdict, kHosts * kRanksOfAHost);
  EXPECT_EQ(Host(0).Stats().compiles(), 2) << "and nobody compiles by himself";
}

}  // namespace
}  // namespace kiln
