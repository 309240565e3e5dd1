// The shared tier against a server that is away, slow, full, flushed, read-only or lying: a miss, soon, and
// nothing else.
#include "cache/shared/shared_tier.h"

#include <algorithm>
#include <barrier>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "cache/shared/tier_records.h"
#include "cache/shared/tier_value.h"
#include "compiler/support/digest.h"
#include "compiler/support/zstd.h"
#include "gtest/gtest.h"
#include "tests/fault/redis_server.h"
#include "tests/fault/tier_artifacts.h"

namespace kiln {
namespace {

class SharedTierTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::IsThere())
      GTEST_SKIP() << "no redis-server on this host (apt-get install redis-server)";
    StartServer({});
  }
  void StartServer(std::vector<std::string> flags) {
    tier_ = nullptr;
    redis_ = nullptr;
    redis_ = std::make_unique<RedisServer>(std::move(flags));
    SharedTier::Options loaded;
    loaded.lookup_limit = absl::Seconds(20);
    tier_ = Connect(std::move(loaded));
    // All connections, so that none is made while a test has the server in trouble.
    EXPECT_TRUE(Eventually([&] { return redis_->Clients() >= kTierReaders + 3; }));
  }
  // Limits are those of a loaded machine, but for those that a test is about.
  std::unique_ptr<SharedTier> Connect(SharedTier::Options options) {
    options.addresses = {redis_->address()};
    absl::StatusOr<std::unique_ptr<SharedTier>> tier =
        SharedTier::Create(std::move(options), &TestSignatures());
    EXPECT_TRUE(tier.ok()) << tier.status();
    google::protobuf::SetLogHandler(nullptr);  // text that is not UTF-8 is what lies are made of
    return *std::move(tier);
  }

  absl::StatusOr<SharedTier::Found> LookUp(SharedTier& tier, int number,
                                           const std::string& ns = kTierTestNamespace) {
    return tier.LookUp(ns, KeyOf(number), MonotonicAfter(tier.lookup_limit()));
  }
  // A look-up that a loaded machine may not fail: the limit is one of a look-up's own.
  absl::StatusOr<SharedTier::Found> Find(int number) {
    return tier_->LookUp(kTierTestNamespace, KeyOf(number), MonotonicAfter(absl::Seconds(20)));
  }
  void Write(int number, size_t bytes = 1000) {
    absl::Notification ended;
    tier_->WriteArtifact(
        kTierTestNamespace, ArtifactOf(number, bytes),
        [](const EntryId&) { return absl::NotFoundError("not here"); }, [&] { ended.Notify(); });
    ended.WaitForNotification();
  }
  bool Eventually(const std::function<bool()>& condition) {
    for (int tries = 0; tries < 1000; ++tries) {
      if (condition()) return true;
      absl::SleepFor(absl::Milliseconds(20));
    }
    return false;
  }
  // How long a look-up of nothing takes.
  absl::Duration TimeOf(SharedTier& tier) {
    const absl::Time begin = absl::Now();
    EXPECT_FALSE(LookUp(tier, 12345).ok());
    return absl::Now() - begin;
  }
  std::string ManifestName(int number) { return TierName(kTierTestNamespace, KeyOf(number), "m"); }
  std::string SealedManifest(int number, const std::string& ns = kTierTestNamespace) {
    return *ArtifactOf(number, 1000, ns).back().value;
  }

  std::unique_ptr<RedisServer> redis_;
  std::unique_ptr<SharedTier> tier_;
};

