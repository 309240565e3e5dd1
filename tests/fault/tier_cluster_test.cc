// The shared tier on a Redis cluster of six: three masters with a replica each, slots that move, a master
// that dies.
#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "cache/cache_limits.h"
#include "cache/shared/redis_cluster.h"
#include "cache/shared/shared_tier.h"
#include "cache/shared/tier_value.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/zstd.h"
#include "gtest/gtest.h"
#include "kiln/v1/artifact.pb.h"
#include "tests/fault/redis_nodes.h"
#include "tests/fault/redis_server.h"

namespace kiln {
namespace {

constexpr char kNamespace[] = "test";
constexpr int kPrograms = 30;

const Signatures& TestSignatures() {
  static const Signatures& signatures = *new Signatures(Signatures::OfThisProcess());
  return signatures;
}

std::string KeyOf(int number) { return Sha256(absl::StrCat("key ", number)); }

// One object and the manifest that names it.
std::vector<Entry> ArtifactOf(int number) {
  const std::string raw = absl::StrCat("code of ", number);
  const EntryValue packed = MakeEntryValue(ZstdCompress(raw));
  v1::Manifest manifest;
  manifest.set_namespace_(kNamespace);
  manifest.set_compile_key(KeyOf(number));
  manifest.set_variant_id(Sha256("variant"));
  v1::ObjectRef* object = manifest.add_kernels()->mutable_object();
  object->set_digest(Sha256(raw));
  object->set_raw_size(raw.size());
  object->set_packed_size(packed->size());
  return {{{EntryKind::kObject, object->digest()}, packed},
          TestSignatures().SignEntry(
              {EntryKind::kManifest, ManifestEntryKey(KeyOf(number), manifest.variant_id())}, kNamespace,
              SerializeDeterministic(manifest))};
}

bool Eventually(const std::function<bool()>& condition) {
  for (int tries = 0; tries < 1500; ++tries) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return false;
}

class TierCluster : public testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::IsThere())
      GTEST_SKIP() << "no redis-server on this host (apt-get install redis-server)";
    nodes_ = std::make_unique<RedisNodes>();
  }

  std::unique_ptr<SharedTier> Connect(absl::Duration lookup_limit = absl::Seconds(20)) {
    SharedTier::Options options;
    // Nodes that know the others.
    options.addresses = {nodes_->address(4), nodes_->address(1)};
    options.cluster = true;
    options.lookup_limit = lookup_limit;
    absl::StatusOr<std::unique_ptr<SharedTier>> tier =
        SharedTier::Create(std::move(options), &TestSignatures());
    EXPECT_TRUE(tier.ok()) << tier.status();
    EXPECT_TRUE(Eventually([&] { return (*tier)->status().connected(); })) << (*tier)->status().message();
    return *std::move(tier);
  }
  void WriteAll(SharedTier& tier) {
    for (int i = 0; i < kPrograms; ++i) Write(tier, i);
  }
  void Write(SharedTier& tier, int number) {
    absl::Notification ended;
    tier.WriteArtifact(
        kNamespace, ArtifactOf(number), [](const EntryId&) { return absl::NotFoundError("not here"); },
        [&] { ended.Notify(); });
    ended.WaitForNotification();
  }
  // OK where all of it came, and is what was written.
  absl::Status Check(SharedTier& tier, int number) {
    absl::StatusOr<SharedTier::Found> found =
        tier.LookUp(kNamespace, KeyOf(number), MonotonicAfter(absl::Seconds(20)));
    if (!found.ok()) return found.status();
    absl::StatusOr<std::vector<Entry>> objects = tier.Fetch(kNamespace, found->objects);
    if (!objects.ok()) return objects.status();
    const std::vector<Entry> written = ArtifactOf(number);
    const bool same = found->entries.size() == 1 && *found->entries[0].value == *written[1].value &&
                      objects->size() == 1 && *(*objects)[0].value == *written[0].value;
    return same ? absl::OkStatus() : absl::DataLossError("other bytes than were written");
  }

  std::unique_ptr<RedisCluster> Route(size_t named_max = kRedisNodesNamedMax) {
    RedisCluster::Options options;
    options.seeds = {*RedisAddress::Parse(nodes_->address(1))};
    options.connections = 4;
    options.nodes_named_max = named_max;
    absl::StatusOr<std::unique_ptr<RedisCluster>> cluster = RedisCluster::Create(options);
    EXPECT_TRUE(cluster.ok()) << cluster.status();
    EXPECT_TRUE(Eventually([&] { return (*cluster)->state().ok(); })) << (*cluster)->state();
    return *std::move(cluster);
  }
  // A key's, whose slot a master has.
  static std::string NameAt(int master) {
    for (int i = 0;; ++i) {
      std::string name = absl::StrCat("key ", i);
      if (RedisNodes::OwnerOf(RedisSlot(name)) == master) return name;
    }
  }
  static int NumberAt(int master) {
    for (int i = 0;; ++i) {
      if (RedisNodes::OwnerOf(RedisSlot(TierName(kNamespace, KeyOf(i), "m"))) == master) return i;
    }
  }

  std::unique_ptr<RedisNodes> nodes_;
};

