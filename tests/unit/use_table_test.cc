// Sums by tenant and job: what they hold, what goes when there are too many, and that totals do not shrink.
#include "server/observe/use_table.h"

#include <limits>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

Use Executed(uint64_t calls) {
  Use use;
  use.executed = calls;
  return use;
}

std::string Text(const UseTable& table) {
  std::string text;
  for (const UseTable::Row& row : table.Rows()) {
    absl::StrAppend(&text, row.tenant, "/", row.several ? "*" : row.job, "=", row.use.executed, " ");
  }
  return text;
}

TEST(UseTable, AddsUpByTenantAndJob) {
  UseTable table;
  EXPECT_TRUE(table.Rows().empty());
  table.Count("red", "b", Executed(1));
  table.Count("blue", "b", Executed(10));
  table.Count("red", "a", Executed(100));
  table.Count("red", "b", {1, 2, 3, 4});
  EXPECT_EQ(Text(table), "blue/b=10 red/a=100 red/b=4 ");
  const UseTable::Row row = table.Rows()[2];
  EXPECT_EQ(row.use.hits, 1);
  EXPECT_EQ(row.use.compiles, 2);
  EXPECT_EQ(row.use.saved_ms, 4);
  EXPECT_EQ(table.ByTenant().at("red").executed, 104);
}

TEST(UseTable, OfTheTenantWithMostJobsTheLeastRecentlyUsedGoes) {
  UseTable table(/*jobs_max=*/3);
  table.Count("blue", "a", Executed(1));
  table.Count("red", "a", Executed(10));
  table.Count("red", "b", Executed(20));
  table.Count("red", "a", Executed(1));
  table.Count("red", "c", Executed(30));
  EXPECT_EQ(Text(table), "blue/a=1 red/a=11 red/c=30 red/*=20 ");
  table.Count("red", "b", Executed(2));  // begins anew
  EXPECT_EQ(Text(table), "blue/a=1 red/b=2 red/c=30 red/*=31 ");
}

TEST(UseTable, TheLeastRecentlyUsedTenantGoesWithAllThatItHas) {
  UseTable table(/*jobs_max=*/3, /*tenants_max=*/2);
  for (const char* job : {"a", "b", "c", "d"}) table.Count("red", job, Executed(1));
  table.Count("blue", "a", Executed(10));
  table.Count("green", "a", Executed(100));
  EXPECT_EQ(Text(table), "blue/a=10 green/a=100 /*=4 ");
  for (const char* job : {"b", "c"}) table.Count("green", job, Executed(1));
  EXPECT_EQ(Text(table), "blue/a=10 green/b=1 green/c=1 green/*=100 /*=4 ");
}

TEST(UseTable, TotalsStayWhateverNamesCome) {
  std::minstd_rand random(7);
  UseTable table(/*jobs_max=*/20, /*tenants_max=*/5);
  uint64_t total = 0;
  for (int i = 0; i < 5000; ++i) {
    const uint64_t calls = random() % 100;
    table.Count(absl::StrCat(random() % 9), absl::StrCat(random() % 40), Executed(calls));
    total += calls;
    ASSERT_LE(table.Rows().size(), 20 + 5 + 1);
  }
  uint64_t rows = 0, tenants = 0;
  for (const UseTable::Row& row : table.Rows()) rows += row.use.executed;
  for (const auto& [name, use] : table.ByTenant()) tenants += use.executed;
  EXPECT_EQ(rows, total);
  EXPECT_EQ(tenants, total);
}

TEST(UseTable, ASumStaysAtTheLargestNumber) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  UseTable table;
  table.Count("red", "a", Executed(kMost - 1));
  table.Count("red", "a", Executed(1));
  EXPECT_EQ(table.Rows()[0].use.executed, kMost);
  table.Count("red", "a", Executed(5));
  EXPECT_EQ(table.Rows()[0].use.executed, kMost);
}

}  // namespace
}  // namespace kiln
