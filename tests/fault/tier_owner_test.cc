// Who has claimed a program dies, at one named point after another: those who wait for it take over, nobody
// fails, and nobody compiles what the tier has.
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "cache/shared/tier_claims.h"
#include "gtest/gtest.h"
#include "tests/fault/tier_daemons.h"
#include "tests/fault/tier_proxy.h"

namespace kiln {
namespace {

constexpr char kSet[] = "\r\n$3\r\nSET\r\n";  // the claim's is an owner's first, then come the objects'
constexpr char kGivesBack[] = "return redis.call('DEL'";  // of the claim's script
constexpr char kPlans[] = "\nsleep_ms 1000\nkernels 4";
constexpr char kPlansLong[] = "\nsleep_ms 3500\nkernels 4";  // longer than until a claim is renewed

struct Death {
  const char* name;
  const char* work;  // of the script
  // At this command of the owner; where it has no text, so long after its compile has begun.
  TierProxy::Point at;
  absl::Duration after = absl::ZeroDuration();
  bool is_made = false;  // the tier has all that the others need
};

const std::vector<Death>& Deaths() {
  static const std::vector<Death>& deaths = *new std::vector<Death>{
      {"claims", kPlans, {"}:c\r\n"}},
      {"has the claim and does not know", kPlans, {"}:c\r\n", 1, true}},
      {"looks again with the claim", kPlans, {"HGETALL", 2}},
      {"plans", kPlans, {}, absl::Milliseconds(300)},
      {"emits", "\nkernels 30\nemit slow", {}, absl::Milliseconds(1000)},
      {"puts the claim's end off", kPlansLong, {"}:c\r\n", 2}},
      {"has put the claim's end off", kPlansLong, {"}:c\r\n", 2, true}},
      {"asks what the tier lacks", kPlans, {"}:o:"}},
      {"has written no object", kPlans, {kSet, 2}},
      {"has written half of the objects", kPlans, {kSet, 4}},
      {"has written the objects and no record", kPlans, {"}:r\r\n", 5}},
      {"has written the record and no manifest", kPlans, {"'HSET'"}},
      {"has written the manifest and does not know", kPlans, {"'HSET'", 1, true}, {}, true},
      {"gives the claim back", kPlans, {kGivesBack}, {}, true},
      {"has given the claim back", kPlans, {kGivesBack, 1, true}, {}, true},
  };
  return deaths;
}

class TierOwners : public TierDaemons {
 protected:
  // All daemons have one key, so that each trusts all.
  std::string ConfigBy(const TierProxy& proxy) {
    return absl::StrReplaceAll(Config("one", {}), {{redis_->address(), proxy.address()}});
  }
};

// An owner, and a daemon's caller that waits for it.
struct Trial {
  const Death& death;
  std::string script;
  std::unique_ptr<TierProxy> proxy;
  std::unique_ptr<TestDaemon> owner;
  absl::Notification died;
  std::vector<std::thread> threads;
  CompileResult waited;

  void Kill() {
    owner->Stop(SIGKILL);
    died.Notify();
  }
  bool IsCompiling() const {  // or dying, when it does not answer
    grpc::ClientContext context;
    v1::StatsReply stats;
    return owner->admin().Stats(&context, {}, &stats).ok() && stats.compiles() == 1;
  }

