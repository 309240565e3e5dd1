// Who counts on an entry keeps it from a sweep.

#include "cache/holds.h"

#include "gtest/gtest.h"

namespace kiln {
namespace {

const EntryId kShared = {EntryKind::kObject, "shared"}, kOwn = {EntryKind::kObject, "own"};

TEST(HoldsTest, WhoCountsOnAnEntryKeepsIt) {
  int64_t now = 1'000;
  Holds holds(/*grace_seconds=*/60, [&now] { return now; });
  const auto claimed = [&](Holds::Standing standing = Holds::Standing::kNamed) {
    const bool taken = holds.Claim(kOwn, standing);
    if (taken) holds.Release({kOwn});
    return taken;
  };
  EXPECT_TRUE(claimed());
  EXPECT_TRUE(holds.Touch({kOwn}).empty());
  EXPECT_FALSE(claimed());
  EXPECT_TRUE(claimed(Holds::Standing::kRoot));
  now += 60;
  EXPECT_TRUE(claimed());
  {
    const Holds::Hold hold = holds.Keep({kOwn});
    EXPECT_FALSE(hold.late());
    now += 1'000'000;
    EXPECT_FALSE(claimed());
    EXPECT_FALSE(claimed(Holds::Standing::kRoot));
  }
  EXPECT_TRUE(claimed());
  holds.Written({kOwn});  // outside of a sweep: the next one will see it
  holds.BeginSweep();
  EXPECT_TRUE(claimed());
  holds.Written({kOwn});
  EXPECT_FALSE(claimed());
  holds.EndSweep();
  holds.BeginSweep();
  EXPECT_TRUE(claimed());
  ASSERT_TRUE(holds.Claim(kOwn, Holds::Standing::kNamed));
  EXPECT_EQ(holds.Touch({kShared, kOwn}), (std::vector<EntryId>{kOwn}));
  EXPECT_TRUE(holds.Keep({kOwn}).late());
}

}  // namespace
}  // namespace kiln