TEST(RedisSlots, AreThoseOfTheSpecification) {
  EXPECT_EQ(RedisSlot("123456789"), 0x31C3 % kRedisSlots);
  EXPECT_EQ(RedisSlot("{user1000}.following"), RedisSlot("{user1000}.followers"));
  EXPECT_EQ(RedisSlot("foo{{bar}}zap"), RedisSlot("{bar"));
  EXPECT_NE(RedisSlot("foo{}{bar}"), RedisSlot("bar"));
}

TEST_F(TierCluster, KeysAreSpreadAndFound) {
  const std::unique_ptr<SharedTier> tier = Connect();
  WriteAll(*tier);
  for (int i = 0; i < kPrograms; ++i) EXPECT_TRUE(Check(*tier, i).ok()) << i << ": " << Check(*tier, i);
  for (int i = 0; i < RedisNodes::kMasters; ++i) EXPECT_GT(std::stoi(nodes_->Ask(i, {"DBSIZE"})), 5) << i;
  const std::string name = TierName(kNamespace, KeyOf(0), "m");
  EXPECT_EQ(nodes_->Ask(0, {"CLUSTER", "KEYSLOT", name}), absl::StrCat(RedisSlot(name)));
  EXPECT_EQ(tier->status().dropped_writes(), 0);
  absl::Notification ours;
  tier->Claim(1, kNamespace, KeyOf(1), MonotonicAfter(absl::Seconds(20)), [&](TierClaims::Answer answer) {
    EXPECT_EQ(answer, TierClaims::Answer::kOurs);
    ours.Notify();
  });
  ours.WaitForNotification();
  tier->Release(1);
  EXPECT_TRUE(absl::IsNotFound(Check(*tier, kPrograms)));
}

// With the slot half moved: its one key is at the new node, and the old one says ASK; then MOVED.
// A list, what became of its items and its device are one slot's.
TEST_F(TierCluster, WorkListsAreKeptTogether) {
  const std::unique_ptr<SharedTier> tier = Connect();
  for (const char* kind : {"sm_80-0a", "sm_90-0a", "sm_100-0a"}) {
    const TierWork::List list = {kNamespace, kind};
    EXPECT_EQ(*tier->work()->TellDevice(list, kind), kind);
    EXPECT_EQ(*tier->work()->Ask(list, KeyOf(1), "item"), TierWork::Asked::kNow);
    const auto claimed = tier->work()->Claim(list);
    ASSERT_TRUE(claimed.ok() && claimed->has_value()) << claimed.status();
    EXPECT_EQ((*claimed)->item.value_or(""), "item");
    EXPECT_TRUE(*tier->work()->Renew(list, **claimed));
    EXPECT_TRUE(tier->work()->End(list, **claimed, /*tried=*/true).ok());
    EXPECT_EQ(tier->work()->StatesOf(list, {KeyOf(1)})->at(0), TierWork::State::kTried);
  }
}

TEST_F(TierCluster, AskAndMovedAreFollowed) {
  for (const bool follows : {true, false}) {
    RedisCluster::Options options;
    options.seeds = {*RedisAddress::Parse(nodes_->address(0))};
    options.redirections_max = follows ? 5 : 0;  // the control
    const absl::StatusOr<std::unique_ptr<RedisCluster>> cluster = RedisCluster::Create(options);
    ASSERT_TRUE(cluster.ok());
    ASSERT_TRUE(Eventually([&] { return (*cluster)->state().ok(); })) << (*cluster)->state();
    const std::string name = follows ? "followed" : "not followed";
    const auto ask = [&](const RedisCommand& command) -> absl::StatusOr<std::string> {
      auto replies =
          (*cluster)->Run({command}, MonotonicAfter(absl::Seconds(20)), RedisEngine::Asker::kWaits);
      if (!replies.ok()) return replies.status();
      const absl::Status error = RedisError(*(*replies)[0]);
      if (!error.ok()) return error;
      return std::string(RedisString(*(*replies)[0]));
    };
    EXPECT_TRUE(ask({"SET", name, "value"}).ok());
    const int slot = RedisSlot(name), from = RedisNodes::OwnerOf(slot),
              to = (from + 1) % RedisNodes::kMasters;
    nodes_->BeginMove(slot, from, to);
    nodes_->MoveKeys({name}, from, to);
    const absl::StatusOr<std::string> asked = ask({"GET", name});
    EXPECT_EQ(asked.ok() && *asked == "value", follows) << asked.status();
    nodes_->EndMove(slot, to);
    const absl::StatusOr<std::string> moved = ask({"GET", name});
    EXPECT_EQ(moved.ok() && *moved == "value", follows) << moved.status();
    // The map is read anew, and names the new owner.
    EXPECT_TRUE(Eventually([&] { return ask({"GET", name}).ok(); }));
  }
}

