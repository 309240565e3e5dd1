// What others said, as one line of the log.
#include "server/observe/log.h"

#include <string>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "server/server_limits.h"

namespace kiln {
namespace {

TEST(LogText, IsOneLineOfLimitedLength) {
  EXPECT_EQ(LogText("Größe 3"), "Größe 3");
  EXPECT_EQ(LogText("a\nb\r\x1b[31m\x7f"), "a\\nb\\x0d\\x1b[31m\\x7f");
  EXPECT_EQ(LogText(absl::string_view("\0", 1)), "\\x00");
  const std::string longest(kLogLineBytesMax, 'x');
  EXPECT_EQ(LogText(longest), longest);
  EXPECT_EQ(LogText(longest + "x"), longest + " …");
}

}  // namespace
}  // namespace kiln
