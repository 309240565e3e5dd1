// Functions that a decomposition asks for by their accuracy: 1 + erf(x) and 1 + tanh(x), within 2^-21 of 1,
// and a softmax's exponentials, within 5 ulp, kept from one walk to another or not. Every function has one
// bit pattern.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "compiler/ir/kernel_builder.h"
#include "tests/conformance/kernel_runner.h"
#include "tests/conformance/x86_target_test.h"

namespace kiln {
namespace {

constexpr float kInfinity = INFINITY;
constexpr int64_t kRow = 4096;

class OwnFunctionsTest : public X86TargetTest {
 protected:
  // The kernel's first result; what it stores to the buffer after that goes into `also`.
  std::vector<float> Run(const v1::Kernel& kernel, const std::vector<float>& x,
                         std::vector<float>* also = nullptr) {
    auto compiled = CompiledKernel::Create(backend_.get(), kernel);
    EXPECT_TRUE(compiled.ok()) << compiled.status();
    std::vector<float> out(x.size()), second(x.size());
    if (!compiled.ok()) return out;
    const KilnStatus status = compiled->Run({const_cast<float*>(x.data()), out.data(), second.data()}, 0,
                                            static_cast<int64_t>(x.size()) / kRow);
    EXPECT_EQ(status.code, 0);
    if (also != nullptr) *also = std::move(second);
    return out;
  }
};

// function(x), element by element of rows.
v1::Kernel FunctionOfRows(LoopOpcode function, int64_t rows, v1::VectorDim dim = v1::VECTOR_INNER_LAST) {
  KernelBuilder b;
  const uint32_t n = b.Const(rows), columns = b.Const(kRow), span = b.Const(rows * kRow);
  const uint32_t in = b.Buffer(v1::F32, v1::READ, span), out = b.Buffer(v1::F32, v1::WRITE, span);
  b.Outer(n);
  b.BeginStage({columns});
  const uint32_t index = b.Add(b.Var(1), b.Mul(b.Var(0), columns));
  b.Store(out, index, b.Op(function, v1::F32, {b.Load(in, index)}));
  b.Schedule(1, 1, dim);
  return b.Build();
}

std::vector<float> Numbers() {
  std::vector<float> x = {0.0f,    -0.0f, 4.0f,   -4.0f,  9.5f,      -9.5f,      100.0f,
                          -100.0f, 3e38f, -3e38f, 1e-40f, kInfinity, -kInfinity, NAN};
  std::mt19937 random(20261125);
  while (x.size() % kRow != 0 || x.size() < 64 * kRow) {
    x.push_back(std::uniform_real_distribution<float>(-5, 5)(random));
    x.push_back(std::uniform_real_distribution<float>(-45, 45)(random));
  }
  return x;
}

// Whether a result below 2^-3 is no multiple of the last place of a number that 1 was added to.
bool HasFinerResults(const std::vector<float>& got) {
  return std::any_of(got.begin(), got.end(), [](float y) {
    const float scaled = std::ldexp(y, 24);
    return y > 0 && y < 0.125f && scaled != std::nearbyint(scaled);
  });
}

TEST_P(OwnFunctionsTest, OnePlusAFunction) {
  const std::vector<float> x = Numbers();
  const int64_t rows = static_cast<int64_t>(x.size()) / kRow;
  for (const LoopOpcode function : {LoopOpcode::kOnePlusErf, LoopOpcode::kOnePlusTanh}) {
    const bool erf = function == LoopOpcode::kOnePlusErf;
    const std::vector<float> got = Run(FunctionOfRows(function, rows), x);
    for (size_t k = 0; k < x.size(); ++k) {
      if (std::isnan(x[k])) {
        EXPECT_TRUE(std::isnan(got[k]));
        continue;
      }
      const double exact = 1 + (erf ? std::erf(double{x[k]}) : std::tanh(double{x[k]}));
      EXPECT_NEAR(got[k], exact, 0x1p-21) << InfoOf(function).name << " " << x[k];
      EXPECT_GE(got[k], 0);
      if (x[k] < -44.5f || (erf && x[k] <= -4)) {
        EXPECT_EQ(got[k], 0.0f) << x[k];
      }
      if (x[k] > 9.5f) {
        EXPECT_EQ(got[k], 2.0f) << x[k];
      }
    }
    // With tables erf is as short by itself.
    EXPECT_EQ(HasFinerResults(got), !erf || !GetParam()) << InfoOf(function).name;
  }
}

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// function(x) where a loop over a count that no vector divides computes it, beside doubles or not: `wide` has
// vectors of half the length.
v1::Kernel FunctionOfSome(LoopOpcode function, int64_t count, v1::VectorDim dim, bool wide) {
  KernelBuilder b;
  const uint32_t n = b.Const(count);
  const uint32_t in = b.Buffer(v1::F32, v1::READ, n), out = b.Buffer(v1::F32, v1::WRITE, n);
  const uint32_t twice = b.Buffer(v1::F64, v1::WRITE, n);
  b.Outer(n);
  b.BeginStage({});
  const uint32_t value = b.Op(function, v1::F32, {b.Load(in, b.Var(0))});
  b.Store(out, b.Var(0), value);
  if (wide) b.Store(twice, b.Var(0), b.Op(LoopOpcode::kCast, v1::F64, {value}));
  b.Schedule(1, 1 << 20, dim);
  return b.Build();
}

// A value has one bit pattern: in a lane, in what is left of a row, in a loop over single elements.
TEST_P(OwnFunctionsTest, OneBitPatternWhereverAValueIsComputed) {
  std::vector<float> x = Numbers();
  x.resize(4099);
  std::vector<float> below = x;
  for (float& v : below) v = -std::abs(v);
  int functions = 0;
  for (uint32_t number = 1; number < 128; ++number) {
    const LoopOpInfo* info = FindLoopOp(number);
    if (info == nullptr || info->op_class != LoopOpClass::kFloat || info->arity != 1) continue;
    ++functions;
    const std::vector<float>& of = info->op == LoopOpcode::kSoftmaxExp ? below : x;
    std::vector<float> expected;
    for (const v1::VectorDim dim : {v1::VECTOR_OUTER_LAST, v1::VECTOR_NONE}) {
      for (const bool wide : {false, true}) {
        for (const int64_t count : {4099, 7}) {
          auto compiled = CompiledKernel::Create(backend_.get(), FunctionOfSome(info->op, count, dim, wide));
          ASSERT_TRUE(compiled.ok()) << info->name << ": " << compiled.status();
          std::vector<float> out(of.size());
          std::vector<double> twice(of.size());
          ASSERT_EQ(compiled->Run({const_cast<float*>(of.data()), out.data(), twice.data()}, 0, 1).code, 0);
          if (expected.empty()) expected = out;
          for (int64_t k = 0; k < count; ++k) {
            ASSERT_TRUE(BitsOf(out[k]) == BitsOf(expected[k]) ||
                        (std::isnan(out[k]) && std::isnan(expected[k])))
                << info->name << "(" << of[k] << ") is " << out[k] << " and " << expected[k];
          }
        }
      }
    }
  }
  EXPECT_GE(functions, 30);
}

// A row's e^(x - maximum of x), or of the minimum, which is no bound.
v1::Kernel Exponentials(int64_t rows, v1::ReduceKind kind, LoopOpcode exponential) {
  KernelBuilder b;
  const uint32_t n = b.Const(rows), columns = b.Const(kRow), span = b.Const(rows * kRow);
  const uint32_t in = b.Buffer(v1::F32, v1::READ, span), out = b.Buffer(v1::F32, v1::WRITE, span);
  b.Outer(n);
  const uint32_t index = b.Add(b.Var(1), b.Mul(b.Var(0), columns));
  b.BeginStage({columns});
  const uint32_t bound = b.Reduce(kind, b.Load(in, index));
  b.BeginStage({columns});
  const uint32_t below = b.Op(LoopOpcode::kSub, v1::F32, {b.Load(in, index), bound});
  b.Store(out, index, b.Op(exponential, v1::F32, {below}));
  b.Schedule(1, 1, v1::VECTOR_INNER_LAST);
  return b.Build();
}

TEST_P(OwnFunctionsTest, ExponentialsBelowTheirRowsMaximum) {
  constexpr int64_t kRows = 16;
  std::vector<float> x(kRows * kRow);
  std::mt19937 random(7);
  for (int64_t row = 0; row < kRows; ++row) {
    const float width = row < 8 ? 10.0f : 110.0f;
    for (int64_t k = 0; k < kRow; ++k) {
      x[row * kRow + k] = std::uniform_real_distribution<float>(-width, 0)(random);
    }
    x[row * kRow + row] = 0;
    x[row * kRow + 100] = -kInfinity;
    x[row * kRow + 101] = -3e38f;
  }
  x[3 * kRow + 5] = NAN;
  x[4 * kRow + 5] = kInfinity;
  const std::vector<float> got = Run(Exponentials(kRows, v1::REDUCE_MAX, LoopOpcode::kSoftmaxExp), x);
  double worst = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t k = 0; k < kRow; ++k) {
      const float y = got[row * kRow + k], from = x[row * kRow + k];
      if (row == 3) {
        ASSERT_TRUE(std::isnan(y)) << k;
      } else if (row == 4) {
        ASSERT_TRUE(k == 5 ? std::isnan(y) : y == 0) << k << ": " << y;
      } else {
        const double exact = std::exp(double{from});
        const double ulp = std::max(std::ldexp(1.0, std::ilogb(exact) - 23), 0x1p-149);
        worst = std::max(worst, std::abs(y - exact) / ulp);
        if (from > -100) {
          ASSERT_GT(y, 0) << from;
        }
      }
    }
  }
  RecordProperty("ulps", std::to_string(worst));
  EXPECT_LE(worst, 5);
  EXPECT_EQ(got[100], 0.0f);
  EXPECT_EQ(got[101], 0.0f);
  // Others are bound by nothing.
  const std::vector<float> above =
      Run(Exponentials(1, v1::REDUCE_MIN, LoopOpcode::kExp), {x.begin() + 12 * kRow, x.begin() + 13 * kRow});
  EXPECT_EQ(above[0], kInfinity);
}

