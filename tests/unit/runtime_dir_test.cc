// kilnd's runtime directory: one daemon has it.
#include "server/listen/runtime_dir.h"

#include "gtest/gtest.h"
#include "tests/unit/temporary_directory.h"

namespace kiln {
namespace {

TEST_F(InTemporaryDirectory, ALockHasOneHolder) {
  auto first = FileLock::Acquire(directory_ + "/lock");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(FileLock::Acquire(directory_ + "/lock").status().code(), absl::StatusCode::kAlreadyExists);
  *first = nullptr;
  EXPECT_TRUE(FileLock::Acquire(directory_ + "/lock").ok());
}

}  // namespace
}  // namespace kiln
