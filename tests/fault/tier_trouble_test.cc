// Daemons whose tier is in trouble: half of all packets lost, or all of them, full, emptied while it is used,
// far away, a replica, silent, down, failing over, lying. A look-up costs its limit at most, and so does all
// that a miss asks there; no compile fails, no byte is wrong, and all is well by itself afterwards.
#include <sched.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "cache/shared/shared_tier.h"
#include "compiler/support/monotonic_time.h"
#include "gtest/gtest.h"
#include "tests/fault/lateness.h"
#include "tests/fault/process_facts.h"
#include "tests/fault/redis_sentinels.h"
#include "tests/fault/tier_artifacts.h"
#include "tests/fault/tier_daemons.h"
#include "tests/fault/tier_liar.h"
#include "tests/fault/tier_proxy.h"

namespace kiln {
namespace {

constexpr int kPort = 7379;  // in a network of its own
constexpr absl::Duration kEachWay = absl::Milliseconds(15);
constexpr int kKnown = 20;
constexpr int kLookUps = 200;
constexpr int kCompiles = 25;
constexpr absl::Duration kLookUpLimit = absl::Milliseconds(50);

// A limit that does not work is passed in each; a machine that holds its breath spoils one.
constexpr int kMeasurementsMax = 3;
// Where this machine is later than that, times say nothing of the tier.
constexpr absl::Duration kLatenessMax = absl::Milliseconds(20);

enum class Trouble {
  kLossy,
  kBlackholed,
  kFull,
  kFlushed,
  kFar,
  kReplica,
  kSilent,
  kDown,
  kFailingOver,
  kLying
};

std::string NameOf(Trouble trouble) {
  switch (trouble) {
    case Trouble::kLossy: return "Lossy";
    case Trouble::kFull: return "Full";
    case Trouble::kFlushed: return "Flushed";
    case Trouble::kFar: return "Far";
    case Trouble::kReplica: return "Replica";
    case Trouble::kSilent: return "Silent";
    case Trouble::kBlackholed: return "Blackholed";
    case Trouble::kDown: return "Down";
    case Trouble::kFailingOver: return "FailingOver";
    case Trouble::kLying: return "Lying";
  }
  return "";
}

// Of half of the server's packets, in both directions, nobody hears again.
constexpr char kLoss[] = R"(
table inet loss {
  chain in {
    type filter hook input priority 0;
    tcp dport 7379 numgen random mod 2 == 0 drop
    tcp sport 7379 numgen random mod 2 == 0 drop
  }
})";

// And of none of them.
constexpr char kBlackHole[] = R"(
table inet loss {
  chain in {
    type filter hook input priority 0;
    tcp dport 7379 drop
    tcp sport 7379 drop
  }
})";

bool Filter(const std::string& rules) {
  FILE* const nft = popen("nft -f - 2>/dev/null", "w");
  if (nft == nullptr) return false;
  fwrite(rules.data(), 1, rules.size(), nft);
  return pclose(nft) == 0;
}

// A network of this process and its children, where packets may be lost; once.
bool HasNetwork() {
  static const bool has = unshare(CLONE_NEWNET) == 0 && system("ip link set lo up 2>/dev/null") == 0 &&
                          Filter(kLoss) && Filter("delete table inet loss\n");
  return has;
}

absl::Duration Percentile(std::vector<absl::Duration> times, int percent) {
  if (times.empty()) return absl::ZeroDuration();
  std::sort(times.begin(), times.end());
  return times[std::min(times.size() - 1, times.size() * static_cast<size_t>(percent) / 100)];
}

// At the 99th percentile, or at most where `samples` are so few that theirs is the worst. Ends the measure.
absl::Duration LateAtP99(Lateness& lateness, size_t samples) {
  return Percentile(lateness.End(), samples < 100 ? 100 : 99);
}

