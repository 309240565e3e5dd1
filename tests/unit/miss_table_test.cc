// What is remembered of compiles: how many, of whom, and whose go first.
#include "server/observe/miss_table.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/server_limits.h"

namespace kiln {
namespace {

MissTable::Miss MissOf(const std::string& tenant, const std::string& job, const std::string& key,
                       size_t section_bytes = 0) {
  MissTable::Miss miss;
  miss.tenant = tenant;
  miss.job = job;
  miss.compile_key = key;
  miss.record.mutable_sections()->set_facts(std::string(section_bytes, 'f'));
  return miss;
}

std::string Text(const MissTable& table) {
  std::string text;
  for (const MissTable::MissPtr& miss : table.Last())
    absl::StrAppend(&text, miss->tenant, "/", miss->job, "=", miss->compile_key, " ");
  return text;
}

TEST(MissTable, TheLastIsFirst) {
  MissTable table;
  EXPECT_TRUE(table.Last().empty());
  table.Add(MissOf("red", "a", "1"));
  table.Add(MissOf("blue", "b", "2"));
  table.Add(MissOf("red", "a", "3"));
  EXPECT_EQ(Text(table), "red/a=3 blue/b=2 red/a=1 ");
}

TEST(MissTable, AJobKeepsItsLast) {
  MissTable table;
  table.Add(MissOf("red", "other", "0"));
  for (size_t i = 1; i <= kMissesOfJobMax + 2; ++i) table.Add(MissOf("red", "a", absl::StrCat(i)));
  const std::vector<MissTable::MissPtr> last = table.Last();
  ASSERT_EQ(last.size(), kMissesOfJobMax + 1) << "and the other job's";
  EXPECT_EQ(last.front()->compile_key, absl::StrCat(kMissesOfJobMax + 2));
  EXPECT_EQ(last[kMissesOfJobMax - 1]->compile_key, "3");
  EXPECT_EQ(last.back()->job, "other");
}

TEST(MissTable, OfTooManyTheOldestOfTheLargestTenantGoes) {
  MissTable table(/*misses_max=*/4, /*bytes_max=*/1 << 20);
  table.Add(MissOf("small", "a", "1"));
  for (int i = 2; i <= 9; ++i) table.Add(MissOf("large", absl::StrCat("job ", i), absl::StrCat(i)));
  EXPECT_EQ(Text(table), "large/job 9=9 large/job 8=8 large/job 7=7 small/a=1 ");
}

TEST(MissTable, BytesAreBounded) {
  MissTable table(/*misses_max=*/100, /*bytes_max=*/100'000);
  table.Add(MissOf("small", "a", "1", 1'000));
  for (int i = 2; i <= 5; ++i) table.Add(MissOf("large", "b", absl::StrCat(i), 40'000));
  EXPECT_EQ(Text(table), "large/b=5 large/b=4 small/a=1 ");
  // The control: as many small ones all stay.
  MissTable other(/*misses_max=*/100, /*bytes_max=*/100'000);
  for (int i = 1; i <= 5; ++i) other.Add(MissOf("large", "b", absl::StrCat(i), 1'000));
  EXPECT_EQ(other.Last().size(), 5u);
}

TEST(MissTable, OneThatIsTooLargeIsNotKept) {
  MissTable table(/*misses_max=*/100, /*bytes_max=*/100'000);
  table.Add(MissOf("red", "a", "1", 200'000));
  EXPECT_TRUE(table.Last().empty());
  table.Add(MissOf("red", "a", "2"));
  EXPECT_EQ(Text(table), "red/a=2 ");
}

}  // namespace
}  // namespace kiln
