// The tier of tests/sim does with gangs' verdicts what a redis-server does with the commands that daemons
// send it: the same operations, drawn by seed, have the same answers and ends.
#include "tests/sim/sim_tier.h"

#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache/shared/shared_tier.h"
#include "cache/shared/tier_value.h"
#include "compiler/support/digest.h"
#include "gtest/gtest.h"
#include "tests/fault/redis_server.h"
#include "tests/fault/tier_artifacts.h"

namespace kiln::sim {
namespace {

constexpr int kSteps = 400;
constexpr absl::Duration kNear = absl::Seconds(20);  // of ends, on a loaded machine

class SimTierTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::IsThere())
      GTEST_SKIP() << "no redis-server on this host (apt-get install redis-server)";
    redis_ = std::make_unique<RedisServer>();
    SharedTier::Options options;
    options.addresses = {redis_->address()};
    options.lookup_limit = absl::Seconds(20);
    tier_ = *SharedTier::Create(std::move(options), &TestSignatures());
    while (!tier_->verdicts()->Read(NameOf(0)).ok()) absl::SleepFor(absl::Milliseconds(10));
  }

  static TierVerdicts::Name NameOf(int number) {
    return {kTierTestNamespace, std::string(16, static_cast<char>('a' + number)), KeyOf(number)};
  }
  static v1::GangVerdict VerdictOf(int number) {
    v1::GangVerdict verdict;
    verdict.add_variants()->set_variant_id(absl::StrCat(number));
    return verdict;
  }
  // The variant that stands in a sealed value; empty: nothing does.
  std::string There(const absl::StatusOr<TierVerdicts::Value>& value) {
    EXPECT_TRUE(value.ok()) << value.status();
    if (value->sealed.empty()) return "";
    sealed_[value->verdict.variants(0).variant_id()] = value->sealed;
    return value->verdict.variants(0).variant_id();
  }
  void ExpectSameEnd(int name) {
    const std::string key = TierName(kTierTestNamespace, KeyOf(name), "g", ToHex(NameOf(name).gang));
    const std::string answer = redis_->Ask({"PTTL", key});
    const int64_t left = std::atoll(answer.c_str());
    const MonotonicTime end = model_.EndOfVerdict(absl::StrCat(name));
    if (end == MonotonicTime::min()) {
      EXPECT_LT(left, 0) << answer;
      return;
    }
    EXPECT_LT(absl::AbsDuration(absl::Milliseconds(left) - absl::FromChrono(end - clock_.now)), kNear)
        << answer;
  }

  SimClock clock_;
  SimTier model_{&clock_};
  std::unique_ptr<RedisServer> redis_;
  std::unique_ptr<SharedTier> tier_;
  std::map<std::string, std::string> sealed_;  // by variant
};

TEST_F(SimTierTest, AnswersAsAServerDoes) {
  std::mt19937 draw(1);
  for (int step = 0; step < kSteps; ++step) {
    const int name = static_cast<int>(draw() % 3);
    const std::string in_model = absl::StrCat(name);
    const absl::Duration life = absl::Minutes(1 + draw() % 60);
    switch (draw() % 6) {
      case 0: EXPECT_EQ(There(tier_->verdicts()->Read(NameOf(name))), model_.Read(in_model)) << step; break;
      case 1:
        if (draw() % 4 != 0) break;
        redis_->Ask({"FLUSHALL"});
        model_.Become({});
        break;
      case 2:
      case 3: {
        const std::vector<absl::StatusOr<std::string>> marks =
            tier_->verdicts()->Renew({{TierVerdicts::Life{NameOf(name), life}}});
        ASSERT_TRUE(marks[0].ok()) << marks[0].status();
        EXPECT_EQ(marks[0]->empty(), model_.Lengthen(in_model, life).empty()) << step;
        break;
      }
      default: {
        // By who has read what stands there, mostly.
        const std::string seen = draw() % 3 == 0 ? "" : model_.Read(in_model);
        const std::string wanted = absl::StrCat(step);
        EXPECT_EQ(There(tier_->verdicts()->Replace(NameOf(name), seen.empty() ? "" : sealed_.at(seen),
                                                   VerdictOf(step), life)),
                  model_.Replace(in_model, seen, wanted, life))
            << step;
      }
    }
    ExpectSameEnd(name);
  }
}

}  // namespace
}  // namespace kiln::sim