class TierInTrouble : public TierDaemons, public testing::WithParamInterface<Trouble> {
 protected:
  void SetUp() override {
    TierDaemons::SetUp();
    if (IsSkipped()) return;
    if (LosesPackets() && !HasNetwork())
      GTEST_SKIP() << "no network namespace with nftables on this host (root, apt-get install nftables)";
    std::vector<std::string> flags;
    if (LosesPackets()) flags = {"--port", absl::StrCat(kPort), "--bind", "127.0.0.1"};
    if (trouble() == Trouble::kFull) flags = {"--maxmemory", "20mb", "--maxmemory-policy", "noeviction"};
    redis_ = std::make_unique<RedisServer>(flags);
    proxy_ = std::make_unique<TierProxy>(redis_->socket());
    if (trouble() == Trouble::kFailingOver) nodes_ = std::make_unique<RedisSentinels>();
  }
  void TearDown() override {
    if (proxy_ != nullptr) End();
  }
  static Trouble trouble() { return GetParam(); }
  static bool LosesPackets() { return trouble() == Trouble::kLossy || trouble() == Trouble::kBlackholed; }
  std::string address() const {
    if (LosesPackets()) return absl::StrCat("127.0.0.1:", kPort);
    return trouble() == Trouble::kFar ? proxy_->address() : redis_->address();
  }

  void Begin() {
    in_trouble_ = true;
    switch (trouble()) {
      case Trouble::kLossy: EXPECT_TRUE(Filter(kLoss)); return;
      case Trouble::kFull: EXPECT_EQ(redis_->Ask({"CONFIG", "SET", "maxmemory", "1"}), "OK"); return;
      case Trouble::kFlushed: writing_ = std::thread([this] { FlushOnAndOn(); }); return;
      case Trouble::kFar: proxy_->Delay(kEachWay); return;
      case Trouble::kReplica: EXPECT_EQ(redis_->Ask({"REPLICAOF", "127.0.0.1", "1"}), "OK"); return;
      case Trouble::kSilent: redis_->Pause(); return;
      case Trouble::kBlackholed: EXPECT_TRUE(Filter(kBlackHole)); return;
      case Trouble::kDown: redis_->Kill(); return;
      case Trouble::kFailingOver: nodes_->server(0).Kill(); return;
      case Trouble::kLying: writing_ = std::thread([this] { LieOnAndOn(); }); return;
    }
  }
  void End() {
    if (!in_trouble_.exchange(false)) return;
    switch (trouble()) {
      case Trouble::kLossy:
      case Trouble::kBlackholed: EXPECT_TRUE(Filter("delete table inet loss\n")); return;
      case Trouble::kFull: EXPECT_EQ(redis_->Ask({"CONFIG", "SET", "maxmemory", "0"}), "OK"); return;
      case Trouble::kFlushed:
      case Trouble::kLying: writing_.join(); return;
      case Trouble::kFar: proxy_->Delay(absl::ZeroDuration()); return;
      case Trouble::kReplica: redis_->Ask({"REPLICAOF", "NO", "ONE"}); return;
      case Trouble::kSilent: redis_->Continue(); return;
      case Trouble::kDown: redis_->Start(); return;
      case Trouble::kFailingOver:
        EXPECT_TRUE(Eventually([&] { return nodes_->MasterPort() == nodes_->port(1); }, absl::Seconds(60)));
        return;
    }
  }
  void FlushOnAndOn() {
    while (in_trouble_) {
      redis_->Ask({"FLUSHALL"});
      absl::SleepFor(absl::Milliseconds(10));
    }
  }

  void LieOnAndOn() {
    for (int seed = 0; in_trouble_; ++seed) {
      TellLie(*redis_, seed);
      absl::SleepFor(absl::Milliseconds(2));
    }
  }

