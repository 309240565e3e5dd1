// What a daemon asks the tier about a claim, and until when it waits for an answer.
#include "cache/shared/claim_table.h"

#include <chrono>
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

}  // namespace
}  // namespace kiln
