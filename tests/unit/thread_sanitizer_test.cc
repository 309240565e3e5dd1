// The thread sanitizer's preset itself: a race is found, and what absl's locks order is none.
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

constexpr int kRounds = 20000;
constexpr char kReport[] = "ThreadSanitizer: data race";

// Both threads at once, so that no order comes about by chance.
template <typename Body>
void InTwoThreads(Body body) {
  std::thread other(body);
  body();
  other.join();
}

class ThreadSanitizerTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  absl::Mutex mutex_;
  absl::CondVar changed_;
  int value_ = 0;
};

TEST_F(ThreadSanitizerTest, FindsAnUnguardedField) {
  const auto count = [this] {
    for (int i = 0; i < kRounds; ++i) ++value_;
  };
  EXPECT_DEATH(InTwoThreads(count), kReport);
}

TEST_F(ThreadSanitizerTest, FindsAWriteUnderAReadersLock) {
  const auto count = [this] {
    for (int i = 0; i < kRounds; ++i) {
      absl::ReaderMutexLock lock(&mutex_);
      ++value_;
    }
  };
  EXPECT_DEATH(InTwoThreads(count), kReport);
}

TEST_F(ThreadSanitizerTest, AcceptsAGuardedField) {
  InTwoThreads([this] {
    for (int i = 0; i < kRounds; ++i) {
      absl::MutexLock lock(&mutex_);
      ++value_;
    }
  });
  EXPECT_EQ(value_, 2 * kRounds);
}

TEST_F(ThreadSanitizerTest, AcceptsConditions) {
  std::thread other([this] {
    absl::MutexLock lock(&mutex_);
    value_ = 1;
    changed_.SignalAll();
    const auto two = [this] { return value_ == 2; };
    mutex_.Await(absl::Condition(&two));
    value_ = 3;
  });
  {
    absl::MutexLock lock(&mutex_);
    while (value_ != 1) changed_.WaitWithTimeout(&mutex_, absl::Milliseconds(1));
    value_ = 2;
    const auto three = [this] { return value_ == 3; };
    EXPECT_TRUE(mutex_.AwaitWithDeadline(absl::Condition(&three), absl::InfiniteFuture()));
    const auto four = [this] { return value_ == 4; };
    EXPECT_FALSE(mutex_.AwaitWithTimeout(absl::Condition(&four), absl::Milliseconds(2)));
  }
  other.join();
}

TEST_F(ThreadSanitizerTest, AcceptsNotifications) {
  absl::Notification done;
  std::thread other([&] {
    value_ = 1;
    done.Notify();
  });
  absl::SleepFor(absl::Milliseconds(5));  // mostly, it has come already
  done.WaitForNotification();
  EXPECT_EQ(value_, 1);
  other.join();
}

}  // namespace
}  // namespace kiln
