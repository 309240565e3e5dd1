// The fixture of the suite for every back-end: one runs beside the interpreter, and gives its results.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "compiler/ir/ops.h"
#include "tests/conformance/backend_harness.h"
#include "tests/conformance/host_target.h"

namespace kiln {

inline constexpr v1::DType kArithmetic[] = {v1::BOOL, v1::U8,  v1::I8,  v1::I16,
                                            v1::I32,  v1::I64, v1::F32, v1::F64};
inline constexpr v1::VectorDim kDims[] = {v1::VECTOR_NONE, v1::VECTOR_OUTER_LAST, v1::VECTOR_INNER_LAST};

// The parameter names the back-end.
class BackendConformanceTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    reference_ = NewInterpreterRunner();
    absl::string_view name = GetParam();
    other_schedules_ = absl::ConsumeSuffix(&name, "_schedules");
    if (name == "interpreter") {
      runner_ = NewInterpreterRunner();
      return;
    }
    const bool members = absl::ConsumeSuffix(&name, "_members");
    if (name == "gpu" || name == "simulated_gpu" || name == "assembled" || name == "neon") {
      auto runner = name == "gpu"         ? NewGpuRunner(members)
                    : name == "assembled" ? NewAssemblingRunner()
                    : name == "neon"      ? NewEmulatedRunner()
                                          : NewSimulatedGpuRunner(/*barriers=*/true, members);
      if (absl::IsUnavailable(runner.status())) GTEST_SKIP() << runner.status().message();
      ASSERT_TRUE(runner.ok()) << runner.status();
      runner_ = *std::move(runner);
      return;
    }
    if (name == "avx512" && !HostHasAvx512()) GTEST_SKIP() << "this machine has no AVX-512";
    auto runner = NewBackendRunner(X86Target(name == "avx512"));
    ASSERT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
  }

  void Check(const v1::Kernel& kernel, const std::vector<TestBuffer>& buffers, Tolerance tolerance = {},
             const std::vector<int64_t>& symbols = {}) {
    if (!other_schedules_) {
      CheckOne(kernel, buffers, tolerance, symbols);
      return;
    }
    const std::vector<v1::Kernel> kernels =
        runner_->is_gpu() ? WithEverySchedule(kernel) : WithEveryNeonSchedule(kernel);
    ASSERT_FALSE(kernels.empty());
    if (kernels.size() == 1) return;
    CheckOne(kernels[1 + random_() % (kernels.size() - 1)], buffers, tolerance, symbols);
  }

  // Also that the result does not depend on how the units are spread.
  void CheckOne(const v1::Kernel& kernel, const std::vector<TestBuffer>& buffers, Tolerance tolerance,
                const std::vector<int64_t>& symbols) {
    auto expected = reference_->Run(kernel, buffers, symbols, false, random_);
    ASSERT_TRUE(expected.ok()) << expected.status();
    if (runner_->is_gpu() && expected->status.code != 0) return;
    auto got = runner_->Run(kernel, buffers, symbols, false, random_);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got->status.code, expected->status.code);
    if (expected->status.code != 0) {
      EXPECT_EQ(got->status.op, expected->status.op);
      EXPECT_EQ(got->status.value, expected->status.value);
      EXPECT_EQ(got->status.bound, expected->status.bound);
      return;
    }
    EXPECT_EQ(Difference(got->buffers, expected->buffers, tolerance), "")
        << kernel.ShortDebugString().substr(0, 3000);
    auto split = runner_->Run(kernel, buffers, symbols, true, random_);
    ASSERT_TRUE(split.ok()) << split.status();
    if (runner_->is_gpu() && Accumulates(kernel)) {  // in whatever order
      EXPECT_EQ(Difference(split->buffers, expected->buffers, tolerance), "");
      return;
    }
    for (size_t b = 0; b < buffers.size(); ++b) EXPECT_EQ(split->buffers[b].bytes, got->buffers[b].bytes);
  }

  // Of more combinations than a short run has time for, each fourth, drawn by a fixed seed; with KILN_FULL
  // all.
  bool Drawn() { return std::getenv("KILN_FULL") != nullptr || random_() % 4 == 0; }

  static bool Accumulates(const v1::Kernel& kernel) {
    for (const v1::Stage& stage : kernel.stages()) {
      for (const v1::LoopOp& op : stage.ops()) {
        if (static_cast<LoopOpcode>(op.op()) == LoopOpcode::kStore && op.mode() == v1::STORE_ACCUMULATE)
          return true;
      }
    }
    return false;
  }

  bool other_schedules_ = false;  // one that the back-end knows for a kernel beside its own
  std::mt19937_64 random_{20261121};
  std::unique_ptr<KernelRunner> reference_;
  std::unique_ptr<KernelRunner> runner_;
};

}  // namespace kiln
