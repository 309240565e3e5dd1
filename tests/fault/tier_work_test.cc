// The work list of a cluster, on a redis-server: what was asked for is claimed once, by who lives, and what
// nobody trusted has signed is refused.
#include "cache/shared/tier_work.h"

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache/cache_limits.h"
#include "cache/shared/shared_tier.h"
#include "compiler/support/digest.h"
#include "compiler/support/signature.h"
#include "gtest/gtest.h"
#include "tests/fault/redis_server.h"

namespace kiln {
namespace {

constexpr absl::Duration kAtOnce = absl::Milliseconds(1);
const TierWork::List kList = {"test", "sm_90-0a"};
const char kStream[] = "kiln:1:test:{w:sm_90-0a}:w";

// A daemon as far as the tier knows it.
struct Member {
  std::unique_ptr<Signatures> signatures;
  std::unique_ptr<SharedTier> tier;
  const TierWork& work() const { return *tier->work(); }
};

class TierWorkTest : public testing::Test {
 protected:
  TierWorkTest() {
    char path[] = "/tmp/kiln-work-XXXXXX";
    keys_ = mkdtemp(path);
  }
  ~TierWorkTest() override { std::filesystem::remove_all(keys_); }
  void SetUp() override {
    if (!RedisServer::IsThere())
      GTEST_SKIP() << "no redis-server on this host (apt-get install redis-server)";
    StartServer({});
  }
  void StartServer(std::vector<std::string> flags, RedisLogin login = {}) {
    for (Member* member : {&first_, &second_, &stranger_}) *member = Member();
    redis_ = nullptr;
    redis_ = std::make_unique<RedisServer>(std::move(flags));
    first_ = Join("first", {"second"}, login);
    second_ = Join("second", {"first"}, login);
    stranger_ = Join("stranger", {}, login);
  }
  Member Join(const std::string& key, const std::vector<std::string>& trusted, const RedisLogin& login,
              bool believes = false) {
    v1::SigningConfig config;
    config.set_key_file(absl::StrCat(keys_, "/", key, ".pem"));
    for (const std::string& other : trusted) {
      absl::StatusOr<SigningKey> made = SigningKey::LoadOrMake(absl::StrCat(keys_, "/", other, ".pem"));
      EXPECT_TRUE(made.ok()) << made.status();
      config.add_trusted()->set_public_key(absl::Base64Escape(made->public_key()));
      config.mutable_trusted()->rbegin()->add_namespaces("test");
    }
    Member member;
    absl::StatusOr<Signatures> loaded = Signatures::Load(config);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    member.signatures = std::make_unique<Signatures>(*std::move(loaded));
    SharedTier::Options options;
    options.addresses = {redis_->address()};
    options.login = login;
    options.dangerously_believe = believes;
    absl::StatusOr<std::unique_ptr<SharedTier>> tier =
        SharedTier::Create(std::move(options), member.signatures.get());
    EXPECT_TRUE(tier.ok()) << tier.status();
    member.tier = *std::move(tier);
    return member;
  }
  static std::string Subject(int number) { return Sha256(absl::StrCat("subject ", number)); }
  TierWork::Asked Ask(const Member& member, int number) {
    const auto asked = member.work().Ask(kList, Subject(number), absl::StrCat("item ", number));
    EXPECT_TRUE(asked.ok()) << asked.status();
    return asked.value_or(TierWork::Asked::kFull);
  }
  std::optional<TierWork::Claimed> Claim(const Member& member, absl::Duration idle = kTierWorkIdle) {
    auto claimed = member.work().Claim(kList, idle);
    EXPECT_TRUE(claimed.ok()) << claimed.status();
    return claimed.ok() ? *std::move(claimed) : std::nullopt;
  }
  TierWork::State StateOf(const Member& member, int number) {
    const auto states = member.work().StatesOf(kList, {Subject(number)});
    EXPECT_TRUE(states.ok()) << states.status();
    return states.ok() ? states->at(0) : TierWork::State::kUnknown;
  }
  std::string Length() { return redis_->Ask({"XLEN", kStream}); }