  std::unique_ptr<SharedTier> Connect() {
    SharedTier::Options options;  // limits as people have them
    options.addresses = {address()};
    if (nodes_ != nullptr) {
      options.addresses = nodes_->addresses();
      options.sentinel_master = RedisSentinels::kMaster;
    }
    absl::StatusOr<std::unique_ptr<SharedTier>> tier =
        SharedTier::Create(std::move(options), &TestSignatures());
    EXPECT_TRUE(tier.ok()) << tier.status();
    return *std::move(tier);
  }
  static void Write(SharedTier& tier, int number) {
    tier.WriteArtifact(kTierTestNamespace, ArtifactOf(number),
                       [](const EntryId&) { return absl::NotFoundError("not here"); });
  }
  static absl::StatusOr<SharedTier::Found> LookUp(SharedTier& tier, int number) {
    return tier.LookUp(kTierTestNamespace, KeyOf(number), MonotonicAfter(tier.lookup_limit()));
  }
  // Whether it is, byte by byte, what was written under that number.
  static bool IsWritten(int number, const std::vector<Entry>& entries) {
    const std::vector<Entry> written = ArtifactOf(number);
    return std::all_of(entries.begin(), entries.end(), [&](const Entry& entry) {
      return std::any_of(written.begin(), written.end(),
                         [&](const Entry& one) { return one.id == entry.id && *one.value == *entry.value; });
    });
  }

  std::string ConfigOf(const std::string& key, const std::string& other) {
    if (nodes_ != nullptr) return Config(key, {other}, /*tier=*/false) + nodes_->TierConfig(50);
    return absl::StrReplaceAll(Config(key, {other}), {{redis_->address(), address()},
                                                      {"lookup_ms_max: 10000", "lookup_ms_max: 50"}});
  }

  std::unique_ptr<TierProxy> proxy_;
  std::unique_ptr<RedisSentinels> nodes_;  // null: redis_ is the tier
  std::atomic<bool> in_trouble_{false};
  std::thread writing_;  // while it is in trouble
};

struct Times {
  std::vector<absl::Duration> asked;
  std::vector<absl::Duration> refused;  // the breaker was open
  int found = 0;
  int wrong = 0;
  // As their callers see it: where the breaker is open most of the time few are asked.
  std::vector<absl::Duration> all() const {
    std::vector<absl::Duration> both = asked;
    both.insert(both.end(), refused.begin(), refused.end());
    return both;
  }
};

Times AskOnAndOn(SharedTier& tier, const std::function<absl::StatusOr<SharedTier::Found>(int)>& look_up,
                 const std::function<bool(int, const std::vector<Entry>&)>& is_written,
                 const std::function<void(int)>& write) {
  Times times;
  for (int i = 0; i < kLookUps; ++i) {
    const int number = i % (2 * kKnown);
    const MonotonicTime begin = MonotonicNow();
    const absl::StatusOr<SharedTier::Found> found = look_up(number);
    const absl::Duration time = absl::FromChrono(MonotonicNow() - begin);
    const bool is_open = absl::StrContains(found.status().message(), "was slow lately");
    (is_open ? times.refused : times.asked).push_back(time);
    if (found.ok()) {
      ++times.found;
      const absl::StatusOr<std::vector<Entry>> objects = tier.Fetch(kTierTestNamespace, found->objects);
      times.wrong += !is_written(number, found->entries) || (objects.ok() && !is_written(number, *objects));
    }
    if (i % 20 == 0) write(kKnown + i);
    absl::SleepFor(absl::Milliseconds(5));
  }
  return times;
}

// That there was trouble: without it each of these fails.
void ExpectTrouble(Trouble trouble, const Times& times, const v1::TierStatus& status) {
  const int known = kLookUps / 2;
  switch (trouble) {
    case Trouble::kDown:
      EXPECT_EQ(times.found, 0);
      EXPECT_FALSE(status.connected());
      break;
    case Trouble::kLying: EXPECT_GT(status.refused(), 0); [[fallthrough]];
    case Trouble::kFailingOver:
    case Trouble::kLossy:
    case Trouble::kFlushed: EXPECT_LT(times.found, known); break;
    case Trouble::kFull:
    case Trouble::kReplica:
      EXPECT_GT(status.dropped_writes(), 0);
      EXPECT_GE(times.found, known);
      break;
    case Trouble::kFar: EXPECT_GE(Percentile(times.asked, 50), 2 * kEachWay); break;
    case Trouble::kBlackholed:
    case Trouble::kSilent:
      EXPECT_EQ(times.found, 0);
      EXPECT_GT(times.refused.size(), kLookUps / 2);
      break;
  }
}

