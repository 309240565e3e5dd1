// Tests that run on an emulated CPU, and are skipped where the emulator is not.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "tests/conformance/emulated_cpu.h"

namespace kiln::testing {

class WithEmulatedCpu : public ::testing::Test {
 protected:
  void SetUp() override {
    auto cpu = EmulatedCpu::Start();
    if (absl::IsUnavailable(cpu.status())) GTEST_SKIP() << cpu.status().message();
    ASSERT_TRUE(cpu.ok()) << cpu.status();
    cpu_ = *std::move(cpu);
  }

  std::unique_ptr<EmulatedCpu> cpu_;
};

}  // namespace kiln::testing
