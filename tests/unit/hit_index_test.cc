// What memory tells of keys: bounded, and gone with what it tells of.
#include "server/flight/hit_index.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "compiler/support/digest.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

KnownKeyPtr KnownOf(size_t bytes) {
  auto known = std::make_shared<KnownKey>();
  known->variants.emplace_back().reply = std::make_shared<const std::string>(bytes, 'x');
  return known;
}

std::string KeyNumber(int number) { return Sha256(absl::StrCat(number)); }

TEST(HitIndex, KeepsWhatWasUsedLastWithinItsBytes) {
  constexpr uint64_t kBytes = 16 * 10'000;  // ten thousand a shard
  HitIndex index(kBytes);
  const std::string used = KeyNumber(0);
  index.Load(used, [] { return KnownOf(1000); });
  for (int i = 1; i < 2000; ++i) {
    index.Load(KeyNumber(i), [] { return KnownOf(1000); });
    EXPECT_NE(index.Find(used), nullptr) << i;
    EXPECT_LE(index.bytes(), kBytes);
  }
  EXPECT_EQ(index.Find(KeyNumber(1)), nullptr) << "others took its place";
  EXPECT_GT(index.entries(), 16u);
  const std::string large = KeyNumber(3000);
  EXPECT_NE(index.Load(large, [] { return KnownOf(10'000); }), nullptr) << "answered all the same";
  EXPECT_EQ(index.Find(large), nullptr) << "and not kept";
}

TEST(HitIndex, ForgetsByName) {
  HitIndex index(1 << 20);
  for (int i = 0; i < 10; ++i) index.Load(KeyNumber(i), [] { return KnownOf(10); });
  index.Erase(KeyNumber(3));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(index.Find(KeyNumber(i)) == nullptr, i == 3) << i;
  index.Load(KeyNumber(11), [] { return std::make_shared<const KnownKey>(); });
  EXPECT_EQ(index.Find(KeyNumber(11)), nullptr) << "nothing is known of it";
  index.Load(KeyNumber(11), [] { return std::make_shared<const KnownKey>(); }, HitIndex::Keep::kAll);
  EXPECT_NE(index.Find(KeyNumber(11)), nullptr) << "that it has nothing is worth knowing";
  index.Clear();
  EXPECT_EQ(index.entries() + index.bytes(), 0u);
}

TEST(HitIndex, WhatGoesWhileItIsReadIsNotPutBack) {
  HitIndex index(1 << 20);
  for (const bool goes : {true, false}) {
    const KnownKeyPtr read = index.Load(KeyNumber(1), [&] {
      if (goes) index.Erase(KeyNumber(1));
      return KnownOf(10);
    });
    EXPECT_NE(read, nullptr);
    EXPECT_EQ(index.Find(KeyNumber(1)) == nullptr, goes);
  }
}

// A herd: there is always somebody who reads. Who begins after the erasure keeps what it finds.
TEST(HitIndex, AnErasureIsOverForWhoBeginsAfterIt) {
  HitIndex index(1 << 20);
  index.Load(KeyNumber(1), [&] {
    index.Erase(KeyNumber(1));
    index.Load(KeyNumber(1), [] { return KnownOf(10); });
    EXPECT_NE(index.Find(KeyNumber(1)), nullptr);
    return KnownOf(20);
  });
  ASSERT_NE(index.Find(KeyNumber(1)), nullptr) << "what began before is not kept, and takes nothing away";
  EXPECT_EQ(index.Find(KeyNumber(1))->variants[0].reply->size(), 10u);
  index.Load(KeyNumber(2), [&] {
    index.Load(KeyNumber(2), [&] {
      index.Clear();
      return KnownOf(10);
    });
    return KnownOf(10);
  });
  EXPECT_EQ(index.Find(KeyNumber(2)), nullptr);
}

}  // namespace
}  // namespace kiln