TEST_P(TierInTrouble, ALookUpCostsItsLimitAtMostAndIsNeverWrong) {
  const std::unique_ptr<SharedTier> tier = Connect();
  for (int i = 0; i < kKnown; ++i) Write(*tier, i);
  EXPECT_TRUE(Eventually([&] { return tier->status().writes() == kKnown; }));
  Begin();
  Times times;
  absl::Duration late;
  bool holds = false;
  for (int tries = 0; tries < kMeasurementsMax && !holds; ++tries) {
    Lateness lateness;
    times = AskOnAndOn(
        *tier, [&](int number) { return LookUp(*tier, number); }, IsWritten,
        [&](int number) { Write(*tier, number); });
    late = LateAtP99(lateness, times.asked.size());
    // A fail-over is one, and over by the second.
    if (tries == 0 || trouble() != Trouble::kFailingOver) ExpectTrouble(trouble(), times, tier->status());
    EXPECT_EQ(times.wrong, 0);
    std::cout << NameOf(trouble()) << ": " << times.asked.size() << " look-ups, median "
              << Percentile(times.asked, 50) << ", p99 " << Percentile(times.asked, 99)
              << "; with the breaker open " << times.refused.size() << ", p99 "
              << Percentile(times.refused, 99) << "; found " << times.found << "; this machine is late by "
              << late << " at p99\n";
    holds = late <= kLatenessMax &&
            Percentile(times.all(), 99) <= kLookUpLimit + absl::Milliseconds(1) + late &&
            Percentile(times.refused, 99) <= absl::Milliseconds(1) + late;
  }
  EXPECT_TRUE(holds || late > kLatenessMax);
  End();
  Write(*tier, 0);
  EXPECT_TRUE(Eventually([&] { return LookUp(*tier, 0).ok(); }, absl::Seconds(60)))
      << tier->status().message();
  if (late > kLatenessMax) GTEST_SKIP() << "this machine is late by " << late << ": no time was compared";
}

// How long compiles take that the tier has nothing of: look, claim, look again, and compile.
struct Misses {
  std::vector<absl::Duration> with, without;
  absl::Duration late;
  absl::Duration gain(int percent) const { return Percentile(with, percent) - Percentile(without, percent); }
};

Misses CompileOnAndOn(TestDaemon& with, TestDaemon& without, int programs, const std::string& name) {
  Misses misses;
  Lateness lateness;
  for (int i = 0; i < programs; ++i) {
    const std::string script = absl::StrCat("name ", name, " ", i);
    const auto time = [&](TestDaemon& daemon, std::vector<absl::Duration>* times) {
      const MonotonicTime begin = MonotonicNow();
      const CompileResult result = daemon.Compile(script);
      times->push_back(absl::FromChrono(MonotonicNow() - begin));
      EXPECT_TRUE(result.done) << result.failed_reason << result.status.error_message();
      return result.manifest_bytes;
    };
    EXPECT_EQ(time(with, &misses.with), time(without, &misses.without)) << script;
  }
  misses.late = LateAtP99(lateness, misses.with.size());
  std::cout << name << ": a miss takes " << misses.gain(50) << " more at the median, " << misses.gain(99)
            << " at p99 of " << programs << "; this machine is late by " << misses.late << " at p99\n";
  return misses;
}

TEST_P(TierInTrouble, AMissAtADaemonGainsItsLimitAtMost) {
  TestDaemon with(ConfigOf("with", "with"));
  TestDaemon without(Config("without", {}, /*tier=*/false));
  CompileOnAndOn(with, without, 5, "first");  // what first calls cost is there
  Begin();
  Misses misses;
  bool holds = false;
  for (int tries = 0; tries < kMeasurementsMax && !holds; ++tries) {
    misses = CompileOnAndOn(with, without, Count(40, 400), absl::StrCat(NameOf(trouble()), tries));
    // Two threads, one after the other, find that the time is over: who asks the tier, and the flight.
    const int percent = Count(90, 99);  // of few the last hundredth is one hiccup of the machine
    holds = misses.late <= kLatenessMax &&
            misses.gain(percent) <= kLookUpLimit + absl::Milliseconds(1) + 2 * misses.late;
  }
  End();
  if (!holds && misses.late > kLatenessMax)
    GTEST_SKIP() << "this machine is late by " << misses.late << ": no time was compared";
  EXPECT_TRUE(holds);
}

