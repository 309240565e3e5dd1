// A strand runs what is posted in order, and ticks.
#include "server/schedule/strand.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/schedule/clock.h"

namespace kiln {
namespace {

TEST(Strand, RunsInOrderOneAtATimeAndTicksWhenItIsTime) {
  SystemClock clock;
  std::vector<int> order;
  std::optional<MonotonicTime> next;
  absl::Notification ticked;
  auto strand = Strand::Create(
      &clock, [&] { return next; },
      [&] {
        next.reset();
        ticked.Notify();
      });
  ASSERT_TRUE(strand.ok()) << strand.status();
  for (int i = 0; i < 100; ++i) (*strand)->Post([&order, i] { order.push_back(i); });
  std::vector<int> seen;
  (*strand)->Run([&] { seen = order; });
  ASSERT_EQ(seen.size(), 100u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_FALSE(ticked.HasBeenNotified()) << "no time was set";
  const MonotonicTime due = clock.Now() + std::chrono::milliseconds(20);
  (*strand)->Post([&] { next = due; });
  ticked.WaitForNotification();
  EXPECT_GE(clock.Now(), due);
}

}  // namespace
}  // namespace kiln