  std::string keys_;
  std::unique_ptr<RedisServer> redis_;
  Member first_, second_, stranger_;
};

TEST_F(TierWorkTest, AnItemIsAskedForAndClaimedOnce) {
  EXPECT_EQ(StateOf(first_, 1), TierWork::State::kUnknown);
  EXPECT_FALSE(Claim(second_).has_value());
  EXPECT_EQ(Ask(first_, 1), TierWork::Asked::kNow);
  EXPECT_EQ(Ask(first_, 1), TierWork::Asked::kBefore);
  EXPECT_EQ(Ask(second_, 1), TierWork::Asked::kBefore);
  EXPECT_EQ(StateOf(first_, 1), TierWork::State::kAsked);

  const auto claimed = Claim(second_);
  ASSERT_TRUE(claimed.has_value());
  EXPECT_EQ(claimed->subject, Subject(1));
  ASSERT_TRUE(claimed->item.ok()) << claimed->item.status();
  EXPECT_EQ(*claimed->item, "item 1");
  EXPECT_EQ(claimed->tries, 0);
  EXPECT_FALSE(Claim(first_).has_value());
  EXPECT_EQ(Ask(first_, 1), TierWork::Asked::kBefore);

  EXPECT_EQ(*second_.work().End(kList, *claimed, /*tried=*/true), true);
  EXPECT_EQ(StateOf(first_, 1), TierWork::State::kTried);
  EXPECT_EQ(Ask(first_, 1), TierWork::Asked::kBefore);
  EXPECT_EQ(Length(), "0");
  EXPECT_FALSE(Claim(second_, kAtOnce).has_value());
}

TEST_F(TierWorkTest, ItemsAreClaimedInTheirOrderByAsManyAsThereAre) {
  for (int i = 0; i < 40; ++i) EXPECT_EQ(Ask(first_, i), TierWork::Asked::kNow);
  std::vector<std::string> claimed[2];
  std::thread other([&] {
    while (const auto item = Claim(second_)) claimed[1].push_back(item->subject);
  });
  while (const auto item = Claim(first_)) claimed[0].push_back(item->subject);
  other.join();
  EXPECT_EQ(claimed[0].size() + claimed[1].size(), 40);
  std::vector<std::string> all;
  for (int i = 0; i < 40; ++i) all.push_back(Subject(i));
  size_t next[2] = {0, 0};
  for (const std::string& subject : all) {
    for (int who = 0; who < 2; ++who) {
      if (next[who] < claimed[who].size() && claimed[who][next[who]] == subject) {
        ++next[who];
        break;
      }
    }
  }
  EXPECT_EQ(next[0] + next[1], 40) << "one was claimed twice, or out of order";
}

TEST_F(TierWorkTest, WhatASilentOwnerHasIsAnothers) {
  Ask(first_, 1);
  const auto claimed = Claim(first_);
  ASSERT_TRUE(claimed.has_value());
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_FALSE(Claim(second_, absl::Seconds(20)).has_value()) << "its owner has not been silent for so long";
  const auto taken = Claim(second_, absl::Milliseconds(50));
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->id, claimed->id);
  EXPECT_EQ(taken->tries, 1);
  EXPECT_TRUE(taken->item.ok());
  EXPECT_EQ(*second_.work().Renew(kList, *taken), true);
  EXPECT_EQ(*first_.work().Renew(kList, *claimed), false);
  // Who has lost it ends nothing.
  EXPECT_EQ(*first_.work().End(kList, *claimed, /*tried=*/true), false);
  EXPECT_EQ(StateOf(first_, 1), TierWork::State::kAsked);
  EXPECT_EQ(Length(), "1");
  EXPECT_EQ(*second_.work().End(kList, *taken, /*tried=*/true), true);
}

TEST_F(TierWorkTest, DaemonsOfOneKeyAreTwo) {
  const Member twin = Join("first", {"second"}, {});
  Ask(first_, 1);
  const auto claimed = Claim(first_);
  ASSERT_TRUE(claimed.has_value());
  EXPECT_EQ(*twin.work().Renew(kList, *claimed), false);
  EXPECT_TRUE(twin.work().Release(kList, *claimed).ok());
  EXPECT_FALSE(Claim(second_).has_value()) << "it was released by who had not claimed it";
  EXPECT_EQ(*twin.work().End(kList, *claimed, /*tried=*/true), false);
  EXPECT_EQ(*first_.work().Renew(kList, *claimed), true);
}

TEST_F(TierWorkTest, AProcessThatHasBeenSilentForLongIsForgotten) {
  const auto consumers = [&] {
    return redis_->Ask({"EVAL", "return #redis.call('XINFO', 'CONSUMERS', KEYS[1], 'kiln')", "1", kStream});
  };
  for (int i = 0; i < 4; ++i) Ask(first_, i);
  EXPECT_EQ(*first_.work().End(kList, *Claim(first_), /*tried=*/true), true);
  const auto claimed = Claim(second_);
  EXPECT_EQ(consumers(), "2");
  absl::SleepFor(absl::Milliseconds(50));
  const Member third = Join("third", {"first"}, {});
  EXPECT_TRUE(third.work().Claim(kList, kTierWorkIdle, absl::Milliseconds(40))->has_value());
  EXPECT_EQ(consumers(), "2") << "the first; the second has an item";
  EXPECT_EQ(*second_.work().Renew(kList, *claimed), true);
}

// Or it were measured twice: who finds no state asks again.
TEST_F(TierWorkTest, AnItemEndsWithItsState) {
  redis_->Ask({"XADD", kStream, "1-1", "s", Subject(1), "i", "of long ago"});
  redis_->Ask({"XADD", kStream, "1-2", "s", Subject(1), "i", "of long ago"});
  EXPECT_FALSE(Claim(first_)->item.ok()) << "nobody has asked since";
  EXPECT_EQ(Ask(first_, 2), TierWork::Asked::kNow);
  EXPECT_EQ(Length(), "1");
  EXPECT_EQ(Claim(second_)->subject, Subject(2));
  for (int i = 0; i < 4; ++i) {  // those that are owed
    absl::SleepFor(absl::Milliseconds(5));
    const auto again = Claim(second_, kAtOnce);
    EXPECT_TRUE(!again.has_value() || again->subject == Subject(2));
  }
}

TEST_F(TierWorkTest, WhoRenewsKeepsIt) {
  Ask(first_, 1);
  const auto claimed = Claim(first_);
  ASSERT_TRUE(claimed.has_value());
  for (int i = 0; i < 10; ++i) {
    absl::SleepFor(absl::Milliseconds(100));
    EXPECT_EQ(*first_.work().Renew(kList, *claimed), true);
    EXPECT_FALSE(Claim(second_, absl::Milliseconds(600)).has_value());
  }
  // And a renewal is no try.
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(Claim(second_, kAtOnce)->tries, 1);
}

TEST_F(TierWorkTest, WhatIsGivenBackIsAnothersAtOnce) {
  Ask(first_, 1);
  const auto claimed = Claim(first_);
  ASSERT_TRUE(claimed.has_value());
  EXPECT_FALSE(Claim(second_).has_value());
  EXPECT_TRUE(first_.work().Release(kList, *claimed).ok());
  const auto taken = Claim(second_);
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->tries, 0);
  // It is not his any more.
  EXPECT_TRUE(first_.work().Release(kList, *claimed).ok());
  EXPECT_FALSE(Claim(first_).has_value());
}