TEST_P(TierInTrouble, NoCompileFailsAndAllIsWellAfterwards) {
  TestDaemon first(ConfigOf("first", "second"));
  TestDaemon second(ConfigOf("second", "first"));
  TestDaemon alone(Config("alone", {}, /*tier=*/false));
  Begin();
  for (int i = 0; i < kCompiles; ++i) {
    const std::string script = absl::StrCat("name program ", i, "\nkernels 3");
    const CompileResult right = alone.Compile(script);
    for (TestDaemon* daemon : {&first, &second}) {
      const CompileResult result = daemon->Compile(script);
      ASSERT_TRUE(result.done) << result.failed_reason << result.status.error_message();
      EXPECT_EQ(result.manifest_bytes, right.manifest_bytes);
      std::vector<std::string> digests;
      for (const v1::ManifestKernel& kernel : result.manifest.kernels())
        digests.push_back(kernel.object().digest());
      grpc::Status fetched;
      EXPECT_EQ(daemon->Fetch(result.manifest, digests, &fetched),
                alone.Fetch(right.manifest, digests, &fetched));
    }
  }
  End();
  // New programs are shared again, by themselves.
  int number = 0;
  EXPECT_TRUE(Eventually(
      [&] {
        const std::string script = absl::StrCat("name new ", ++number);
        const uint64_t written = StatusOf(first).writes();
        EXPECT_TRUE(first.Compile(script).done);
        Eventually([&] { return StatusOf(first).writes() > written; }, absl::Seconds(1));
        const uint64_t before = second.Stats().compiles();
        EXPECT_TRUE(second.Compile(script).done);
        return second.Stats().compiles() == before;
      },
      absl::Seconds(60)))
      << StatusOf(first).DebugString() << StatusOf(second).DebugString();
}

INSTANTIATE_TEST_SUITE_P(Tier, TierInTrouble,
                         testing::Values(Trouble::kLossy, Trouble::kBlackholed, Trouble::kFull,
                                         Trouble::kFlushed, Trouble::kFar, Trouble::kReplica,
                                         Trouble::kSilent, Trouble::kDown, Trouble::kFailingOver,
                                         Trouble::kLying),
                         [](const auto& info) { return NameOf(info.param); });

// The controls of the limit: a tier that may take longer does.
using TierInTroubleControl = TierDaemons;
TEST_F(TierInTroubleControl, WithALongLimitAMissTakesThreeRoundTrips) {
  TierProxy proxy(redis_->socket());
  const std::string config = absl::StrReplaceAll(Config("with", {}), {{redis_->address(), proxy.address()}});
  TestDaemon with(config);
  TestDaemon without(Config("without", {}, /*tier=*/false));
  CompileOnAndOn(with, without, 5, "first");
  proxy.Delay(absl::Milliseconds(50));
  EXPECT_GE(CompileOnAndOn(with, without, 5, "patient").gain(50), absl::Milliseconds(250));
}

TEST(TierLookUpControl, WithALongLimitALookUpTakesLonger) {
  if (!RedisServer::IsThere()) GTEST_SKIP() << "no redis-server on this host (apt-get install redis-server)";
  RedisServer redis;
  TierProxy proxy(redis.socket());
  SharedTier::Options options;
  options.addresses = {proxy.address()};
  options.lookup_limit = absl::Seconds(2);
  absl::StatusOr<std::unique_ptr<SharedTier>> tier =
      SharedTier::Create(std::move(options), &TestSignatures());
  ASSERT_TRUE(tier.ok()) << tier.status();
  EXPECT_TRUE(Eventually([&] { return (*tier)->status().connected(); }));
  proxy.Delay(absl::Milliseconds(200));
  const MonotonicTime begin = MonotonicNow();
  EXPECT_TRUE(absl::IsNotFound(
      (*tier)->LookUp(kTierTestNamespace, KeyOf(1), MonotonicAfter((*tier)->lookup_limit())).status()));
  EXPECT_GE(absl::FromChrono(MonotonicNow() - begin), absl::Milliseconds(400));
}

}  // namespace
}  // namespace kiln