// A node that has no slot yet is in no map; who has the half of a slot that moves to it names it.
TEST_F(TierCluster, ANodeWithoutSlotsIsAskedWhereItIsNamed) {
  nodes_->StartNode();
  const int fresh = 2 * RedisNodes::kMasters;
  EXPECT_EQ(nodes_->Ask(fresh, {"CLUSTER", "MEET", "127.0.0.1", absl::StrCat(nodes_->port(0))}), "OK");
  EXPECT_TRUE(Eventually(
      [&] { return nodes_->Ask(fresh, {"CLUSTER", "INFO"}).find("cluster_state:ok") != std::string::npos; }));
  const std::string name = NameAt(0);
  EXPECT_EQ(nodes_->Ask(0, {"SET", name, "value"}), "OK");
  EXPECT_TRUE(Eventually([&] {  // everybody has heard of it
    return nodes_->Ask(0, {"CLUSTER", "SETSLOT", absl::StrCat(RedisSlot(name)), "MIGRATING",
                           nodes_->IdOf(fresh)}) == "OK";
  }));
  for (const bool follows : {true, false}) {  // none beside the map's: the control
    const std::unique_ptr<RedisCluster> cluster = Route(follows ? 1 : 0);
    if (follows) {
      nodes_->BeginMove(RedisSlot(name), 0, fresh);
      nodes_->MoveKeys({name}, 0, fresh);
    }
    for (int i = 0; i < 3; ++i) {
      auto answers =
          cluster->RunEach({{"GET", name}}, MonotonicAfter(absl::Seconds(20)), RedisEngine::Asker::kWaits);
      EXPECT_EQ(answers[0].ok() && RedisString(**answers[0]) == "value", follows) << answers[0].status();
      EXPECT_EQ(absl::IsUnavailable(answers[0].status()), !follows) << answers[0].status();
    }
  }
}

// Of a batch that goes to all, and of claims and look-ups one by one.
TEST_F(TierCluster, AFrozenNodeCostsItsOwnKeysAlone) {
  const std::unique_ptr<RedisCluster> cluster = Route();
  const std::unique_ptr<SharedTier> tier = Connect(absl::Milliseconds(200));
  for (int master = 0; master < RedisNodes::kMasters; ++master) Write(*tier, NumberAt(master));
  nodes_->server(RedisNodes::kMasters).Kill();  // so that nobody takes over
  nodes_->server(0).Pause();

  std::vector<RedisCommand> batch;
  for (int i = 0; i < 12; ++i) batch.push_back({"SET", NameAt(i % RedisNodes::kMasters), "value"});
  const MonotonicTime begin = MonotonicNow();
  const std::vector<RedisEngine::Answer> answers =
      cluster->RunEach(batch, MonotonicAfter(absl::Seconds(2)), RedisEngine::Asker::kBackground);
  for (size_t i = 0; i < answers.size(); ++i)
    EXPECT_EQ(answers[i].ok(), i % RedisNodes::kMasters != 0) << i << answers[i].status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(answers[0].status())) << answers[0].status();
  EXPECT_LT(MonotonicNow() - begin, std::chrono::seconds(4));
  // The control: who needs all of them gets none.
  EXPECT_FALSE(cluster->Run(batch, MonotonicAfter(absl::Seconds(2)), RedisEngine::Asker::kBackground).ok());

  std::array<TierClaims::Answer, RedisNodes::kMasters> claimed;
  absl::BlockingCounter told(RedisNodes::kMasters);
  for (int master = 0; master < RedisNodes::kMasters; ++master) {
    tier->Claim(static_cast<uint64_t>(master), kNamespace, KeyOf(NumberAt(master)),
                MonotonicAfter(absl::Seconds(2)), [&claimed, &told, master](TierClaims::Answer answer) {
                  claimed[static_cast<size_t>(master)] = answer;
                  told.DecrementCount();
                });
  }
  told.Wait();
  EXPECT_EQ(claimed[0], TierClaims::Answer::kNobodys);
  EXPECT_EQ(claimed[1], TierClaims::Answer::kOurs);
  EXPECT_EQ(claimed[2], TierClaims::Answer::kOurs);

  // After three nobody waits for that node, and everybody still asks the others.
  std::vector<absl::Duration> times;
  for (int i = 0; i < 50; ++i) {
    const absl::Time asked = absl::Now();
    EXPECT_FALSE(tier->LookUp(kNamespace, KeyOf(NumberAt(0)), MonotonicAfter(absl::Milliseconds(200))).ok());
    times.push_back(absl::Now() - asked);
    EXPECT_TRUE(Check(*tier, NumberAt(1)).ok()) << Check(*tier, NumberAt(1));
  }
  std::sort(times.begin(), times.end());
  EXPECT_GE(times.back(), absl::Milliseconds(150)) << "it was waited for at first";
  EXPECT_LT(times[times.size() / 2], absl::Milliseconds(50));
  EXPECT_TRUE(tier->status().breaker_open());
  // A write that waits for that node holds up none to another.
  absl::Notification stuck;
  tier->WriteArtifact(
      kNamespace, ArtifactOf(NumberAt(0)), [](const EntryId&) { return absl::NotFoundError("not here"); },
      [&] { stuck.Notify(); });
  const absl::Time posted = absl::Now();
  Write(*tier, NumberAt(2));
  EXPECT_LT(absl::Now() - posted, absl::Seconds(10));
  EXPECT_FALSE(stuck.HasBeenNotified());
  nodes_->server(0).Continue();
  stuck.WaitForNotification();
  EXPECT_TRUE(Eventually([&] { return Check(*tier, NumberAt(0)).ok(); }));
}

