// A directory of a test's own, gone with it.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "gtest/gtest.h"

namespace kiln {

class InTemporaryDirectory : public testing::Test {
 protected:
  InTemporaryDirectory() {
    char path[] = "/tmp/kiln-test-XXXXXX";
    directory_ = mkdtemp(path);
  }
  ~InTemporaryDirectory() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

}  // namespace kiln