  void Start(TestDaemon& waiting) {
    if (!death.at.text.empty()) proxy->Arm(death.at, [this] { Kill(); });
    threads.emplace_back([this] { owner->Compile(script); });
    threads.emplace_back([this, &waiting] {
      // Not before the owner has the claim, or has died over it.
      EXPECT_TRUE(Eventually([this] { return died.HasBeenNotified() || IsCompiling(); })) << death.name;
      std::thread killer;
      if (death.at.text.empty()) {
        killer = std::thread([this] {
          absl::SleepFor(death.after);
          Kill();
        });
      }
      waited = waiting.Compile(script);
      if (killer.joinable()) killer.join();
    });
  }
};

TEST_F(TierOwners, TheNextTakesOverWhereverTheOwnerDies) {
  TestDaemon waiting(Config("one", {}));
  TestDaemon late(Config("one", {}));
  std::vector<std::unique_ptr<Trial>> trials;
  for (const Death& death : Deaths()) {
    auto trial = std::unique_ptr<Trial>(new Trial{death, absl::StrCat("name ", death.name, death.work)});
    trial->proxy = std::make_unique<TierProxy>(redis_->socket());
    trial->owner = std::make_unique<TestDaemon>(ConfigBy(*trial->proxy));
    trials.push_back(std::move(trial));
  }
  uint64_t needed = 0;
  for (const std::unique_ptr<Trial>& trial : trials) {
    trial->Start(waiting);
    needed += trial->death.is_made ? 0 : 1;
  }
  for (const std::unique_ptr<Trial>& trial : trials) {
    for (std::thread& thread : trial->threads) thread.join();
    EXPECT_TRUE(trial->died.HasBeenNotified()) << trial->death.name << ": it did not come to this point";
    EXPECT_TRUE(trial->waited.done) << trial->death.name << ": " << trial->waited.failed_reason
                                    << trial->waited.status.error_message();
  }
  EXPECT_EQ(waiting.Stats().compiles(), needed);
  for (const std::unique_ptr<Trial>& trial : trials) {
    const CompileResult result = late.Compile(trial->script);
    EXPECT_TRUE(result.done) << trial->death.name;
    EXPECT_EQ(result.manifest_bytes, trial->waited.manifest_bytes) << trial->death.name;
  }
  EXPECT_EQ(late.Stats().compiles(), 0);
}

// The control: it is the claim's end that lets them.
TEST_F(TierOwners, WithAClaimThatDoesNotEndTheyWait) {
  const std::string script = absl::StrCat("name endless", kPlans);
  TestDaemon owner(Config("one", {}));
  TestDaemon waiting(Config("one", {}));
  std::thread owning([&] { owner.Compile(script); });
  EXPECT_TRUE(Eventually([&] { return owner.Stats().compiles() == 1; }));
  owner.Stop(SIGKILL);
  owning.join();
  const std::vector<std::string> claims = redis_->Keys("*:c");
  ASSERT_EQ(claims.size(), 1);
  EXPECT_EQ(redis_->Ask({"PERSIST", claims[0]}), "1");
  EXPECT_FALSE(waiting.Compile(script, {}, kClaimLife + absl::Seconds(3)).done);
  EXPECT_EQ(waiting.Stats().compiles(), 0);
  redis_->Ask({"DEL", claims[0]});
  EXPECT_TRUE(waiting.Compile(script).done);
}

// Who is not told that it has the claim. By itself the claim would not end here, as long as the test runs.
TEST_F(TierOwners, WhoIsNotToldThatItHasTheClaimKeepsNobodyWaiting) {
  const std::string script = absl::StrCat("name untold", kPlans);
  TierProxy proxy(redis_->socket());
  TestDaemon owner(ConfigBy(proxy));
  TestDaemon waiting(Config("one", {}));
  std::vector<std::string> claims;
  absl::Notification lost;
  proxy.Arm({"}:c\r\n", 1, /*done=*/true}, [&] {
    claims = redis_->Keys("*:c");
    for (const std::string& claim : claims) EXPECT_EQ(redis_->Ask({"PERSIST", claim}), "1");
    lost.Notify();
  });
  std::thread owning([&] { EXPECT_TRUE(owner.Compile(script).done); });
  EXPECT_TRUE(lost.WaitForNotificationWithTimeout(absl::Seconds(60)));
  EXPECT_EQ(claims.size(), 1);
  EXPECT_TRUE(waiting.Compile(script).done);
  owning.join();
  EXPECT_EQ(owner.Stats().compiles(), 1);
  EXPECT_EQ(waiting.Stats().compiles(), 0);
  EXPECT_TRUE(Eventually([&] { return redis_->Keys("*:c").empty(); }));
}

}  // namespace
}  // namespace kiln