TEST_F(TierWorkTest, AFlushedTierIsAskedAgain) {
  Ask(first_, 1);
  const auto claimed = Claim(second_);
  ASSERT_TRUE(claimed.has_value());
  redis_->Ask({"FLUSHALL"});
  EXPECT_EQ(StateOf(first_, 1), TierWork::State::kUnknown);
  EXPECT_EQ(*second_.work().Renew(kList, *claimed), false);
  EXPECT_EQ(*second_.work().End(kList, *claimed, /*tried=*/true), false);
  EXPECT_EQ(Ask(first_, 2), TierWork::Asked::kNow);
  EXPECT_EQ(*second_.work().End(kList, *claimed, /*tried=*/true), false) << "another list, without a group";
  EXPECT_EQ(Claim(second_)->subject, Subject(2));
}

TEST_F(TierWorkTest, TheListIsBoundedAndEnds) {
  for (size_t i = 0; i < kTierWorkItemsMax; ++i)
    ASSERT_EQ(Ask(first_, static_cast<int>(i)), TierWork::Asked::kNow);
  EXPECT_EQ(Ask(first_, -1), TierWork::Asked::kFull);
  EXPECT_EQ(StateOf(first_, -1), TierWork::State::kUnknown);
  EXPECT_EQ(Length(), absl::StrCat(kTierWorkItemsMax));
  // Of another namespace there is room.
  EXPECT_EQ(*first_.work().Ask({"other", kList.kind}, Subject(-1), "item"), TierWork::Asked::kNow);
  // One less, and one more fits.
  EXPECT_TRUE(first_.work().End(kList, *Claim(first_), /*tried=*/true).ok());
  EXPECT_EQ(Ask(first_, -1), TierWork::Asked::kNow);
  for (const std::string& name : redis_->Keys("kiln:1:*")) {
    int64_t seconds = 0;
    EXPECT_TRUE(absl::SimpleAtoi(redis_->Ask({"TTL", name}), &seconds) && seconds > 0) << name;
    if (seconds <= 0) break;
  }
  const auto large = first_.work().Ask(kList, Subject(-2), std::string(kTierWorkItemBytesMax, 'x'));
  EXPECT_TRUE(absl::IsInvalidArgument(large.status())) << large.status();
}

