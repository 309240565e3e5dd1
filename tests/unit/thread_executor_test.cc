// Threads that run what is posted.
#include "server/schedule/thread_executor.h"

#include <atomic>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

TEST(ThreadExecutor, RunsAllThatWasPostedOnItsThreads) {
  std::atomic<int> ran{0};
  absl::Notification first, second;
  {
    auto executor = ThreadExecutor::Create(2);
    ASSERT_TRUE(executor.ok()) << executor.status();
    // Two that wait for each other need two threads.
    (*executor)->Post([&] {
      first.Notify();
      second.WaitForNotification();
    });
    (*executor)->Post([&] {
      first.WaitForNotification();
      second.Notify();
    });
    for (int i = 0; i < 50; ++i) (*executor)->Post([&] { ++ran; });
  }
  EXPECT_EQ(ran, 50);
}

}  // namespace
}  // namespace kiln