TEST_F(SharedTierTest, GivesBackWhatItTook) {
  Write(1, 2'600'000);
  const std::vector<Entry> written = ArtifactOf(1, 2'600'000);
  absl::StatusOr<SharedTier::Found> found = Find(1);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->entries.size(), 2);
  EXPECT_EQ(*found->entries[0].value, *written.back().value);
  EXPECT_EQ(*found->entries[1].value, "of a caller");
  ASSERT_EQ(found->objects.size(), 2);
  absl::StatusOr<std::vector<Entry>> objects = tier_->Fetch(kTierTestNamespace, found->objects);
  ASSERT_TRUE(objects.ok()) << objects.status();
  EXPECT_EQ(*(*objects)[0].value, *written[0].value);
  EXPECT_EQ(*(*objects)[1].value, *written[1].value);
  // Three chunks, a loop, a request record, the list of those, the manifests; each with an end.
  EXPECT_EQ(redis_->Keys().size(), 7);
  for (const std::string& key : redis_->Keys()) {
    EXPECT_EQ(key.rfind("kiln:1:test:{", 0), 0) << key;
    EXPECT_NEAR(std::stod(redis_->Ask({"TTL", key})), 30 * 24 * 3600, 100) << key;
  }
  EXPECT_TRUE(absl::IsNotFound(LookUp(*tier_, 1, "other").status()));
  const v1::TierStatus status = tier_->status();
  EXPECT_TRUE(status.connected());
  EXPECT_EQ(status.hits(), 1);
  EXPECT_EQ(status.writes(), 1);
  EXPECT_EQ(status.dropped_writes(), 0);
}

TEST_F(SharedTierTest, UseRenewsTheEnd) {
  Write(1);
  for (const std::string& key : redis_->Keys()) redis_->Ask({"EXPIRE", key, "100"});
  absl::StatusOr<SharedTier::Found> found = Find(1);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_TRUE(tier_->Fetch(kTierTestNamespace, found->objects).ok());
  int renewed = 0;
  for (const std::string& key : redis_->Keys()) renewed += std::stod(redis_->Ask({"TTL", key})) > 1000;
  EXPECT_EQ(renewed, 4);
}

TEST_F(SharedTierTest, ListsWhatWasWrittenLast) {
  const std::string list = TierNameOfTag(kTierTestNamespace, "records", "l");
  const auto put = [&](const std::string& member, int seconds) {
    redis_->Ask({"ZADD", list, absl::StrCat(seconds), member});
  };
  const auto record = [](int number) { return TierName(kTierTestNamespace, KeyOf(number), "r"); };
  v1::RequestRecord told;
  told.set_namespace_(kTierTestNamespace);
  for (int number : {1, 2, 3}) {
    Write(number);
    redis_->Ask({"SET", record(number),
                 SealTierValue(TestSignatures(), RequestRecordId(KeyOf(number)), kTierTestNamespace,
                               told.SerializeAsString())});
    put(ToHex(KeyOf(number)), 10 * number);
  }
  // Another key's record, a key without one, and what is no key.
  redis_->Ask({"COPY", record(1), record(3), "REPLACE"});
  put(ToHex(KeyOf(4)), 98);
  put("no key", 99);
  std::vector<std::pair<std::string, int64_t>> seen;
  const auto all = [&](const TierRecords::Record& there) {
    seen.emplace_back(there.compile_key, there.unix_seconds);
    EXPECT_EQ(there.record.namespace_(), kTierTestNamespace);
    return true;
  };
  ASSERT_TRUE(tier_->records()->EachLatest(kTierTestNamespace, all).ok());
  EXPECT_EQ(seen, (std::vector<std::pair<std::string, int64_t>>{{KeyOf(2), 20}, {KeyOf(1), 10}}));
  EXPECT_EQ(tier_->status().refused(), 1u);
  seen.clear();
  const auto first = [&](const TierRecords::Record& there) { return !all(there); };
  ASSERT_TRUE(tier_->records()->EachLatest(kTierTestNamespace, first).ok());
  EXPECT_EQ(seen.size(), 1u);
  redis_->Kill();
  EXPECT_FALSE(tier_->records()->EachLatest(kTierTestNamespace, all).ok());
}

