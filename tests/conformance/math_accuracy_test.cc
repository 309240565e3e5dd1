// Every math function of the x86 back-end against the C library at higher precision: within 4 ulp.
// Float functions of one argument: a sample of all bit patterns, or each one with KILN_FULL=1.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <mutex>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "compiler/ir/kernel_builder.h"
#include "tests/conformance/host_target.h"
#include "tests/conformance/kernel_runner.h"
#include "tests/conformance/x86_target_test.h"

namespace kiln {
namespace {

constexpr double kUlpMax = 4.0;
constexpr uint64_t kFloatPatterns = uint64_t{1} << 32;
constexpr uint64_t kFloatBlock = 1 << 22;

struct Function {
  LoopOpcode op;
  long double (*exact)(long double);
  double (*exact_double)(double);
  double ulp_double = kUlpMax;  // of the double version, where 4 is not promised
};

long double Sigmoid(long double x) { return 1 / (1 + expl(-x)); }
double SigmoidD(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }

const Function kFunctions[] = {
    {LoopOpcode::kExp, expl, exp},
    {LoopOpcode::kExp2, exp2l, exp2},
    {LoopOpcode::kExpm1, expm1l, expm1},
    {LoopOpcode::kLog, logl, log},
    {LoopOpcode::kLog2, log2l, log2},
    {LoopOpcode::kLog10, log10l, log10},
    {LoopOpcode::kLog1p, log1pl, log1p},
    {LoopOpcode::kSin, sinl, sin},
    {LoopOpcode::kCos, cosl, cos},
    {LoopOpcode::kTan, tanl, tan},
    {LoopOpcode::kAsin, asinl, asin},
    {LoopOpcode::kAcos, acosl, acos},
    {LoopOpcode::kAtan, atanl, atan},
    {LoopOpcode::kSinh, sinhl, sinh},
    {LoopOpcode::kCosh, coshl, cosh},
    {LoopOpcode::kTanh, tanhl, tanh},
    {LoopOpcode::kAsinh, asinhl, asinh},
    {LoopOpcode::kAcosh, acoshl, acosh},
    {LoopOpcode::kAtanh, atanhl, atanh},
    {LoopOpcode::kErf, erfl, erf},
    {LoopOpcode::kErfc, erfcl, erfc},
    {LoopOpcode::kSigmoid, Sigmoid, SigmoidD},
    // The double version loses the zeros between the poles of negative arguments, and some near 1 and 2.
    {LoopOpcode::kLgamma, lgammal, lgamma, 1e6},
};

// Distance in units of the last place of the exact value, in T.
template <typename T>
double Ulps(T got, long double exact) {
  if (std::isnan(exact) || std::isnan(got)) return std::isnan(exact) && std::isnan(got) ? 0 : 1e30;
  const T nearest = static_cast<T>(exact);
  if (nearest == got) return 0;
  if (std::isinf(nearest) || std::isinf(got)) {
    // One step over the border is one ulp.
    const T largest = std::numeric_limits<T>::max();
    const T finite = std::isinf(nearest) ? got : nearest;
    return std::fabs(finite) >= largest * (1 - 4 * std::numeric_limits<T>::epsilon()) ? 1 : 1e30;
  }
  const T magnitude = std::fabs(nearest);
  const T ulp = magnitude < std::numeric_limits<T>::min()
                    ? std::numeric_limits<T>::denorm_min()
                    : std::nextafter(magnitude, std::numeric_limits<T>::infinity()) - magnitude;
  if (std::isinf(ulp))
    return std::fabs(static_cast<double>((got - exact) / (magnitude - std::nextafter(magnitude, T{0}))));
  return static_cast<double>(fabsl(static_cast<long double>(got) - exact) / ulp);
}

v1::Kernel FunctionKernel(LoopOpcode op, v1::DType dtype, int args) {
  KernelBuilder b;
  const uint32_t n = b.Symbol(0);
  const uint32_t x = b.Buffer(dtype, v1::READ, n);
  const uint32_t y = b.Buffer(dtype, v1::READ, n);
  const uint32_t out = b.Buffer(dtype, v1::WRITE, n);
  b.Outer(n);
  b.BeginStage({});
  const uint32_t i = b.Var(0);
  std::vector<uint32_t> values = {b.Load(x, i)};
  if (args == 2) values.push_back(b.Load(y, i));
  b.Store(out, i, b.Op(op, dtype, values));
  b.Schedule(1, 1 << 20, v1::VECTOR_OUTER_LAST);
  return b.Build();
}

template <typename T>
std::vector<T> RunKernel(const CompiledKernel& kernel, const std::vector<T>& x,
                         const std::vector<T>* y = nullptr) {
  std::vector<T> out(x.size());
  const int64_t n = x.size();
  const KilnStatus status =
      kernel.Run({const_cast<T*>(x.data()), const_cast<T*>((y ? *y : x).data()), out.data()}, 0,
                 (n + (1 << 20) - 1) >> 20, {n});
  EXPECT_EQ(status.code, 0);
  return out;
}

class MathAccuracyTest : public X86TargetTest {
 protected:
  template <typename T>
  std::vector<T> Run(LoopOpcode op, v1::DType dtype, const std::vector<T>& x,
                     const std::vector<T>* y = nullptr) {
    auto kernel = CompiledKernel::Create(backend_.get(), FunctionKernel(op, dtype, y == nullptr ? 1 : 2));
    EXPECT_TRUE(kernel.ok()) << InfoOf(op).name << ": " << kernel.status();
    return kernel.ok() ? RunKernel(*kernel, x, y) : std::vector<T>(x.size());
  }
};

struct Worst {
  double ulps = 0;
  float at = 0, got = 0;
};

// Every `stride`-th float from the bit pattern `start` on, one block of them.
std::vector<float> BlockOfFloats(uint64_t start, uint64_t stride) {
  std::vector<float> x;
  for (uint64_t bits = start; bits < kFloatPatterns && x.size() < kFloatBlock; bits += stride) {
    const uint32_t word = static_cast<uint32_t>(bits);
    float value;
    std::memcpy(&value, &word, sizeof(value));
    x.push_back(value);
  }
  return x;
}

std::vector<float> SpecialFloats() {
  std::vector<float> x;
  for (float special : {0.f, 1.f, 0.5f, 2.f, 88.72283f, 88.72284f, 87.33655f, 103.97f, 1048576.f, 1e30f,
                        3.4028235e38f, 1e-45f, 1.17549435e-38f, INFINITY, NAN}) {
    x.push_back(special);
    x.push_back(-special);
  }
  for (int k = -200; k <= 200; ++k) x.push_back(k * 1.5707963267948966f);
  return x;
}

// Ulps<float> of finite results with a normal exact value, which nearly all are, by the bits of its exponent.
double NormalUlps(float got, float nearest, double exact) {
  const uint32_t exponent = std::bit_cast<uint32_t>(nearest) >> 23 & 0xff;
  const double ulp = std::bit_cast<double>(uint64_t{exponent + (1023 - 127 - 23)} << 52);
  return std::fabs(got - exact) / ulp;
}

void Compare(const std::vector<float>& x, const std::vector<double>& exact, const std::vector<float>& got,
             Worst& worst) {
  for (size_t k = 0; k < x.size(); ++k) {
    const float nearest = static_cast<float>(exact[k]);
    if (nearest == got[k]) continue;
    const double ulps = std::isnormal(nearest) && std::isfinite(got[k])
                            ? NormalUlps(got[k], nearest, exact[k])
                            : Ulps<float>(got[k], exact[k]);
    if (ulps > worst.ulps) worst = {ulps, x[k], got[k]};
  }
}

// One function's kernel of each target. The exact values are computed once for all.
using Kernels = std::vector<std::shared_ptr<const CompiledKernel>>;

void CompareBlock(const Kernels& kernels, const Function& function, const std::vector<float>& x,
                  std::vector<Worst>& worst) {
  std::vector<double> exact(x.size());
  for (size_t k = 0; k < x.size(); ++k) exact[k] = function.exact_double(x[k]);
  for (size_t t = 0; t < kernels.size(); ++t) Compare(x, exact, RunKernel<float>(*kernels[t], x), worst[t]);
}

// The blocks are shared out to all cores: the whole range is 2^32 calls of the C library a function.
std::vector<Worst> WorstOfFloats(const Kernels& kernels, const Function& function, uint64_t stride) {
  std::vector<Worst> worst(kernels.size());
  CompareBlock(kernels, function, SpecialFloats(), worst);
  std::mutex mutex;
  std::atomic<uint64_t> next = 0;
  std::vector<std::thread> threads;
  for (unsigned core = 0; core < std::max(1u, std::thread::hardware_concurrency()); ++core) {
    threads.emplace_back([&] {
      std::vector<Worst> mine(kernels.size());
      for (uint64_t start; (start = next.fetch_add(kFloatBlock * stride)) < kFloatPatterns;) {
        CompareBlock(kernels, function, BlockOfFloats(start, stride), mine);
      }
      std::lock_guard<std::mutex> lock(mutex);
      for (size_t t = 0; t < kernels.size(); ++t) {
        if (mine[t].ulps > worst[t].ulps) worst[t] = mine[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return worst;
}

TEST(FloatAccuracyTest, FunctionsOverTheWholeRange) {
  const uint64_t stride = std::getenv("KILN_FULL") != nullptr ? 1 : 4099;
  std::vector<std::unique_ptr<CodegenBackend>> backends;
  for (bool avx512 : {false, true}) {
    if (avx512 && !HostHasAvx512()) continue;
    auto backend = NewCodegenBackend(X86Target(avx512));
    ASSERT_TRUE(backend.ok()) << backend.status();
    backends.push_back(*std::move(backend));
  }
  for (const Function& function : kFunctions) {
    const std::string name(InfoOf(function.op).name);
    Kernels kernels;
    for (const auto& backend : backends) {
      auto kernel = CompiledKernel::Create(backend.get(), FunctionKernel(function.op, v1::F32, 1));
      ASSERT_TRUE(kernel.ok()) << name << ": " << kernel.status();
      kernels.push_back(std::make_shared<CompiledKernel>(*std::move(kernel)));
    }
    const std::vector<Worst> worst = WorstOfFloats(kernels, function, stride);
    for (size_t t = 0; t < kernels.size(); ++t) {
      const std::string target = t == 0 ? "avx2" : "avx512";
      std::cout << name << ", " << target << ": " << worst[t].ulps << " ulp at " << worst[t].at << std::endl;
      RecordProperty(absl::StrCat(name, "_", target), std::to_string(worst[t].ulps));
      EXPECT_LE(worst[t].ulps, kUlpMax)
          << target << ": " << name << "(" << std::hexfloat << worst[t].at << " = " << std::defaultfloat
          << worst[t].at << ") = " << worst[t].got << ", not " << function.exact_double(worst[t].at);
    }
  }
}

TEST_P(MathAccuracyTest, DoubleFunctionsOnASample) {
  std::mt19937_64 random(20261121);
  std::vector<double> x;
  for (int k = 0; k < 40000; ++k) {
    const uint64_t bits = random();
    double any;
    std::memcpy(&any, &bits, sizeof(any));
    x.push_back(any);
    x.push_back(std::uniform_real_distribution<double>(-2, 2)(random));
    x.push_back(std::uniform_real_distribution<double>(-50, 50)(random));
    x.push_back(std::uniform_real_distribution<double>(-800, 800)(random));
  }
  for (double special : {0.0, 1.0, 0.5, 2.0, 709.78, 709.79, 745.1, 745.2, 1e22, 1e308, 5e-324, 2.3e-308,
                         static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    x.push_back(special);
    x.push_back(-special);
  }
  for (const Function& function : kFunctions) {
    const std::vector<double> got = Run(function.op, v1::F64, x);
    double worst = 0;
    size_t at = 0;
    for (size_t k = 0; k < x.size(); ++k) {
      const double ulps = Ulps<double>(got[k], function.exact(x[k]));
      if (ulps > worst) worst = ulps, at = k;
    }
    RecordProperty(std::string(InfoOf(function.op).name), std::to_string(worst));
    EXPECT_LE(worst, function.ulp_double) << InfoOf(function.op).name << "(" << x[at] << ") = " << got[at]
                                          << ", not " << static_cast<double>(function.exact(x[at]));
  }
}

struct Function2 {
  LoopOpcode op;
  long double (*exact)(long double, long double);
};

TEST_P(MathAccuracyTest, FunctionsOfTwoArguments) {
  const Function2 functions[] = {
      {LoopOpcode::kPow, powl}, {LoopOpcode::kAtan2, atan2l}, {LoopOpcode::kFmod, fmodl}};
  std::mt19937_64 random(7);
  std::vector<double> x, y;
  const double specials[] = {0.0,
                             1.0,
                             2.0,
                             3.0,
                             0.5,
                             -0.0,
                             -1.0,
                             -2.0,
                             -3.0,
                             -0.5,
                             1e-310,
                             1e300,
                             -1e300,
                             static_cast<double>(INFINITY),
                             -static_cast<double>(INFINITY),
                             static_cast<double>(NAN)};
  for (double a : specials) {
    for (double c : specials) x.push_back(a), y.push_back(c);
  }
  for (int k = 0; k < 60000; ++k) {
    uint64_t bits = random();
    double any;
    std::memcpy(&any, &bits, sizeof(any));
    x.push_back(k % 3 == 0 ? any : std::uniform_real_distribution<double>(-20, 20)(random));
    bits = random();
    std::memcpy(&any, &bits, sizeof(any));
    y.push_back(k % 5 == 0   ? any
                : k % 5 == 1 ? static_cast<double>(static_cast<int>(random() % 64) - 32)
                             : std::uniform_real_distribution<double>(-20, 20)(random));
  }
  std::vector<float> xf(x.begin(), x.end()), yf(y.begin(), y.end());
  for (const Function2& function : functions) {
    const std::vector<double> got = Run(function.op, v1::F64, x, &y);
    const std::vector<float> got_float = Run(function.op, v1::F32, xf, &yf);
    double worst = 0, worst_float = 0;
    size_t at = 0, at_float = 0;
    for (size_t k = 0; k < x.size(); ++k) {
      const double ulps = Ulps<double>(got[k], function.exact(x[k], y[k]));
      if (ulps > worst) worst = ulps, at = k;
      const double ulps_float = Ulps<float>(got_float[k], function.exact(xf[k], yf[k]));
      if (ulps_float > worst_float) worst_float = ulps_float, at_float = k;
    }
    RecordProperty(std::string(InfoOf(function.op).name), std::to_string(worst));
    EXPECT_LE(worst, kUlpMax) << InfoOf(function.op).name << "(" << x[at] << ", " << y[at]
                              << ") = " << got[at] << ", not "
                              << static_cast<double>(function.exact(x[at], y[at]));
    EXPECT_LE(worst_float, kUlpMax) << "float " << InfoOf(function.op).name << "(" << xf[at_float] << ", "
                                    << yf[at_float] << ") = " << got_float[at_float] << ", not "
                                    << static_cast<double>(function.exact(xf[at_float], yf[at_float]));
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, MathAccuracyTest, testing::Bool(), X86TargetName);

}  // namespace
}  // namespace kiln
