// Build ids of files: of ELF, and of what is none.
#include "compiler/worker/build_id.h"

#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "tests/unit/temporary_directory.h"

namespace kiln {
namespace {

TEST_F(InTemporaryDirectory, BuildIds) {
  const auto own = BuildIdOfFile("/proc/self/exe");
  if (own.ok()) {
    EXPECT_EQ(*own, OwnBuildId());
  }
  std::ofstream(directory_ + "/text") << "#!/bin/sh\n";
  EXPECT_EQ(BuildIdOfFile(directory_ + "/text").status().code(), absl::StatusCode::kNotFound);
  std::ofstream(directory_ + "/torn") << std::string(
      "\x7f"
      "ELF\2\1\1",
      7);
  EXPECT_EQ(BuildIdOfFile(directory_ + "/torn").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace kiln