// With kMaximumToo the row's maximum is asked for by itself, with kSumToo the sum's reciprocal; kTiny
// multiplies by a number instead of that. With kScaledFirst the schedule has the row's scale go into what was
// kept, not into the reciprocal.
enum class Softmax {
  kTimesReciprocal,
  kReciprocalTimes,
  kScaledFirst,
  kQuotient,
  kMaximumToo,
  kSumToo,
  kTiny
};

constexpr float kTinyFactor = 1e-30f;

// A row's softmax, whose exponentials are kept from their sum on.
v1::Kernel SoftmaxKernel(int64_t rows, Softmax form, LoopOpcode function) {
  KernelBuilder b;
  const uint32_t n = b.Const(rows), columns = b.Const(kRow), span = b.Const(rows * kRow);
  const uint32_t in = b.Buffer(v1::F32, v1::READ, span), out = b.Buffer(v1::F32, v1::WRITE, span);
  const uint32_t second = b.Buffer(v1::F32, v1::WRITE, span);
  b.Outer(n);
  const uint32_t index = b.Add(b.Var(1), b.Mul(b.Var(0), columns));
  b.BeginStage({columns});
  const uint32_t top = b.Reduce(v1::REDUCE_MAX, b.Load(in, index));
  const auto exponential = [&] {
    return b.Op(function, v1::F32, {b.Op(LoopOpcode::kSub, v1::F32, {b.Load(in, index), top})});
  };
  b.BeginStage({columns});
  const uint32_t sum = b.Reduce(v1::REDUCE_SUM, exponential());
  b.BeginStage({});
  const uint32_t part = b.Op(LoopOpcode::kReciprocal, v1::F32, {sum});
  if (form == Softmax::kMaximumToo) b.Store(second, b.Var(0), top);
  if (form == Softmax::kSumToo) b.Store(second, b.Var(0), part);
  const uint32_t tiny = b.Float(v1::F32, kTinyFactor);
  b.BeginStage({columns});
  const uint32_t e = exponential();
  b.Store(out, index,
          form == Softmax::kQuotient          ? b.Op(LoopOpcode::kDiv, v1::F32, {e, sum})
          : form == Softmax::kTiny            ? b.Op(LoopOpcode::kMul, v1::F32, {e, tiny})
          : form == Softmax::kReciprocalTimes ? b.Op(LoopOpcode::kMul, v1::F32, {part, e})
                                              : b.Op(LoopOpcode::kMul, v1::F32, {e, part}));
  b.Schedule(1, 1, v1::VECTOR_INNER_LAST);
  return b.Build();
}

