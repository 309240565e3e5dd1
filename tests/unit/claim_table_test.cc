// What a daemon asks the tier about a claim, and until when it waits for an answer.
#include "cache/shared/claim_table.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

using Answer = ClaimTable::Answer;
using std::chrono::milliseconds;

constexpr uint64_t kFlight = 7;

class ClaimTableTest : public testing::Test {
 protected:
  ClaimTableTest() : table_([this] { return absl::StrCat("token ", ++tokens_); }) {
    table_.Claim(
        kFlight, "key", now_ + milliseconds(50), [this](Answer answer) { answers_.push_back(answer); }, now_);
  }
  // The one question that is due.
  ClaimTable::Question Due() {
    const std::vector<ClaimTable::Question> due = table_.Due(now_);
    EXPECT_EQ(due.size(), 1);
    return due.empty() ? ClaimTable::Question() : due[0];
  }
  using Answers = std::vector<Answer>;

  MonotonicTime now_ = MonotonicTime(std::chrono::hours(1));
  int tokens_ = 0;
  Answers answers_;
  ClaimTable table_;
};

TEST_F(ClaimTableTest, WhoIsNotAskedForInTimeGoesOn) {
  now_ += milliseconds(50);
  EXPECT_TRUE(table_.Due(now_).empty());
  EXPECT_EQ(answers_, Answers{Answer::kNobodys});
  EXPECT_TRUE(table_.empty());
}

TEST_F(ClaimTableTest, TheDeadlineIsTheFirstAnswersAlone) {
  const ClaimTable::Question first = Due();
  EXPECT_EQ(first.deadline, now_ + milliseconds(50));
  table_.Told(first, /*yes=*/false, now_);
  now_ += std::chrono::seconds(30);
  const ClaimTable::Question again = Due();
  EXPECT_EQ(again.deadline, MonotonicTime::max());
  EXPECT_EQ(answers_, Answers{}) << "another's, and waited for";
  table_.Told(again, /*yes=*/true, now_);
  EXPECT_EQ(answers_, Answers{Answer::kOurs});
}

// ---- Answers that are lost -------------------------------------------------------------------

using Kind = ClaimTable::Question::Kind;

TEST_F(ClaimTableTest, WhoIsNotToldGoesOnAndFindsOutWhetherItIsOurs) {
  const ClaimTable::Question lost = Due();
  table_.Told(lost, std::nullopt, now_);
  EXPECT_EQ(answers_, Answers{Answer::kNobodys});
  EXPECT_FALSE(table_.Ours(kFlight).has_value());
  now_ = table_.Next();
  EXPECT_LT(now_, MonotonicTime(std::chrono::hours(1)) + absl::ToChronoNanoseconds(kClaimLife));
  const ClaimTable::Question doubt = Due();
  EXPECT_EQ(doubt.kind, Kind::kRenew) << "which its own token may";
  EXPECT_EQ(doubt.token, lost.token);
  table_.Told(doubt, /*yes=*/true, now_);
  EXPECT_EQ(table_.Ours(kFlight), "key");
  table_.Release(kFlight, now_);
  table_.Told(Due(), /*yes=*/true, now_);
  EXPECT_TRUE(table_.empty());
  EXPECT_EQ(answers_, Answers{Answer::kNobodys}) << "one answer";
}

TEST_F(ClaimTableTest, WhoseAnswerWasNotWaitedForIsAskedAgain) {
  const ClaimTable::Question cut = Due();
  now_ += milliseconds(10);
  table_.Cut(cut, now_);
  EXPECT_EQ(answers_, Answers{});
  const ClaimTable::Question again = Due();
  EXPECT_EQ(again.kind, Kind::kRenew) << "it may be ours by now";
  EXPECT_EQ(again.token, cut.token);
  EXPECT_EQ(again.deadline, cut.deadline);
  table_.Told(again, /*yes=*/true, now_);
  EXPECT_EQ(answers_, Answers{Answer::kOurs});
  // Released meanwhile, it is told so.
  table_.Release(kFlight, now_);
  table_.Cut(Due(), now_);
  const ClaimTable::Question back = Due();
  EXPECT_EQ(back.kind, Kind::kRelease);
  table_.Told(back, /*yes=*/true, now_);
  EXPECT_TRUE(table_.empty());
}