// ---- Who is believed -------------------------------------------------------------------------

TEST_F(TierWorkTest, WhatNobodyTrustedHasSignedIsRefused) {
  Ask(stranger_, 1);
  Ask(first_, 2);
  Ask(second_, 3);
  // One that is damaged, one without a subject, one too large.
  redis_->Ask({"XADD", kStream, "*", "s", Subject(4), "i", "a lie"});
  redis_->Ask({"XADD", kStream, "*", "i", "a lie"});
  redis_->Ask({"XADD", kStream, "*", "s", Subject(5), "i", std::string(kTierWorkItemBytesMax + 1, 'x')});
  std::vector<std::string> good;
  int refused = 0;
  while (const auto claimed = Claim(second_)) {
    if (claimed->item.ok()) {
      good.push_back(*claimed->item);
    } else {
      ++refused;
    }
    EXPECT_TRUE(second_.work().End(kList, *claimed, claimed->item.ok()).ok());
  }
  EXPECT_EQ(good, (std::vector<std::string>{"item 2", "item 3"}));
  EXPECT_EQ(refused, 4);
  EXPECT_EQ(Length(), "0");
  // Who was refused is not heard again for a while; a stranger keeps nobody else from asking.
  EXPECT_EQ(StateOf(stranger_, 1), TierWork::State::kTried);
  EXPECT_EQ(Ask(stranger_, 1), TierWork::Asked::kBefore);
  EXPECT_EQ(StateOf(first_, 1), TierWork::State::kUnknown);
  EXPECT_EQ(Ask(first_, 1), TierWork::Asked::kNow) << "a stranger asked for it before";
}

// The control: who checks no signature takes it.
TEST_F(TierWorkTest, WhoBelievesEverybodyTakesIt) {
  const Member gullible = Join("gullible", {}, {}, /*believes=*/true);
  Ask(stranger_, 1);
  const auto claimed = Claim(gullible);
  ASSERT_TRUE(claimed.has_value());
  ASSERT_TRUE(claimed->item.ok()) << claimed->item.status();
  EXPECT_EQ(*claimed->item, "item 1");
}