TEST_P(OwnFunctionsTest, KeptExponentials) {
  constexpr int64_t kRows = 10, kNotANumber = 7;
  std::vector<float> x(kRows * kRow);
  std::mt19937 random(8);
  for (int64_t row = 0; row < kRows; ++row) {
    const float width = row == 1 ? 110.0f : 8.0f;
    for (int64_t k = 0; k < kRow; ++k) {
      x[row * kRow + k] = std::uniform_real_distribution<float>(-width, 0)(random);
    }
  }
  const auto at = [&](int64_t row, int64_t k) -> float& { return x[row * kRow + k]; };
  at(1, 0) = 0;     // the estimate; subnormal exponentials and results
  at(2, 4000) = 8;  // above the estimate
  // So far above it that the row is walked once more: one number, all of them, whatever comes after
  // -infinity.
  for (int64_t k = 0; k < kRow; ++k) {
    at(3, k) += k == 4000 ? 1000.0f : 0.0f;
    at(4, k) += k < 16 ? 0.0f : 14.0f;
    if (k < 16) at(5, k) = -kInfinity;
  }
  at(6, 7) = -kInfinity;
  at(kNotANumber, 4090) = NAN;
  at(8, 4090) = kInfinity;
  for (int64_t k = 0; k < kRow; ++k) at(9, k) = -kInfinity;
  for (const Softmax form : {Softmax::kTimesReciprocal, Softmax::kReciprocalTimes, Softmax::kScaledFirst,
                             Softmax::kQuotient, Softmax::kMaximumToo, Softmax::kSumToo, Softmax::kTiny}) {
    v1::Kernel kernel = SoftmaxKernel(kRows, form, LoopOpcode::kSoftmaxExp);
    if (form == Softmax::kScaledFirst) {
      *kernel.mutable_schedule() = backend_->Schedules(kernel).front();
      v1::RowSchedule& walk = *kernel.mutable_schedule()->mutable_vectors()->mutable_rows();
      EXPECT_EQ(walk.cache().scaled_size(), 1);
      walk.mutable_cache()->clear_scaled();
    }
    std::vector<float> second;
    const std::vector<float> got = Run(kernel, x, &second);
    double worst = 0;
    int64_t subnormal = 0;
    for (int64_t row = 0; row < kRows; ++row) {
      const float* of = &at(row, 0);
      const double top = *std::max_element(of, of + kRow);
      double sum = 0;
      for (int64_t k = 0; k < kRow; ++k) sum += std::exp(of[k] - top);
      for (int64_t k = 0; k < kRow; ++k) {
        const float y = got[row * kRow + k];
        if (row >= kNotANumber) {
          ASSERT_TRUE(std::isnan(y) || (row == 8 && y == 0)) << row << " " << k << ": " << y;
          continue;
        }
        const double e = std::exp(of[k] - top), exact = form == Softmax::kTiny ? e * kTinyFactor : e / sum;
        const double ulp = std::max(std::ldexp(1.0, std::ilogb(std::max(exact, 1e-60)) - 23), 0x1p-149);
        worst = std::max(worst, std::abs(y - exact) / ulp);
        subnormal += y > 0 && y < 0x1p-126f;
      }
      if (row >= kNotANumber) continue;
      if (form == Softmax::kMaximumToo) {
        EXPECT_EQ(second[row], static_cast<float>(top));
      } else if (form == Softmax::kSumToo) {
        EXPECT_NEAR(second[row] * sum, 1, 1e-6) << row;
      }
    }
    // About an estimate 14 below the maximum the exponents have lost four bits, twice.
    EXPECT_LE(worst, 20) << static_cast<int>(form);
    EXPECT_GT(subnormal, 100);
  }
}

