// Which keys jobs asked for: at the limits, and one beyond.
#include "server/observe/job_keys.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

std::string Key(int number) { return absl::StrCat("key ", number); }

TEST(JobKeys, KnowsEachKeyOnceByTenantAndJob) {
  JobKeys keys;
  for (int i = 0; i < 3; ++i) {
    keys.Add("red", "nightly", "b");
    keys.Add("red", "nightly", "a");
  }
  keys.Add("blue", "nightly", "c");
  keys.Add("red", "other", "d");
  const std::vector<JobKeys::Row> rows = keys.Find("nightly");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].tenant, "blue");
  EXPECT_EQ(rows[0].keys, std::vector<std::string>{"c"});
  EXPECT_EQ(rows[1].keys, (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(rows[1].more);
  EXPECT_TRUE(keys.Find("unknown").empty());
}

TEST(JobKeys, SaysThatAJobHadMore) {
  JobKeys keys({.job_keys = 3});
  for (int i = 0; i < 3; ++i) keys.Add("red", "nightly", Key(i));
  EXPECT_FALSE(keys.Find("nightly")[0].more);
  keys.Add("red", "nightly", Key(0));
  EXPECT_FALSE(keys.Find("nightly")[0].more) << "that is known";
  keys.Add("red", "nightly", Key(3));
  EXPECT_EQ(keys.Find("nightly")[0].keys.size(), 3u);
  EXPECT_TRUE(keys.Find("nightly")[0].more);
}

// Of too many the tenant with most keys loses its oldest job, and what comes back says that it is not all.
TEST(JobKeys, ForgetsTheOldestJobOfTheLargestTenant) {
  for (const bool of_jobs : {true, false}) {
    JobKeys keys(of_jobs ? JobKeys::Limits{.jobs = 3} : JobKeys::Limits{.keys = 5});
    keys.Add("small", "job", Key(0));
    for (int i = 0; i < 2; ++i) keys.Add("large", "old", Key(i));
    for (int i = 0; i < 2; ++i) keys.Add("large", "new", Key(i));
    EXPECT_EQ(keys.Find("old").size(), 1u);
    keys.Add("large", "newest", Key(9));
    EXPECT_TRUE(keys.Find("old").empty());
    EXPECT_EQ(keys.Find("job").size(), 1u);
    EXPECT_EQ(keys.Find("new").size(), 1u);
    EXPECT_FALSE(keys.Find("newest")[0].more) << "it was never here before";
    keys.Add("large", "old", Key(1));
    EXPECT_TRUE(keys.Find("old")[0].more);
  }
}

TEST(JobKeys, OfMoreForgottenThanItRemembersEveryNewJobMayHaveHadMore) {
  JobKeys keys({.jobs = 1, .forgotten = 2});
  for (int i = 0; i < 3; ++i) keys.Add("red", absl::StrCat("job ", i), Key(i));
  EXPECT_FALSE(keys.Find("job 2")[0].more);
  keys.Add("red", "job 3", Key(3));
  keys.Add("red", "never before", Key(4));
  EXPECT_TRUE(keys.Find("never before")[0].more);
}

}  // namespace
}  // namespace kiln