// An item that is signed, but for another subject, namespace or kind, is nobody's.
TEST_F(TierWorkTest, AnItemIsGoodUnderItsOwnNameAlone) {
  Ask(first_, 1);
  const std::string item =
      redis_->Ask({"EVAL", "return redis.call('XRANGE', KEYS[1], '-', '+')[1][2][4]", "1", kStream});
  redis_->Ask({"FLUSHALL"});
  for (const auto& [name, list, subject] : {std::tuple{std::string(kStream), kList, Subject(2)},
                                            std::tuple{std::string("kiln:1:other:{w:sm_90-0a}:w"),
                                                       TierWork::List{"other", kList.kind}, Subject(1)},
                                            std::tuple{std::string("kiln:1:test:{w:sm_80-0a}:w"),
                                                       TierWork::List{"test", "sm_80-0a"}, Subject(1)}}) {
    redis_->Ask({"XADD", name, "*", "s", subject, "i", item});
    const auto claimed = first_.work().Claim(list);
    ASSERT_TRUE(claimed.ok() && claimed->has_value()) << name;
    EXPECT_FALSE((*claimed)->item.ok()) << name;
  }
  // The control: so it was good.
  redis_->Ask({"XADD", kStream, "*", "s", Subject(1), "i", item});
  EXPECT_TRUE(Claim(second_)->item.ok());
}

// ---- Devices ---------------------------------------------------------------------------------

TEST_F(TierWorkTest, TheFirstDeviceThatWasToldStands) {
  EXPECT_TRUE(absl::IsNotFound(first_.work().Device(kList).status()));
  EXPECT_EQ(*first_.work().TellDevice(kList, "one"), "one");
  EXPECT_EQ(*second_.work().TellDevice(kList, "another"), "one");
  EXPECT_EQ(*second_.work().Device(kList), "one");
  // Its own daemon may replace it, as after a new driver.
  EXPECT_EQ(*first_.work().TellDevice(kList, "newer"), "newer");
  EXPECT_EQ(*second_.work().Device(kList), "newer");
  // Who is not trusted is not heard.
  EXPECT_FALSE(stranger_.work().Device(kList).ok());
  EXPECT_EQ(*stranger_.work().TellDevice(kList, "a lie"), "a lie");
  EXPECT_FALSE(first_.work().Device(kList).ok());
  EXPECT_EQ(*first_.work().TellDevice(kList, "newer"), "newer");
}

// As docs/cluster.md has it.
TEST_F(TierWorkTest, ATenantsUserOfTheEngineMayDoAllOfIt) {
  StartServer({"--user", "kiln", "on", ">secret", "~kiln:1:test:*", "+@read", "+@write", "+@scripting",
               "+@connection", "-@dangerous"},
              {"kiln", "secret"});
  EXPECT_EQ(*first_.work().TellDevice(kList, "one"), "one");
  EXPECT_EQ(Ask(first_, 1), TierWork::Asked::kNow);
  const auto claimed = Claim(second_);
  ASSERT_TRUE(claimed.has_value());
  EXPECT_EQ(*second_.work().Renew(kList, *claimed), true);
  EXPECT_TRUE(second_.work().End(kList, *claimed, /*tried=*/true).ok());
  const auto others = first_.work().Ask({"other", kList.kind}, Subject(1), "item");
  EXPECT_TRUE(absl::IsPermissionDenied(others.status())) << others.status();
}

TEST_F(TierWorkTest, ATierThatIsAwayIsSaid) {
  redis_->Kill();
  EXPECT_FALSE(first_.work().Ask(kList, Subject(1), "item").ok());
  EXPECT_FALSE(first_.work().Claim(kList).ok());
  EXPECT_FALSE(first_.work().Device(kList).ok());
}

}  // namespace
}  // namespace kiln