// Exponentials that a program divides itself have the bits that they have alone, and so have the quotients,
// whatever the kernel's schedule makes of the row.
TEST_P(OwnFunctionsTest, APlainExponentialIsItselfInASoftmax) {
  constexpr int64_t kRows = 4;
  std::vector<float> x(kRows * kRow);
  std::mt19937 random(9);
  for (float& v : x) v = std::uniform_real_distribution<float>(-9, 9)(random);
  const std::vector<float> alone = Run(Exponentials(kRows, v1::REDUCE_MAX, LoopOpcode::kExp), x);
  std::vector<float> inverse;
  const std::vector<float> got = Run(SoftmaxKernel(kRows, Softmax::kSumToo, LoopOpcode::kExp), x, &inverse);
  const std::vector<float> softmax = Run(SoftmaxKernel(kRows, Softmax::kSumToo, LoopOpcode::kSoftmaxExp), x);
  int different = 0;
  for (int64_t k = 0; k < kRows * kRow; ++k) {
    ASSERT_EQ(BitsOf(got[k]), BitsOf(alone[k] * inverse[k / kRow])) << k;
    different += BitsOf(softmax[k]) != BitsOf(got[k]);
  }
  EXPECT_GT(different, 0);  // or the row is not taken about an estimate, and this shows nothing
}

INSTANTIATE_TEST_SUITE_P(Targets, OwnFunctionsTest, testing::Bool(), X86TargetName);

}  // namespace
}  // namespace kiln