TEST_F(SharedTierTest, ASpoiltListOfRecordsStopsNoWrite) {
  const std::string list = TierNameOfTag(kTierTestNamespace, "records", "l");
  redis_->Ask({"SET", list, "no list"});
  Write(1);
  EXPECT_EQ(redis_->Ask({"GET", list}), "no list");
  const absl::StatusOr<SharedTier::Found> found = Find(1);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->entries.size(), 2);  // the record, and the manifest behind it
  EXPECT_TRUE(tier_->Fetch(kTierTestNamespace, found->objects).ok());
  EXPECT_EQ(tier_->status().writes(), 1);
  EXPECT_EQ(tier_->status().dropped_writes(), 0);
  const auto none = [](const TierRecords::Record&) { return true; };
  EXPECT_FALSE(tier_->records()->EachLatest(kTierTestNamespace, none).ok());
}

TEST_F(SharedTierTest, AKeyHasSixteenVariants) {
  for (int variant = 0; variant < 20; ++variant) {
    std::vector<Entry> entries = ArtifactOf(1);
    const Entry one = entries.back();
    entries.back() =
        TestSignatures().SignEntry({EntryKind::kManifest, ManifestEntryKey(KeyOf(1), VariantOf(variant))},
                                   kTierTestNamespace, *OpenFor(kTierTestNamespace, *one.value));
    absl::Notification ended;
    tier_->WriteArtifact(
        kTierTestNamespace, std::move(entries),
        [](const EntryId&) { return absl::NotFoundError("not here"); }, [&] { ended.Notify(); });
    ended.WaitForNotification();
  }
  EXPECT_EQ(redis_->Ask({"HLEN", ManifestName(1)}), "16");
  const absl::StatusOr<SharedTier::Found> found = Find(1);
  ASSERT_TRUE(found.ok());
  const auto is_last = [](const Entry& entry) {
    return entry.id.key == ManifestEntryKey(KeyOf(1), VariantOf(19));
  };
  EXPECT_TRUE(std::any_of(found->entries.begin(), found->entries.end(), is_last));
}

// ---- Lies ------------------------------------------------------------------------------------

// Of 11,000 lies, each under a key of its own.
struct Lies {
  int accepted = 0;
  int left = 0;
};

class SharedTierLies : public SharedTierTest {
 protected:
  Lies Tell(SharedTier& tier) {
    constexpr int kDamaged = 10'000;
    constexpr int kMisplaced = 1'000;
    std::minstd_rand random(7);
    Lies lies;
    const auto tell = [&](int number, const std::string& sealed) {
      redis_->Ask({"HSET", ManifestName(number), ToHex(VariantOf(number)), sealed});
      lies.accepted += tier.LookUp(kTierTestNamespace, KeyOf(number), MonotonicAfter(absl::Seconds(20))).ok();
    };
    for (int i = 0; i < kDamaged; ++i) {
      std::string sealed = SealedManifest(i);
      sealed[random() % sealed.size()] ^= static_cast<char>(1 << (random() % 8));
      tell(i, sealed);
    }
    for (int i = 0; i < kMisplaced; ++i) {
      // Whole, and another key's; or another namespace's.
      tell(kDamaged + i, i % 2 == 0 ? SealedManifest(i) : SealedManifest(kDamaged + i, "other"));
    }
    Eventually([&] { return tier.status().writes() >= tier.status().refused(); });
    lies.left = static_cast<int>(redis_->Keys().size());
    return lies;
  }
};

