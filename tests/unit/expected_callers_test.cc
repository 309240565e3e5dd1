#include "server/schedule/expected_callers.h"

#include <string>

#include "gtest/gtest.h"
#include "server/server_limits.h"

namespace kiln {
namespace {

const MonotonicTime kNow{std::chrono::hours(1)};

TEST(ExpectedCallers, AreCountedByTenantUntilTheyAreDue) {
  ExpectedCallers expected;
  expected.Expect("red", 2.5, kNow);
  expected.Expect("red", 10, kNow);
  EXPECT_EQ(expected.Of("red", kNow), 2u);
  EXPECT_EQ(expected.Of("blue", kNow), 0u);
  EXPECT_EQ(expected.Of("red", kNow + std::chrono::seconds(3)), 1u);
  EXPECT_EQ(expected.Of("red", kNow + std::chrono::seconds(10)), 0u);
  EXPECT_EQ(expected.tenants(), 0u);
}

TEST(ExpectedCallers, AreOfSoManyTenantsUntilSomeAreDue) {
  ExpectedCallers expected;
  for (size_t i = 0; i <= kExpectedTenantsMax; ++i) expected.Expect(std::to_string(i), 5, kNow);
  EXPECT_EQ(expected.tenants(), kExpectedTenantsMax);
  EXPECT_EQ(expected.Of(std::to_string(kExpectedTenantsMax), kNow), 0u);
  const MonotonicTime later = kNow + std::chrono::seconds(5);
  expected.Expect("one more", 5, later);
  EXPECT_EQ(expected.tenants(), 1u);
  EXPECT_EQ(expected.Of("one more", later), 1u);
}

}  // namespace
}  // namespace kiln
