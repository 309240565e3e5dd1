// A fixture for tests of the x86 back-end with AVX-512 (parameter true) and without; the first skips itself
// where the machine has none. Instantiate with testing::Bool() and X86TargetName.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "compiler/codegen/codegen_backend.h"
#include "tests/conformance/host_target.h"

namespace kiln {

class X86TargetTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !HostHasAvx512()) GTEST_SKIP() << "this machine has no AVX-512";
    auto backend = NewCodegenBackend(X86Target(GetParam()));
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
  }

  std::unique_ptr<CodegenBackend> backend_;
};

inline std::string X86TargetName(const testing::TestParamInfo<bool>& info) {
  return info.param ? "avx512" : "avx2";
}

}  // namespace kiln
