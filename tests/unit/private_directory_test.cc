// Layouts of directories on the way to a private one: which are refused.

#include "compiler/support/private_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "gtest/gtest.h"

// What a network file system answers for the directory of this name, be it there or not.
static std::string* unwritable = nullptr;
static int unwritable_error = 0;

// In the place of the C library's.
extern "C" int mkdir(const char* path, mode_t mode) noexcept {
  if (unwritable == nullptr || *unwritable != path) return mkdirat(AT_FDCWD, path, mode);
  errno = unwritable_error;
  return -1;
}

namespace kiln {
namespace {

using StatusCode = absl::StatusCode;

constexpr uid_t kSomebodyElse = 12'345;

struct Layout {
  const char* name;
  std::function<void(const std::string& root)> arrange;
  const char* path;  // below the root
  StatusCode code;
  bool takes_root = false;  // to give a file away
};

void Make(const std::string& path, mode_t mode, uid_t owner = geteuid()) {
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0) << path;
  ASSERT_EQ(chmod(path.c_str(), mode), 0) << path;
  ASSERT_EQ(chown(path.c_str(), owner, static_cast<gid_t>(-1)), 0) << path;
}

void Link(const std::string& from, const std::string& to, uid_t owner = geteuid()) {
  ASSERT_EQ(symlink(to.c_str(), from.c_str()), 0) << from;
  ASSERT_EQ(lchown(from.c_str(), owner, static_cast<gid_t>(-1)), 0) << from;
}

const Layout kLayouts[] = {
    {"NothingThere", [](const std::string&) {}, "a/b", StatusCode::kOk},
    {"Ours", [](const std::string& r) { Make(r + "/a", 0700); }, "a", StatusCode::kOk},
    {"OursWithASlash", [](const std::string& r) { Make(r + "/a", 0700); }, "a/", StatusCode::kOk},
    {"ReadByAll", [](const std::string& r) { Make(r + "/a", 0755); }, "a", StatusCode::kOk},
    {"WrittenByItsGroup", [](const std::string& r) { Make(r + "/a", 0770); }, "a",
     StatusCode::kFailedPrecondition},
    {"WrittenByAll", [](const std::string& r) { Make(r + "/a", 0702); }, "a",
     StatusCode::kFailedPrecondition},
    {"Anothers", [](const std::string& r) { Make(r + "/a", 0700, kSomebodyElse); }, "a",
     StatusCode::kFailedPrecondition, true},
    {"ALink", [](const std::string& r) { Make(r + "/b", 0700), Link(r + "/a", r + "/b"); }, "a",
     StatusCode::kFailedPrecondition},
    {"AFile", [](const std::string& r) { std::ofstream(r + "/a") << "x"; }, "a",
     StatusCode::kFailedPrecondition},
    {"BelowAFile", [](const std::string& r) { std::ofstream(r + "/a") << "x"; }, "a/b",
     StatusCode::kPermissionDenied},
    {"BelowOneThatItsGroupWrites", [](const std::string& r) { Make(r + "/a", 0770); }, "a/b",
     StatusCode::kOk},
    {"BelowOneThatAllWrite", [](const std::string& r) { Make(r + "/a", 0777); }, "a/b",
     StatusCode::kFailedPrecondition},
    {"BelowAStickyOne", [](const std::string& r) { Make(r + "/a", 01777); }, "a/b", StatusCode::kOk},
    {"BelowAnothersInAStickyOne",
     [](const std::string& r) { Make(r + "/a", 01777), Make(r + "/a/b", 0755, kSomebodyElse); }, "a/b/c",
     StatusCode::kFailedPrecondition, true},
    {"BelowAnothersElsewhere", [](const std::string& r) { Make(r + "/a", 0755, kSomebodyElse); }, "a/b",
     StatusCode::kOk, true},
    {"BelowALinkOfOurs", [](const std::string& r) { Make(r + "/b", 0700), Link(r + "/a", r + "/b"); }, "a/c",
     StatusCode::kOk},
    {"BelowALinkOfAnothersElsewhere",
     [](const std::string& r) { Make(r + "/b", 0700), Link(r + "/a", r + "/b", kSomebodyElse); }, "a/c",
     StatusCode::kOk, true},
    {"BelowALinkOfAnothersInAStickyOne",
     [](const std::string& r) {
       Make(r + "/a", 01777), Make(r + "/b", 0700), Link(r + "/a/l", r + "/b", kSomebodyElse);
     },
     "a/l/c", StatusCode::kFailedPrecondition, true},
    {"BelowALinkOutOfAStickyOne",
     [](const std::string& r) {
       Make(r + "/a", 0755, kSomebodyElse), Make(r + "/a/s", 01777), Make(r + "/a/b", 0700);
       Link(r + "/a/s/l", "../b");
     },
     "a/s/l/c", StatusCode::kOk, true},
    {"AboveALinksTarget",
     [](const std::string& r) {
       Make(r + "/a", 0700), Make(r + "/b", 0700), Make(r + "/b/c", 0700), Link(r + "/a/l", r + "/b/c");
     },
     "a/l/../d", StatusCode::kOk},
    {"AboveALinksTargetWhereAllWrite",
     [](const std::string& r) {
       Make(r + "/a", 0700), Make(r + "/b", 0777), Make(r + "/b/c", 0700), Link(r + "/a/l", r + "/b/c");
     },
     "a/l/../d", StatusCode::kFailedPrecondition},
    {"ALinkWithADot", [](const std::string& r) { Make(r + "/b", 0700), Link(r + "/a", r + "/b"); }, "a/.",
     StatusCode::kFailedPrecondition},
    {"BelowALinkToOneThatAllWrite", [](const std::string& r) { Make(r + "/b", 0777), Link(r + "/a", "b"); },
     "a/c", StatusCode::kFailedPrecondition},
    {"BelowALinkToNothing", [](const std::string& r) { Link(r + "/a", "b"); }, "a/c",
     StatusCode::kPermissionDenied},
};

class PrivateDirectoryTest : public testing::TestWithParam<Layout> {
 protected:
  PrivateDirectoryTest() {
    char path[] = "/tmp/kiln-private-XXXXXX";
    root_ = mkdtemp(path);
  }
  ~PrivateDirectoryTest() override { std::filesystem::remove_all(root_); }
  std::string root_;
};

TEST_P(PrivateDirectoryTest, IsMadeOrRefused) {
  const Layout& layout = GetParam();
  if (layout.takes_root && geteuid() != 0) GTEST_SKIP() << "giving files away takes root";
  layout.arrange(root_);
  const std::string path = root_ + "/" + layout.path;
  for (int again = 0; again < 2; ++again) {
    const absl::Status made = MakePrivateDirectory(path);
    EXPECT_EQ(made.code(), layout.code) << made;
    if (!made.ok()) continue;
    struct stat facts;
    ASSERT_EQ(stat(path.c_str(), &facts), 0);
    EXPECT_TRUE(S_ISDIR(facts.st_mode));
    EXPECT_EQ(facts.st_mode & 0022, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, PrivateDirectoryTest, testing::ValuesIn(kLayouts),
                         [](const auto& info) { return info.param.name; });

TEST(PrivateDirectoryModeTest, WhatIsMadeIsNobodyElses) {
  char path[] = "/tmp/kiln-private-XXXXXX";
  const std::string root = mkdtemp(path);
  ASSERT_TRUE(MakePrivateDirectory(root + "/a/b").ok());
  for (const char* made : {"/a", "/a/b"}) {
    struct stat facts;
    ASSERT_EQ(stat((root + made).c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0700u) << made;
  }
  std::filesystem::remove_all(root);
}

TEST(PrivateDirectoryMakingTest, WhatIsThereNeedNotBeMade) {
  char path[] = "/tmp/kiln-private-XXXXXX";
  std::string root = mkdtemp(path);
  unwritable = &root;
  for (const int error : {EACCES, EROFS}) {
    unwritable_error = error;
    const absl::Status made = MakePrivateDirectory(root + "/a");
    EXPECT_TRUE(made.ok()) << made;
  }
  // The control: what is not there is not taken for it.
  std::string missing = root + "/b";
  unwritable = &missing;
  const absl::Status made = MakePrivateDirectory(root + "/b/c");
  unwritable = nullptr;
  EXPECT_EQ(made.code(), StatusCode::kPermissionDenied) << made;
  EXPECT_NE(made.message().find(missing), std::string::npos) << made;
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace kiln
