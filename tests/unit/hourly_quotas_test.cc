// What tenants took in the last hour, and what they may.
#include "server/schedule/hourly_quotas.h"

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "compiler/support/monotonic_time.h"
#include "gtest/gtest.h"
#include "server/server_limits.h"

namespace kiln {
namespace {

TEST(HourlyQuotas, WhatWasTakenCountsForAnHour) {
  HourlyQuotas quotas({{"bounded", 10}});
  const MonotonicTime begin(std::chrono::hours(5));
  const auto left_after = [&](int minutes) {
    return quotas.SecondsUntilLeft("bounded", begin + std::chrono::minutes(minutes));
  };
  quotas.Spend("bounded", 6, begin);
  EXPECT_EQ(left_after(0), std::nullopt);
  quotas.Spend("bounded", 5, begin + std::chrono::minutes(10));
  quotas.Spend("free", 1000, begin);
  EXPECT_EQ(quotas.SecondsUntilLeft("free", begin), std::nullopt);
  EXPECT_EQ(left_after(10), 51 * 60) << "what was taken first goes first";
  EXPECT_EQ(left_after(60), 60);
  EXPECT_EQ(left_after(61), std::nullopt);
  // One that was as large as the whole.
  quotas.Spend("bounded", 10, begin + std::chrono::minutes(65));
  EXPECT_EQ(left_after(66), 60 * 60);
  EXPECT_EQ(left_after(126), std::nullopt);
}

TEST(HourlyQuotas, TellsWhatEverybodyTook) {
  HourlyQuotas quotas({{"bounded", 10}});
  const MonotonicTime begin(std::chrono::hours(5));
  EXPECT_TRUE(quotas.Taken(begin).empty());
  quotas.Spend("bounded", 6, begin);
  quotas.Spend("free", 1000, begin);
  quotas.Spend("free", 1, begin + std::chrono::minutes(30));
  using Taken = std::map<std::string, double>;
  EXPECT_EQ(quotas.Taken(begin + std::chrono::minutes(30)), (Taken{{"bounded", 6}, {"free", 1001}}));
  EXPECT_EQ(quotas.Taken(begin + std::chrono::minutes(62)), (Taken{{"free", 1}}));
}

TEST(HourlyQuotas, RemembersOnlySoManyWithoutAQuota) {
  HourlyQuotas quotas({{"bounded", 10}});
  const MonotonicTime begin(std::chrono::hours(5));
  quotas.Spend("bounded", 0.5, begin);
  for (size_t i = 0; i < kQuotaOthersMax; ++i) quotas.Spend(absl::StrCat("name ", i), 10.0 + i, begin);
  EXPECT_EQ(quotas.Taken(begin).size(), kQuotaOthersMax + 1);
  quotas.Spend("one more", 1, begin);
  const std::map<std::string, double> taken = quotas.Taken(begin);
  EXPECT_EQ(taken.size(), kQuotaOthersMax + 1);
  EXPECT_TRUE(taken.contains("one more") && taken.contains("bounded") && !taken.contains("name 0"));
}

}  // namespace
}  // namespace kiln