TEST_F(SharedTierLies, NoneIsBelievedAndAllAreTakenOut) {
  const Lies lies = Tell(*tier_);
  EXPECT_EQ(lies.accepted, 0);
  EXPECT_EQ(lies.left, 0);
  EXPECT_EQ(tier_->status().refused(), 11'000);
}

// The control.
TEST_F(SharedTierLies, WithoutTheVerifierTheyAreBelieved) {
  SharedTier::Options options;
  options.dangerously_believe = true;
  const std::unique_ptr<SharedTier> believer = Connect(std::move(options));
  EXPECT_GT(Tell(*believer).accepted, 8'000);
}

TEST_F(SharedTierLies, ADamagedChunkIsAMissAndGoes) {
  Write(1, 2'600'000);
  const std::vector<std::string> chunks = redis_->Keys("*:o:*:1");
  ASSERT_EQ(chunks.size(), 1);
  redis_->Ask({"SETRANGE", chunks[0], "500000", "lie"});
  absl::StatusOr<SharedTier::Found> found = Find(1);
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(absl::IsDataLoss(tier_->Fetch(kTierTestNamespace, found->objects).status()));
  EXPECT_TRUE(Eventually([&] { return redis_->Keys("*:o:*:1").empty(); }));
  // Whoever compiles it writes what is missing.
  Write(1, 2'600'000);
  EXPECT_TRUE(tier_->Fetch(kTierTestNamespace, found->objects).ok());
}

// Signed by one who is trusted, and yet not what the manifest names.
TEST_F(SharedTierLies, AnObjectIsItsDigests) {
  Write(1);
  absl::StatusOr<SharedTier::Found> found = Find(1);
  ASSERT_TRUE(found.ok());
  const v1::ObjectRef& ref = found->objects[0];
  const std::string other = ZstdCompress(Noise(ref.raw_size(), 99));
  redis_->Ask(
      {"SET", TierChunkName(kTierTestNamespace, ref.digest(), ref.packed_size(), 0),
       SealTierValue(TestSignatures(), {EntryKind::kObject, TierChunkKey(ref.digest(), ref.packed_size(), 0)},
                     kTierTestNamespace, other)});
  EXPECT_TRUE(absl::IsDataLoss(tier_->Fetch(kTierTestNamespace, found->objects).status()));
  EXPECT_EQ(tier_->status().refused(), 1);
}

TEST_F(SharedTierLies, WhatSomebodyHasReplacedStays) {
  // The lie is read, and by the time that it would be deleted the truth is there: the writer is held up.
  absl::Notification replaced;
  std::vector<Entry> half = ArtifactOf(2);
  half.erase(half.begin());
  tier_->WriteArtifact(kTierTestNamespace, std::move(half), [&](const EntryId&) {
    replaced.WaitForNotification();
    return absl::NotFoundError("not here");
  });
  redis_->Ask({"HSET", ManifestName(1), ToHex(VariantOf(1)), "a lie"});
  EXPECT_FALSE(Find(1).ok());
  EXPECT_EQ(tier_->status().refused(), 1);
  redis_->Ask({"HSET", ManifestName(1), ToHex(VariantOf(1)), SealedManifest(1)});
  replaced.Notify();
  EXPECT_TRUE(Eventually([&] { return tier_->status().writes() == 1; }));
  EXPECT_EQ(redis_->Ask({"HLEN", ManifestName(1)}), "1");
}

// ---- Tuning records --------------------------------------------------------------------------

// A tier that answers and takes nothing has no record for others.
TEST_F(SharedTierTest, ARecordIsSharedWhenTheTierHasIt) {
  const EntryId id = {EntryKind::kTuning, Sha256("tunable")};
  const TierTuning::Record own{id.key, TestSignatures().SignEntry(id, kTierTestNamespace, "winner").value};
  redis_->Ask({"CONFIG", "SET", "maxmemory", "1"});
  auto stands = tier_->AgreeOnTuning(kTierTestNamespace, {own});
  ASSERT_TRUE(stands.ok()) << stands.status();
  EXPECT_EQ((*stands)[0].value, own.value);
  EXPECT_FALSE((*stands)[0].shared);
  redis_->Ask({"CONFIG", "SET", "maxmemory", "0"});
  stands = tier_->AgreeOnTuning(kTierTestNamespace, {own});
  EXPECT_TRUE(stands.ok() && (*stands)[0].shared);
  stands = tier_->AgreeOnTuning(kTierTestNamespace, {{own.key, nullptr}});
  EXPECT_TRUE(stands.ok() && (*stands)[0].shared);
}

// Each by a daemon of its own, at once: none is lost to another.
TEST_F(SharedTierTest, WhatSeveralBarIsBarred) {
  constexpr int kDaemons = 6, kTunables = 5;
  std::vector<std::unique_ptr<SharedTier>> tiers;
  SharedTier::Options loaded;
  loaded.lookup_limit = absl::Seconds(20);
  for (int i = 0; i < kDaemons; ++i) tiers.push_back(Connect(loaded));
  const auto record = [](int tunable, int daemon) {
    return TierTuning::Record{Sha256(absl::StrCat("tunable ", tunable)),
                              MakeEntryValue(absl::StrCat("winner of ", daemon))};
  };
  std::vector<std::thread> daemons;
  std::barrier together(kDaemons);
  for (int daemon = 0; daemon < kDaemons; ++daemon) {
    daemons.emplace_back([&, daemon] {
      for (int tunable = 0; tunable < kTunables; ++tunable) {
        together.arrive_and_wait();
        const absl::Status barred =
            tiers[static_cast<size_t>(daemon)]->BarTuning(kTierTestNamespace, record(tunable, daemon));
        EXPECT_TRUE(barred.ok()) << barred;
      }
    });
  }
  for (std::thread& daemon : daemons) daemon.join();
  for (int tunable = 0; tunable < kTunables; ++tunable) {
    for (int daemon = 0; daemon < kDaemons; ++daemon) {
      const auto stands = tier_->AgreeOnTuning(kTierTestNamespace, {record(tunable, daemon)});
      ASSERT_TRUE(stands.ok()) << stands.status();
      EXPECT_TRUE((*stands)[0].barred) << tunable << " " << daemon;
    }
  }
  // They did meet: some had to try again.
  const std::string stats = redis_->Ask({"INFO", "commandstats"});
  const size_t at = stats.find("cmdstat_eval:calls=");
  ASSERT_NE(at, std::string::npos) << stats;
  EXPECT_GT(std::stoi(stats.substr(at + strlen("cmdstat_eval:calls="))), kDaemons * kTunables);
}

// ---- A server in trouble ---------------------------------------------------------------------

TEST_F(SharedTierTest, AwayIsAMissAtOnceUntilItIsBack) {
  Write(1);
  redis_->Kill();
  for (int i = 0; i < 20; ++i) TimeOf(*tier_);
  std::vector<absl::Duration> times;
  for (int i = 0; i < 100; ++i) times.push_back(TimeOf(*tier_));
  std::sort(times.begin(), times.end());
  EXPECT_LT(times[50], absl::Milliseconds(20));
  EXPECT_FALSE(tier_->status().connected());
  EXPECT_FALSE(tier_->status().message().empty());
  redis_->Start();
  EXPECT_TRUE(Eventually([&] { return tier_->status().connected(); }));
  Write(1);  // what was flushed is filled again
  EXPECT_TRUE(Eventually([&] { return Find(1).ok(); }));
}

TEST_F(SharedTierTest, AWriteWaitsForItsReturn) {
  redis_->Kill();
  TimeOf(*tier_);
  absl::Notification ended;
  tier_->WriteArtifact(
      kTierTestNamespace, ArtifactOf(1), [](const EntryId&) { return absl::NotFoundError("not here"); },
      [&] { ended.Notify(); });
  EXPECT_FALSE(ended.WaitForNotificationWithTimeout(absl::Milliseconds(300)));
  redis_->Start();
  ended.WaitForNotification();
  EXPECT_TRUE(Find(1).ok());
}

TEST_F(SharedTierTest, ABlackHoleCostsItsLimitAndThenNothing) {
  tier_ = Connect({});
  EXPECT_TRUE(Eventually([&] { return redis_->Clients() >= kTierReaders + 2; }));
  redis_->Pause();
  std::vector<absl::Duration> times;
  for (int i = 0; i < 300; ++i) times.push_back(TimeOf(*tier_));
  EXPECT_TRUE(tier_->status().breaker_open());
  redis_->Continue();
  std::sort(times.begin(), times.end());
  std::cout << "a look-up in a black hole: median " << times[150] << ", p99 " << times[297] << ", longest "
            << times[299] << "\n";
  EXPECT_LT(times[150], absl::Milliseconds(20));
  EXPECT_GE(times[297], absl::Milliseconds(50));  // three
  EXPECT_LT(times[299], absl::Seconds(5));        // the machine may be loaded
  EXPECT_TRUE(Eventually([&] { return !tier_->status().breaker_open() && tier_->status().connected(); }));
  Write(1);
  EXPECT_TRUE(Eventually([&] { return Find(1).ok(); }));
}

// The control: it is the limit that ends it.
TEST_F(SharedTierTest, WithALongLimitABlackHoleHoldsALookUp) {
  SharedTier::Options options;
  options.lookup_limit = absl::Milliseconds(700);
  const std::unique_ptr<SharedTier> patient = Connect(std::move(options));
  redis_->Pause();
  EXPECT_GE(TimeOf(*patient), absl::Milliseconds(700));
  redis_->Continue();
}

TEST_F(SharedTierTest, FullDropsWritesAndServesOn) {
  StartServer({"--maxmemory", "3mb", "--maxmemory-policy", "noeviction"});
  Write(1);
  Write(2, 4'000'000);
  EXPECT_EQ(tier_->status().dropped_writes(), 1);
  EXPECT_TRUE(Find(1).ok());
  EXPECT_FALSE(Find(2).ok());  // no manifest without its objects
}

TEST_F(SharedTierTest, FlushedIsAMiss) {
  Write(1);
  redis_->Ask({"FLUSHALL"});
  EXPECT_TRUE(absl::IsNotFound(Find(1).status()));
  Write(1);
  EXPECT_TRUE(Find(1).ok());
}

TEST_F(SharedTierTest, AReadOnlyReplicaServesAndTakesNothing) {
  Write(1);
  EXPECT_EQ(redis_->Ask({"REPLICAOF", "127.0.0.1", "1"}), "OK");
  Write(2);
  EXPECT_EQ(tier_->status().dropped_writes(), 1);
  EXPECT_TRUE(Find(1).ok());
  redis_->Ask({"REPLICAOF", "NO", "ONE"});
  Write(2);
  EXPECT_TRUE(Find(2).ok());
}

TEST_F(SharedTierTest, WaitingWritesHaveABound) {
  SharedTier::Options options;
  options.write_bytes_max = 3'000'000;
  tier_ = Connect(std::move(options));
  redis_->Pause();
  const auto none = [](const EntryId&) { return absl::NotFoundError("not here"); };
  for (int i = 0; i < 10; ++i) tier_->WriteArtifact(kTierTestNamespace, ArtifactOf(i, 1'000'000), none);
  EXPECT_EQ(tier_->status().dropped_writes(), 8);
  redis_->Continue();
}

// A tenant's user of the engine: what is another's it may not touch.
TEST_F(SharedTierTest, LogsInAsAUserOfTheEngine) {
  StartServer({"--user", "kiln", "on", ">secret", "~kiln:1:test:*", "+@read", "+@write", "+@scripting",
               "+@connection", "-@dangerous"});
  SharedTier::Options options;
  options.login = {"kiln", "secret"};
  tier_ = Connect(options);
  ASSERT_TRUE(tier_->status().connected()) << tier_->status().message();
  Write(1);
  EXPECT_TRUE(Find(1).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(LookUp(*tier_, 1, "other").status()));
  options.login.password = "wrong";
  tier_ = Connect(options);
  EXPECT_FALSE(tier_->status().connected());
  EXPECT_NE(tier_->status().message().find("WRONGPASS"), std::string::npos) << tier_->status().message();
}

}  // namespace
}  // namespace kiln
