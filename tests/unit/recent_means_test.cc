// What something took lately, of each tenant and class.
#include "server/schedule/recent_means.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

TEST(RecentMeans, ThoseThatCameLastAreKept) {
  RecentMeans means(1);
  means.Add({"first"}, 5);
  means.Add({"second"}, 5);
  for (size_t i = 0; i < RecentMeans::kKept - 2; ++i) means.Add({absl::StrCat("tenant ", i)}, 2);
  means.Add({"first"}, 7);
  means.Add({"one more"}, 3);
  EXPECT_DOUBLE_EQ(means.Of({"first"}), 6);
  EXPECT_DOUBLE_EQ(means.Of({"second"}), 1);
  EXPECT_DOUBLE_EQ(means.Of({"one more"}), 3);
}

}  // namespace
}  // namespace kiln
