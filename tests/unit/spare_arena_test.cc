#include "client/runtime/spare_arena.h"

#include "gtest/gtest.h"
#include "tests/unit/plain_host.h"

namespace kiln::runtime {
namespace {

Tensor NewArena(PlainHost& host) {
  const int64_t size = 64, stride = 1;
  return *host.Empty(v1::U8, {&size, 1}, {&stride, 1});
}

TEST(SpareArenaTest, GivesBackWhatItKeptOnceAndOnlyForItsSize) {
  PlainHost host;
  SpareArena spare;
  EXPECT_EQ(spare.Take(64), nullptr);
  Tensor arena = NewArena(host);
  spare.Give(host, arena, 64);
  EXPECT_EQ(host.live(), 1);
  EXPECT_EQ(spare.Take(64), arena);
  EXPECT_EQ(spare.Take(64), nullptr);
  spare.Give(host, arena, 64);
  EXPECT_EQ(spare.Take(128), nullptr);
  EXPECT_EQ(host.live(), 0);
}

TEST(SpareArenaTest, KeepsOneAndReleasesItAtItsEnd) {
  PlainHost host;
  {
    SpareArena spare;
    spare.Give(host, NewArena(host), 64);
    spare.Give(host, NewArena(host), 64);
    EXPECT_EQ(host.live(), 1);
  }
  EXPECT_EQ(host.live(), 0);
}

TEST(SpareArenaTest, AllOfTheProcessKeepNoMoreThanTheLimit) {
  PlainHost host;
  SpareArena first, second;
  first.Give(host, NewArena(host), kSpareBytesMax + 1);
  EXPECT_EQ(host.live(), 0);
  first.Give(host, NewArena(host), kSpareBytesMax);
  second.Give(host, NewArena(host), 64);
  EXPECT_EQ(host.live(), 1);
  host.Release(first.Take(kSpareBytesMax));
  second.Give(host, NewArena(host), 64);
  EXPECT_EQ(host.live(), 1);  // there is room again
}

}  // namespace
}  // namespace kiln::runtime