// As a node says it that has become a replica: a script does, once.
TEST_F(TierCluster, WhoIsReadOnlyIsAskedAgainByTheNextMap) {
  const std::unique_ptr<RedisCluster> cluster = Route();
  const auto ask = [&](const std::string& name, int times) {
    const std::string script = absl::StrCat("if redis.call('INCR', KEYS[1]) <= ", times,
                                            " then return redis.error_reply('READONLY You can not') end "
                                            "return 'written'");
    return std::move(cluster->RunEach({{"EVAL", script, "1", name}, {"SET", NameAt(1), "value"}},
                                      MonotonicAfter(absl::Seconds(20)), RedisEngine::Asker::kWaits)[0]);
  };
  const RedisEngine::Answer once = ask("once", 1);
  EXPECT_TRUE(once.ok() && RedisString(**once) == "written") << once.status();
  EXPECT_TRUE(absl::IsUnavailable(ask("always", 100).status()));
  EXPECT_EQ(nodes_->Ask(RedisNodes::OwnerOf(RedisSlot("always")), {"GET", "always"}), "2")
      << "once more, and no more";
}

TEST_F(TierCluster, ASlotMovesWhileLookUpsRun) {
  const std::unique_ptr<SharedTier> tier = Connect();
  WriteAll(*tier);
  const std::string name = TierName(kNamespace, KeyOf(0), "m");
  const int slot = RedisSlot(name), home = RedisNodes::OwnerOf(slot),
            other = (home + 1) % RedisNodes::kMasters;
  std::atomic<bool> over{false};
  std::atomic<int> looked{0}, failed{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!over) {
        const absl::Status status = Check(*tier, 0);
        ++looked;
        if (!status.ok() && failed++ < 3) ADD_FAILURE() << status;
      }
    });
  }
  for (int round = 0; round < 10; ++round) {
    const int from = round % 2 == 0 ? home : other, to = round % 2 == 0 ? other : home;
    nodes_->BeginMove(slot, from, to);
    absl::SleepFor(absl::Milliseconds(30));
    nodes_->MoveKeys(nodes_->server(from).Keys(absl::StrCat("*{", ToHex(KeyOf(0)), "}*")), from, to);
    absl::SleepFor(absl::Milliseconds(30));
    nodes_->EndMove(slot, to);
    absl::SleepFor(absl::Milliseconds(30));
  }
  over = true;
  for (std::thread& reader : readers) reader.join();
  std::cout << looked << " look-ups while a slot moved ten times\n";
  EXPECT_GT(looked, 50);
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(tier->status().refused(), 0);
}

TEST_F(TierCluster, AReplicaTakesOverWhereAMasterDies) {
  const std::unique_ptr<SharedTier> tier = Connect();
  WriteAll(*tier);
  EXPECT_TRUE(Eventually(
      [&] { return nodes_->Ask(0, {"DBSIZE"}) == nodes_->Ask(RedisNodes::kMasters, {"DBSIZE"}); }));
  nodes_->server(0).Kill();
  const absl::Time died = absl::Now();
  const auto all_there = [&] {
    for (int i = 0; i < kPrograms; ++i) {
      const absl::Status status = Check(*tier, i);
      if (status.ok()) continue;
      EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
      return false;
    }
    return true;
  };
  EXPECT_TRUE(Eventually(all_there));
  std::cout << "a replica serves " << absl::Now() - died << " after its master died\n";
  Write(*tier, kPrograms);
  EXPECT_TRUE(Check(*tier, kPrograms).ok());
}

}  // namespace
}  // namespace kiln
