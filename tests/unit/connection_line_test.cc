#include "server/listen/connection_line.h"

#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace kiln {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Turn = ConnectionLine::Turn;
constexpr size_t kManyMax = 100'000;
constexpr int kAtOnce = static_cast<int>(ConnectionLine::kAtOnce);
constexpr int kPerSecond = static_cast<int>(ConnectionLine::kPerSecond);

// Whether the descriptor is closed.
bool IsClosed(int descriptor) {
  char byte;
  return recv(descriptor, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EBADF;
}

// A connection of kilnd, and its other side.
struct Pair {
  Pair() {
    int both[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both), 0);
    ours = both[0];
    theirs = both[1];
  }
  int ours = -1;
  int theirs = -1;
};

class ConnectionLineTest : public ::testing::Test {
 protected:
  // The descriptor is none: what is never looked at.
  static constexpr ConnectionLine::Connection kNone{1000, -1};

  int Now(ConnectionLine& line, const std::string& owner, int count) {
    int now = 0;
    for (int i = 0; i < count; ++i) now += line.Arrive(owner, kNone, now_) == Turn::kNow ? 1 : 0;
    return now;
  }

  MonotonicTime now_ = MonotonicTime() + seconds(1000);
};

TEST_F(ConnectionLineTest, ManyAtOnceAndThenSoManyASecond) {
  ConnectionLine line(kManyMax, seconds(10));
  EXPECT_EQ(Now(line, "red", 1000), kAtOnce);
  EXPECT_TRUE(line.Due(now_).empty());
  size_t due = 0;
  for (int tick = 0; tick < 30; ++tick) {
    now_ += milliseconds(100);
    due += line.Due(now_).size();
  }
  EXPECT_NEAR(static_cast<double>(due), 3 * kPerSecond, 1);
  // Who comes now waits behind those that were before.
  EXPECT_EQ(line.Arrive("red", kNone, now_), Turn::kLater);
}

TEST_F(ConnectionLineTest, NobodyWaitsForAnother) {
  ConnectionLine line(kManyMax, seconds(10));
  Now(line, "red", 1000);
  EXPECT_EQ(Now(line, "blue", 100), 100);
}

TEST_F(ConnectionLineTest, WhoPausedComesAtOnce) {
  ConnectionLine line(kManyMax, seconds(10));
  EXPECT_EQ(Now(line, "red", kAtOnce), kAtOnce);
  now_ += seconds(1);
  EXPECT_EQ(Now(line, "red", 1000), kPerSecond);
}

TEST_F(ConnectionLineTest, WhoWaitsTooLongIsClosed) {
  ConnectionLine line(kManyMax, seconds(2));
  Now(line, "red", kAtOnce);
  std::vector<Pair> pairs(3 * kPerSecond);
  for (const Pair& pair : pairs) {
    EXPECT_EQ(line.Arrive("red", {1000, pair.ours}, now_), Turn::kLater);
  }
  size_t due = 0;
  for (int tick = 0; tick < 25; ++tick) {
    now_ += milliseconds(100);
    for (const auto& connection : line.Due(now_)) {
      EXPECT_FALSE(IsClosed(connection.descriptor));
      ++due;
    }
  }
  EXPECT_NEAR(static_cast<double>(due), 2 * kPerSecond, kPerSecond / 8.);
  size_t closed = 0;
  for (const Pair& pair : pairs) closed += IsClosed(pair.ours) ? 1 : 0;
  EXPECT_EQ(closed + due, pairs.size());
  for (const Pair& pair : pairs) {
    if (!IsClosed(pair.ours)) close(pair.ours);
    close(pair.theirs);
  }
}

TEST_F(ConnectionLineTest, WhoHangsUpTakesNoTurn) {
  ConnectionLine line(kManyMax, seconds(10));
  Now(line, "red", kAtOnce);
  Pair gone;
  Pair stays;
  line.Arrive("red", {1000, gone.ours}, now_);
  line.Arrive("red", {1000, stays.ours}, now_);
  // As a client does that speaks first.
  EXPECT_EQ(write(gone.theirs, "PRI", 3), 3);
  EXPECT_EQ(write(stays.theirs, "PRI", 3), 3);
  close(gone.theirs);
  now_ += milliseconds(1000 / kPerSecond + 1);
  const std::vector<ConnectionLine::Connection> due = line.Due(now_);
  ASSERT_EQ(due.size(), 1u);
  EXPECT_EQ(due[0].descriptor, stays.ours);
  EXPECT_TRUE(IsClosed(gone.ours));
  close(stays.ours);
  close(stays.theirs);
}

TEST_F(ConnectionLineTest, TheLineIsBoundedAndHalfOfItIsOnes) {
  constexpr size_t kMax = 20;
  std::vector<Pair> pairs(2 * kMax);
  {
    ConnectionLine line(kMax, seconds(10));
    Now(line, "red", kAtOnce);
    Now(line, "blue", kAtOnce);
    Now(line, "green", kAtOnce);
    std::map<Turn, size_t> red;
    for (size_t i = 0; i < kMax; ++i) ++red[line.Arrive("red", {1000, pairs[i].ours}, now_)];
    EXPECT_EQ(red[Turn::kLater], kMax / 2);
    EXPECT_EQ(red[Turn::kNever], kMax / 2);
    EXPECT_TRUE(IsClosed(pairs[kMax - 1].ours));
    for (size_t i = kMax; i < kMax + kMax / 2; ++i) {
      EXPECT_EQ(line.Arrive("blue", {1001, pairs[i].ours}, now_), Turn::kLater);
    }
    EXPECT_EQ(line.Arrive("green", {1002, pairs.back().ours}, now_), Turn::kNever);
  }
  // Nobody waits for a line that is gone.
  EXPECT_TRUE(IsClosed(pairs[0].ours));
  EXPECT_TRUE(IsClosed(pairs[kMax].ours));
  for (const Pair& pair : pairs) {
    if (!IsClosed(pair.ours)) close(pair.ours);
    close(pair.theirs);
  }
}

// Over any time and for any pattern of arrivals, no owner is let in faster, and none that waits is lost.
TEST_F(ConnectionLineTest, AtRandomNobodyIsFasterOrLost) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    ConnectionLine line(kManyMax, seconds(1000));
    const MonotonicTime begin = now_;
    std::map<uid_t, int> arrived;
    std::map<uid_t, int> taken;
    for (int step = 0; step < 100; ++step) {
      now_ += milliseconds(random() % 200);
      const uid_t uid = random() % 3;
      const int count = static_cast<int>(random() % 60);
      for (int i = 0; i < count; ++i) {
        ++arrived[uid];
        taken[uid] += line.Arrive(std::to_string(uid), {uid, -1}, now_) == Turn::kNow ? 1 : 0;
      }
      for (const auto& connection : line.Due(now_)) ++taken[connection.uid];
      for (const auto& [who, count_taken] : taken) {
        EXPECT_LE(count_taken, kAtOnce + kPerSecond * SecondsBetween(begin, now_) + 1) << seed;
      }
    }
    now_ += seconds(100);
    for (int tick = 0; tick < 100; ++tick) {
      now_ += milliseconds(100);
      for (const auto& connection : line.Due(now_)) ++taken[connection.uid];
    }
    EXPECT_EQ(arrived, taken) << seed;
  }
}

}  // namespace
}  // namespace kiln