TEST_F(ClaimTableTest, WhoIsAskedForAgainHasItsTimeAndNoMore) {
  table_.Cut(Due(), now_);
  now_ += milliseconds(50);
  EXPECT_EQ(Due().kind, Kind::kRenew) << "whether it is ours is still to be found out";
  EXPECT_EQ(answers_, Answers{Answer::kNobodys});
}

TEST_F(ClaimTableTest, WhatMayBeOursIsGivenBack) {
  const ClaimTable::Question lost = Due();
  table_.Told(lost, std::nullopt, now_);
  table_.Release(kFlight, now_);
  const ClaimTable::Question back = Due();
  EXPECT_EQ(back.kind, Kind::kRelease);
  EXPECT_EQ(back.token, lost.token);
  table_.Told(back, /*yes=*/false, now_);  // it never was
  EXPECT_TRUE(table_.empty());
}

// The control: another's is nothing to find out about.
TEST_F(ClaimTableTest, WhatTurnsOutToBeAnothersIsForgotten) {
  table_.Told(Due(), std::nullopt, now_);
  now_ = table_.Next();
  table_.Told(Due(), /*yes=*/false, now_);
  EXPECT_TRUE(table_.empty());
}

TEST_F(ClaimTableTest, WhoClaimsAgainRecognisesItsOwn) {
  const ClaimTable::Question lost = Due();
  table_.Told(lost, std::nullopt, now_);
  const auto claim = [&] {
    table_.Claim(
        kFlight, "key", now_ + milliseconds(50), [this](Answer answer) { answers_.push_back(answer); }, now_);
  };
  claim();
  const ClaimTable::Question again = Due();
  EXPECT_EQ(again.kind, Kind::kRenew);
  EXPECT_EQ(again.token, lost.token);
  table_.Told(again, std::nullopt, now_);
  claim();
  table_.Told(Due(), /*yes=*/true, now_);
  EXPECT_EQ(answers_, (Answers{Answer::kNobodys, Answer::kNobodys, Answer::kOurs}));
}

TEST_F(ClaimTableTest, WhoClaimsAgainWaitsForAnother) {
  table_.Told(Due(), std::nullopt, now_);
  table_.Claim(
      kFlight, "key", now_ + milliseconds(50), [this](Answer answer) { answers_.push_back(answer); }, now_);
  table_.Told(Due(), /*yes=*/false, now_);
  EXPECT_EQ(answers_, Answers{Answer::kNobodys});
  now_ = table_.Next();
  const ClaimTable::Question next = Due();
  EXPECT_EQ(next.kind, Kind::kAcquire);
  table_.Told(next, /*yes=*/true, now_);
  EXPECT_EQ(answers_, (Answers{Answer::kNobodys, Answer::kOurs}));
}

// What may not have come there is said again, until the claim has ended by itself.
TEST_F(ClaimTableTest, WhatIsGivenBackAndNotToldIsGivenBackAgain) {
  table_.Told(Due(), /*yes=*/true, now_);
  table_.Release(kFlight, now_);
  const MonotonicTime end = now_ + absl::ToChronoNanoseconds(kClaimLife);
  int times = 0;
  for (; !table_.empty() && times < 1000; ++times) {
    const ClaimTable::Question back = Due();
    EXPECT_EQ(back.kind, Kind::kRelease);
    table_.Told(back, std::nullopt, now_);
    if (!table_.empty()) now_ = table_.Next();
  }
  EXPECT_GE(now_, end);
  EXPECT_LT(now_, end + absl::ToChronoNanoseconds(kClaimPauseMax));
  EXPECT_GT(times, 10);
  EXPECT_LT(times, 100);
}

}  // namespace
}  // namespace kiln
