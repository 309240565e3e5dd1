// Which verdicts a daemon reads again in the tier, and what it puts back.
#include "server/flight/gang_keeper.h"

#include <string>

#include "gtest/gtest.h"
#include "server/flight/gang_put_back.h"
#include "server/server_limits.h"

namespace kiln {
namespace {

class HandClock final : public Clock {
 public:
  MonotonicTime Now() const override { return MonotonicTime(); }
  absl::Time WallNow() const override { return absl::UnixEpoch(); }
};

v1::GangVerdict ListOf(std::initializer_list<const char*> ids) {
  v1::GangVerdict verdict;
  for (const char* id : ids) verdict.add_variants()->set_variant_id(id);
  return verdict;
}

class GangKeeperTest : public testing::Test {
 protected:
  // One that is read is seen.
  bool Reads(const std::string& mark, const v1::GangVerdict& written = {}) {
    const std::optional<GangKeeper::News> news = keeper_.Look(name_, mark);
    if (news.has_value()) keeper_.Seen(*news, written);
    return news.has_value();
  }
  HandClock clock_;
  GangTable table_{&clock_};
  GangKeeper keeper_{&table_};
  const GangName name_{"train", std::string(16, 'g'), std::string(32, 'k')};
};

TEST_F(GangKeeperTest, WhatStandsThereAsItWasSeenIsNotReadAgain) {
  ASSERT_TRUE(table_.Adopt(name_, ListOf({"a"})).ok());
  EXPECT_TRUE(Reads("one"));
  EXPECT_FALSE(Reads("one"));
  EXPECT_TRUE(Reads("two"));
  EXPECT_TRUE(Reads(""));
  EXPECT_TRUE(Reads(""));  // until something does
}

// The tier falls back to what was seen before more was added here.
TEST_F(GangKeeperTest, WhatIsHeldMeanwhileIsMissedThere) {
  ASSERT_TRUE(table_.Adopt(name_, ListOf({"a"})).ok());
  EXPECT_TRUE(Reads("one"));
  ASSERT_TRUE(table_.Adopt(name_, ListOf({"a", "b"})).ok());
  EXPECT_TRUE(Reads("one"));
  EXPECT_FALSE(Reads("one"));
}

// The tier falls back to what was seen before that was put back.
TEST_F(GangKeeperTest, WhatIsPutBackIsMissedAgain) {
  ASSERT_TRUE(table_.Adopt(name_, ListOf({"a", "b"})).ok());
  EXPECT_TRUE(Reads("one", ListOf({"a", "b"})));
  EXPECT_TRUE(Reads("one", ListOf({"a", "b"})));
  EXPECT_TRUE(Reads("two"));
  EXPECT_FALSE(Reads("two"));
}

// As long as this daemon's own, and another: it is met.
TEST_F(GangKeeperTest, AnotherListOfTheSameLengthIsMet) {
  ASSERT_TRUE(table_.Adopt(name_, ListOf({"a"})).ok());
  EXPECT_TRUE(Reads("one"));
  EXPECT_TRUE(Reads("two"));
  GangPutBack put_back(&table_, name_);
  ASSERT_TRUE(put_back.Next().has_value());
  put_back.Told("two", ListOf({"b"}));
  EXPECT_FALSE(put_back.Next().has_value());
  EXPECT_TRUE(absl::IsAborted(put_back.status())) << put_back.status();
  EXPECT_TRUE(IsEmpty(put_back.written()));
  EXPECT_TRUE(keeper_.Due().empty());
}

TEST_F(GangKeeperTest, WhatTheTierHasLostIsPutBack) {
  ASSERT_TRUE(table_.Adopt(name_, ListOf({"a", "b"})).ok());
  GangPutBack put_back(&table_, name_);
  EXPECT_FALSE(put_back.Next()->wanted.has_value());
  put_back.Told("seen", ListOf({"a"}));
  const std::optional<GangDecision::Question> question = put_back.Next();
  ASSERT_TRUE(question.has_value());
  EXPECT_EQ(question->seen, "seen");
  EXPECT_EQ(question->wanted->variants_size(), 2);
  put_back.Told("whole", ListOf({"a", "b"}));
  EXPECT_FALSE(put_back.Next().has_value());
  EXPECT_TRUE(put_back.status().ok());
}

// Another daemon was first, and holds less.
TEST_F(GangKeeperTest, WhatAnotherPutsBackMeanwhileIsCompleted) {
  ASSERT_TRUE(table_.Adopt(name_, ListOf({"a", "b"})).ok());
  GangPutBack put_back(&table_, name_);
  ASSERT_TRUE(put_back.Next().has_value());
  put_back.Told("", v1::GangVerdict());
  for (int writes = 0; writes < kPutBackWritesMax; ++writes) {
    const std::optional<GangDecision::Question> question = put_back.Next();
    ASSERT_TRUE(question.has_value()) << writes;
    EXPECT_EQ(question->seen, writes == 0 ? "" : "less");
    EXPECT_EQ(question->wanted->variants_size(), 2);
    put_back.Told("less", ListOf({"a"}));
  }
  EXPECT_FALSE(put_back.Next().has_value());  // until the next time
  EXPECT_TRUE(put_back.status().ok());
}

}  // namespace
}  // namespace kiln
