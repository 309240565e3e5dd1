// Math functions on AArch64 have the bits that they have with AVX2, for floats and doubles: both compute the
// same formulas by operations that round alike. So their accuracy is what math_accuracy_test finds there.
// Each 100,003rd float and as many doubles; KILN_FULL=1: each 257th.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/ir/kernel_builder.h"
#include "tests/conformance/backend_harness.h"
#include "tests/conformance/host_target.h"

namespace kiln {
namespace {

class AArch64FunctionsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto emulated = NewEmulatedRunner();
    if (absl::IsUnavailable(emulated.status())) GTEST_SKIP() << emulated.status().message();
    ASSERT_TRUE(emulated.ok()) << emulated.status();
    emulated_ = *std::move(emulated);
    auto native = NewBackendRunner(X86Target(/*avx512=*/false));
    ASSERT_TRUE(native.ok()) << native.status();
    native_ = *std::move(native);
  }

  // How many results of two kernels differ, but for NaN; the first one's place in `at`.
  int64_t Different(const v1::Kernel& here, const v1::Kernel& there, const std::vector<TestBuffer>& buffers,
                    int64_t* at) {
    const int64_t count = buffers[0].bytes.size() / (buffers[0].dtype == v1::F64 ? 8 : 4);
    auto wanted = native_->Run(here, buffers, {count}, false, random_);
    auto got = emulated_->Run(there, buffers, {count}, false, random_);
    EXPECT_TRUE(wanted.ok() && got.ok()) << wanted.status() << got.status();
    if (!wanted.ok() || !got.ok()) return -1;
    const std::string &x = wanted->buffers[2].bytes, &y = got->buffers[2].bytes;
    int64_t different = 0;
    for (int64_t k = count - 1; k >= 0; --k) {
      if (buffers[0].dtype == v1::F64 ? Equal<double>(x, y, k) : Equal<float>(x, y, k)) continue;
      ++different;
      *at = k;
    }
    return different;
  }

  template <typename T>
  static bool Equal(const std::string& x, const std::string& y, int64_t k) {
    T a, b;
    std::memcpy(&a, x.data() + k * sizeof(T), sizeof(T));
    std::memcpy(&b, y.data() + k * sizeof(T), sizeof(T));
    return std::memcmp(&a, &b, sizeof(T)) == 0 || (std::isnan(a) && std::isnan(b));
  }

  std::mt19937_64 random_{20261128};
  std::unique_ptr<KernelRunner> emulated_, native_;
};

v1::Kernel FunctionKernel(LoopOpcode op, v1::DType dtype) {
  KernelBuilder b;
  const uint32_t n = b.Symbol(0);
  const uint32_t x = b.Buffer(dtype, v1::READ, n), y = b.Buffer(dtype, v1::READ, n);
  const uint32_t out = b.Buffer(dtype, v1::WRITE, n);
  b.Outer(n);
  b.BeginStage({});
  std::vector<uint32_t> values = {b.Load(x, b.Var(0))};
  if (InfoOf(op).arity == 2) values.push_back(b.Load(y, b.Var(0)));
  b.Store(out, b.Var(0), b.Op(op, dtype, values));
  b.Schedule(1, 1 << 20, v1::VECTOR_OUTER_LAST);
  return b.Build();
}

TEST_F(AArch64FunctionsTest, HaveTheBitsOfAvx2) {
  const uint64_t stride = std::getenv("KILN_FULL") != nullptr ? 257 : 100003;
  std::vector<double> numbers;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += stride) {
    numbers.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  std::vector<double> others = numbers;  // as second arguments
  std::shuffle(others.begin(), others.end(), random_);
  int functions = 0;
  for (uint32_t number = 0; number < 128; ++number) {
    const LoopOpInfo* info = FindLoopOp(number);
    if (info == nullptr || info->arity > 2) continue;
    if (info->op_class != LoopOpClass::kFloat && info->op != LoopOpcode::kPow) continue;
    for (const v1::DType dtype : {v1::F32, v1::F64}) {
      const std::vector<TestBuffer> buffers = {FloatBuffer(dtype, numbers), FloatBuffer(dtype, others),
                                               FloatBuffer(dtype, others)};
      int64_t at = 0;
      const v1::Kernel kernel = FunctionKernel(info->op, dtype);
      EXPECT_EQ(Different(kernel, kernel, buffers, &at), 0)
          << info->name << " of " << v1::DType_Name(dtype) << ", first of " << numbers[at] << ", "
          << others[at];
    }
    ++functions;
  }
  EXPECT_GT(functions, 25);
}

// The control: a function that is 1 ulp off somewhere is seen.
TEST_F(AArch64FunctionsTest, AreSeenToDifferWhereTheyDo) {
  std::vector<double> numbers;
  for (int k = 0; k < 1000; ++k) numbers.push_back(k * 0.01 - 5);
  const TestBuffer buffer = FloatBuffer(v1::F32, numbers);
  int64_t at = 0;
  EXPECT_GT(Different(FunctionKernel(LoopOpcode::kExp, v1::F32),
                      FunctionKernel(LoopOpcode::kSoftmaxExp, v1::F32), {buffer, buffer, buffer}, &at),
            0);
}

}  // namespace
}  // namespace kiln
