// Kernels through the x86 back-end into a loaded image, checked against plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "compiler/codegen/codegen_backend.h"
#include "compiler/graph/schedule_text.h"
#include "compiler/image/flat_image.h"
#include "compiler/ir/kernel_builder.h"
#include "tests/conformance/host_target.h"
#include "tests/conformance/kernel_runner.h"
#include "tests/conformance/x86_target_test.h"

namespace kiln {
namespace {

// Of a processor with one feature more, null for none.
std::unique_ptr<CodegenBackend> BackendOf(bool avx512, const char* machine) {
  v1::Target target = X86Target(avx512);
  target.set_machine(machine);
  auto backend = NewCodegenBackend(target);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return backend.ok() ? *std::move(backend) : nullptr;
}

class CodegenTest : public X86TargetTest {
 protected:
  KilnStatus Run(const v1::Kernel& kernel, std::vector<void*> buffers, int64_t units,
                 std::vector<int64_t> symbols = {}) {
    auto compiled = CompiledKernel::Create(backend_.get(), kernel);
    EXPECT_TRUE(compiled.ok()) << compiled.status();
    return compiled.ok() ? compiled->Run(buffers, 0, units, symbols) : KilnStatus{};
  }
};

TEST_P(CodegenTest, PointwiseTails) {
  for (int64_t n : {0, 1, 7, 15, 16, 17, 31, 33, 100}) {
    KernelBuilder m;
    const uint32_t count = m.Const(n);
    m.Outer(count);
    const uint32_t a = m.Buffer(v1::F32, v1::READ, count), b = m.Buffer(v1::F32, v1::READ, count);
    const uint32_t out = m.Buffer(v1::F32, v1::WRITE, count), flags = m.Buffer(v1::BOOL, v1::WRITE, count);
    const uint32_t wide = m.Buffer(v1::I64, v1::WRITE, count);
    m.BeginStage({});
    const uint32_t i = m.Var(0);
    const uint32_t x = m.Load(a, i), y = m.Load(b, i);
    m.Store(out, i, m.Op(LoopOpcode::kAdd, v1::F32, {x, y}));
    m.Store(flags, i, m.Op(LoopOpcode::kLt, v1::BOOL, {x, y}));
    m.Store(wide, i, m.Op(LoopOpcode::kAdd, v1::I64, {m.Index(i), m.Op(LoopOpcode::kCast, v1::I64, {x})}));
    m.Schedule(1, 64, v1::VECTOR_OUTER_LAST);
    std::vector<float> va(n), vb(n), vo(n + 1, -1.f);
    std::vector<uint8_t> vf(n + 1, 9);
    std::vector<int64_t> vw(n + 1, -1);
    for (int64_t k = 0; k < n; ++k) va[k] = k * 1.5f - 3, vb[k] = 40.f - k;
    Run(m.Build(), {va.data(), vb.data(), vo.data(), vf.data(), vw.data()}, (n + 63) / 64);
    for (int64_t k = 0; k < n; ++k) {
      EXPECT_EQ(vo[k], va[k] + vb[k]);
      EXPECT_EQ(vf[k], va[k] < vb[k]);
      EXPECT_EQ(vw[k], k + static_cast<int64_t>(va[k]));
    }
    EXPECT_EQ(vo[n], -1.f);
    EXPECT_EQ(vf[n], 9);
    EXPECT_EQ(vw[n], -1);
  }
}

v1::Kernel SumKernel(int64_t rows, int64_t columns, bool of_rows, v1::VectorDim vector_dim) {
  KernelBuilder m;
  const uint32_t results = m.Const(of_rows ? rows : columns);
  m.Outer(results);
  const uint32_t in = m.Buffer(v1::F32, v1::READ, m.Const(rows * columns));
  const uint32_t sum = m.Buffer(v1::F32, v1::WRITE, results);
  const uint32_t max = m.Buffer(v1::F32, v1::WRITE, results);
  const uint32_t arg = m.Buffer(v1::I64, v1::WRITE, results);
  m.BeginStage({m.Const(of_rows ? columns : rows)});
  const uint32_t row = m.Var(of_rows ? 0 : 1), column = m.Var(of_rows ? 1 : 0);
  const uint32_t x = m.Load(in, m.Add(m.Mul(row, m.Const(columns)), column));
  const uint32_t s = m.Reduce(v1::REDUCE_SUM, x);
  const uint32_t x_max = m.Reduce(v1::REDUCE_MAX, x);
  const uint32_t x_arg = m.Reduce(v1::REDUCE_ARGMAX, x);
  m.BeginStage({});
  m.Store(sum, m.Var(0), s);
  m.Store(max, m.Var(0), x_max);
  m.Store(arg, m.Var(0), x_arg);
  m.Schedule(1, 8, vector_dim);
  return m.Build();
}

TEST_P(CodegenTest, RowAndColumnReductions) {
  for (v1::VectorDim vector_dim : {v1::VECTOR_NONE, v1::VECTOR_INNER_LAST, v1::VECTOR_OUTER_LAST}) {
    for (bool of_rows : {true, false}) {
      for (int64_t columns : {1, 5, 16, 47, 64, 200, 1030}) {
        const int64_t rows = 9;
        std::vector<float> in(rows * columns);
        for (size_t k = 0; k < in.size(); ++k) in[k] = static_cast<float>((k * 7919) % 1001) - 500;
        const int64_t n = of_rows ? rows : columns, r = of_rows ? columns : rows;
        std::vector<float> sum(n), max(n);
        std::vector<int64_t> arg(n);
        Run(SumKernel(rows, columns, of_rows, vector_dim), {in.data(), sum.data(), max.data(), arg.data()},
            (n + 7) / 8);
        for (int64_t o = 0; o < n; ++o) {
          double expected = 0;
          int64_t best = 0;
          const auto at = [&](int64_t k) { return in[of_rows ? o * columns + k : k * columns + o]; };
          for (int64_t k = 0; k < r; ++k) {
            expected += at(k);
            if (at(k) > at(best)) best = k;
          }
          EXPECT_EQ(sum[o], static_cast<float>(expected)) << vector_dim << " " << of_rows << " " << columns;
          EXPECT_EQ(max[o], at(best));
          EXPECT_EQ(arg[o], best);
        }
      }
    }
  }
}

TEST_P(CodegenTest, SameBytesTwice) {
  const v1::Kernel kernel = SumKernel(9, 200, true, v1::VECTOR_INNER_LAST);
  auto first = backend_->Emit(kernel, {}, false);
  auto second = backend_->Emit(kernel, {}, true);
  auto fresh = NewCodegenBackend(X86Target(GetParam()));
  ASSERT_TRUE(first.ok() && second.ok() && fresh.ok());
  auto third = (*fresh)->Emit(kernel, {}, false);
  ASSERT_TRUE(third.ok());
  EXPECT_EQ(first->bytes, second->bytes);
  EXPECT_EQ(first->bytes, third->bytes);
  EXPECT_NE(second->listing.find("define"), std::string::npos);
}

v1::Kernel IncrementKernel(std::optional<int64_t> count) {
  KernelBuilder m;
  const uint32_t n = count ? m.Const(*count) : m.Symbol(0);
  m.Outer(n);
  const uint32_t in = m.Buffer(v1::F32, v1::READ, n), out = m.Buffer(v1::F32, v1::WRITE, n);
  m.BeginStage({});
  m.Store(out, m.Var(0), m.Op(LoopOpcode::kAdd, v1::F32, {m.Load(in, m.Var(0)), m.Float(v1::F32, 1)}));
  m.Schedule(1, 4096, v1::VECTOR_OUTER_LAST);
  return m.Build();
}

TEST_P(CodegenTest, ResultsBeyondTheCacheAreStoredPastIt) {
  const int64_t large = (int64_t{1} << 22) + 37, small = 1000;
  const auto passes_cache = [&](std::optional<int64_t> count) {
    auto object = backend_->Emit(IncrementKernel(count), {}, true);
    EXPECT_TRUE(object.ok()) << object.status();
    return object.ok() && object->listing.find("\tvmovntps") != std::string::npos &&
           object->listing.find("\tsfence") != std::string::npos;
  };
  EXPECT_TRUE(passes_cache(large));
  EXPECT_TRUE(passes_cache(std::nullopt));
  EXPECT_FALSE(passes_cache(small));
  std::vector<float> in(large), out(large + 64);
  for (int64_t k = 0; k < large; ++k) in[k] = static_cast<float>(k % 4096);
  const auto line = reinterpret_cast<uintptr_t>(out.data()) / sizeof(float) % 16;
  for (int64_t offset : {int64_t{0}, int64_t{1}}) {  // at a line's begin, and not
    float* at = out.data() + (16 - line) % 16 + offset;
    for (int64_t n : {small, large}) {
      std::fill(out.begin(), out.end(), -1.f);
      Run(IncrementKernel(std::nullopt), {in.data(), at}, (n + 4095) / 4096, {n});
      int64_t wrong = 0;
      for (int64_t k = 0; k < n; ++k) wrong += at[k] != in[k] + 1;
      EXPECT_EQ(wrong, 0) << offset << " " << n;
      EXPECT_EQ(at[n], -1.f);
    }
  }
}

TEST_P(CodegenTest, WhatIsWalkedOnceIsAskedForAhead) {
  const auto ahead = [&](std::optional<int64_t> count) {
    auto object = backend_->Emit(IncrementKernel(count), {}, true);
    EXPECT_TRUE(object.ok()) << object.status();
    return object.ok() && object->listing.find("\tprefetcht1") != std::string::npos;
  };
  EXPECT_TRUE(ahead(int64_t{1} << 18));
  EXPECT_TRUE(ahead(std::nullopt));
  EXPECT_FALSE(ahead((int64_t{1} << 18) - 1));  // stays in the cache
  backend_ = BackendOf(GetParam(), "zen5");
  EXPECT_FALSE(ahead(int64_t{1} << 18));  // the processor does
}

TEST_P(CodegenTest, RowsThatSeveralStagesReadAreReadAhead) {
  const int64_t columns = 1000;
  const auto kernel = [&](int64_t rows) {
    KernelBuilder m;
    const uint32_t c = m.Const(columns), n = m.Const(rows * columns);
    const uint32_t in = m.Buffer(v1::F32, v1::READ, n), out = m.Buffer(v1::F32, v1::WRITE, n);
    m.Outer(m.Const(rows));
    const uint32_t index = m.Add(m.Mul(m.Var(0), c), m.Var(1));
    m.BeginStage({c});
    const uint32_t top = m.Reduce(v1::REDUCE_MAX, m.Load(in, index));
    m.BeginStage({c});
    const uint32_t sum = m.Reduce(v1::REDUCE_SUM, m.Op(LoopOpcode::kSub, v1::F32, {m.Load(in, index), top}));
    m.BeginStage({c});
    m.Store(out, index, m.Op(LoopOpcode::kSub, v1::F32, {m.Load(in, index), sum}));
    m.Schedule(1, 4, v1::VECTOR_INNER_LAST);
    return m.Build();
  };
  const auto ahead = [&](int64_t rows) {
    auto object = backend_->Emit(kernel(rows), {}, true);
    EXPECT_TRUE(object.ok()) << object.status();
    return object.ok() && object->listing.find("\tprefetcht1") != std::string::npos;
  };
  EXPECT_TRUE(ahead(300));
  EXPECT_FALSE(ahead(20));  // stays in the cache
  const int64_t rows = 300;
  std::vector<float> in(rows * columns), out(rows * columns);
  for (size_t k = 0; k < in.size(); ++k) in[k] = static_cast<float>(k * 7919 % 1001);
  Run(kernel(rows), {in.data(), out.data()}, rows / 4);
  for (int64_t row = 0; row < rows; ++row) {
    const float* begin = in.data() + row * columns;
    const float top = *std::max_element(begin, begin + columns);
    float sum = 0;
    for (int64_t k = 0; k < columns; ++k) sum += begin[k] - top;  // exact
    EXPECT_EQ(out[row * columns + row], begin[row] - sum);
  }
}

// Gives a kernel a schedule of its own.
using Reschedule = std::function<void(const CodegenBackend& backend, v1::Kernel& kernel)>;

// The back-end's schedule of that number, the last one where there are fewer.
Reschedule Alternative(size_t number) {
  return [number](const CodegenBackend& backend, v1::Kernel& kernel) {
    const std::vector<v1::KernelSchedule> schedules = backend.Schedules(kernel);
    *kernel.mutable_schedule() = schedules[std::min(number, schedules.size() - 1)];
  };
}

// What becomes of rows whose maximum and exponentials are made first. kSameMemory: a result that lies where
// the operand does, as PlanMemory may have it.
enum class Result { kKept, kFromMaximum, kInPlace, kSameMemory, kAfterAWalk };

v1::Kernel SoftmaxKernel(Result result, int64_t row_count, int64_t columns) {
  const bool in_place = result == Result::kInPlace;
  KernelBuilder m;
  const uint32_t rows = m.Const(row_count), c = m.Const(columns), n = m.Const(row_count * columns);
  const uint32_t in = m.Buffer(v1::F32, in_place ? v1::READ_WRITE : v1::READ, n),
                 biases = m.Buffer(v1::F32, v1::READ, rows), largest = m.Buffer(v1::F32, v1::WRITE, rows);
  const uint32_t out = in_place ? in : m.Buffer(v1::F32, v1::WRITE, n);
  m.Outer(rows);
  const uint32_t row = m.Var(0), index = m.Add(m.Mul(row, c), m.Var(1));
  m.BeginStage({});
  uint32_t plus = m.Load(biases, row);
  if (result == Result::kAfterAWalk) {
    m.BeginStage({c});
    const uint32_t least = m.Reduce(v1::REDUCE_MIN, m.Load(in, index));  // 0
    m.BeginStage({});
    plus = m.Op(LoopOpcode::kAdd, v1::F32, {plus, least});
  }
  m.BeginStage({c});
  const uint32_t top = m.Reduce(v1::REDUCE_MAX, m.Load(in, index));
  m.BeginStage({});
  m.Store(largest, row, top);
  const auto below = [&] { return m.Op(LoopOpcode::kSub, v1::F32, {m.Load(in, index), top}); };
  m.BeginStage({c});
  const uint32_t sum = m.Reduce(v1::REDUCE_SUM, m.Op(LoopOpcode::kExp, v1::F32, {below()}));
  m.BeginStage({});
  const uint32_t part = m.Op(LoopOpcode::kReciprocal, v1::F32, {sum});
  m.BeginStage({c});
  const uint32_t again = below();
  const uint32_t value = result == Result::kFromMaximum ? again : m.Op(LoopOpcode::kExp, v1::F32, {again});
  const uint32_t scaled = m.Op(LoopOpcode::kMul, v1::F32, {value, part});
  m.Store(out, index, m.Op(LoopOpcode::kAdd, v1::F32, {scaled, plus}));
  m.Schedule(1, 1, v1::VECTOR_INNER_LAST);
  return m.Build();
}

// Maximum, exponentials and result of neighbouring rows in one loop, by ranges of one row and more: with the
// exponentials kept, computed from what an earlier walk gave, and in place, where a row may not be touched
// early.
void TestRowsInTurns(CodegenBackend* backend, int64_t columns, const Reschedule& reschedule = nullptr) {
  constexpr int64_t kRows = 1027;
  std::vector<float> start(kRows * columns), bias(kRows);
  for (size_t k = 0; k < start.size(); ++k) start[k] = static_cast<float>(k * 7919 % 1001) / 256;
  for (int64_t row = 0; row < kRows; ++row) bias[row] = static_cast<float>(row);
  for (Result result :
       {Result::kKept, Result::kFromMaximum, Result::kInPlace, Result::kSameMemory, Result::kAfterAWalk}) {
    const bool in_place = result == Result::kInPlace;
    v1::Kernel kernel = SoftmaxKernel(result, kRows, columns);
    if (reschedule) reschedule(*backend, kernel);
    auto compiled = CompiledKernel::Create(backend, kernel);
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    const bool same_memory = in_place || result == Result::kSameMemory;
    std::vector<float> x = start, tops(kRows), other(same_memory ? 0 : start.size());
    std::vector<void*> buffers = {x.data(), bias.data(), tops.data()};
    if (!in_place) buffers.push_back(same_memory ? x.data() : other.data());
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{4, kRows}, {0, 1}, {3, 3}, {1, 4}}) {
      EXPECT_EQ(compiled->Run(buffers, begin, end, {}).code, KILN_OK);
    }
    if (!same_memory) {  // the same bits whatever rows a thread has
      std::vector<float> parts(start.size());
      buffers.back() = parts.data();
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 7}, {7, 8}, {8, 19}, {19, kRows}}) {
        EXPECT_EQ(compiled->Run(buffers, begin, end, {}).code, KILN_OK);
      }
      EXPECT_TRUE(parts == other) << static_cast<int>(result);
    }
    const std::vector<float>& got = same_memory ? x : other;
    int64_t wrong = 0;
    for (int64_t r = 0; r < kRows; ++r) {
      const float* of = start.data() + r * columns;
      const float most = *std::max_element(of, of + columns);
      double total = 0;
      for (int64_t k = 0; k < columns; ++k) total += std::exp(double{of[k]} - most);
      EXPECT_EQ(tops[r], most) << r;
      for (int64_t k = 0; k < columns; ++k) {
        const double below_top = double{of[k]} - most;
        const double expected =
            (result == Result::kFromMaximum ? below_top : std::exp(below_top)) / total + bias[r];
        wrong += std::abs(got[r * columns + k] - expected) > 1e-6 * std::max(1.0, std::abs(expected));
      }
    }
    EXPECT_EQ(wrong, 0) << static_cast<int>(result);
  }
}

TEST_P(CodegenTest, WalksOfNeighbouringRowsShareALoop) { TestRowsInTurns(backend_.get(), 4097); }

// A vector of each row by turns: one accumulator a sum, which for so many numbers is kept in F64. Shorter
// rows take several.
TEST_P(CodegenTest, WalksOfNeighbouringLongRowsTakeVectorsByTurns) {
  const auto backend = BackendOf(GetParam(), "zen5");
  constexpr int64_t kShort = 8191, kLong = 9001;
  TestRowsInTurns(backend.get(), kLong);
  const auto vectors = [&](int64_t columns) {  // that the code asks for
    auto object = backend->Emit(SoftmaxKernel(Result::kKept, 1027, columns), {}, true);
    EXPECT_TRUE(object.ok()) << object.status();
    if (!object.ok()) return size_t{0};
    const std::vector<absl::string_view> parts = absl::StrSplit(object->listing, "\tprefetchnta");
    return parts.size() - 1;
  };
  EXPECT_GT(vectors(kLong), 0);
  EXPECT_GT(vectors(kShort), vectors(kLong));
}

// A sum of e^(x - m), m the maximum of x, need be exact only in the last places of a number above 1.
v1::Kernel LogSumKernel(int64_t rows, int64_t columns) {
  KernelBuilder m;
  const uint32_t count = m.Const(rows), width = m.Const(columns);
  m.Outer(count);
  const uint32_t in = m.Buffer(v1::F32, v1::READ, m.Const(rows * columns));
  const uint32_t largest = m.Buffer(v1::F32, v1::WRITE, count), sums = m.Buffer(v1::F32, v1::WRITE, count);
  const uint32_t index = m.Add(m.Mul(m.Var(0), width), m.Var(1));
  m.BeginStage({width});
  const uint32_t top = m.Reduce(v1::REDUCE_MAX, m.Load(in, index));
  m.BeginStage({});
  m.Store(largest, m.Var(0), top);
  m.BeginStage({width});
  const uint32_t below = m.Op(LoopOpcode::kSub, v1::F32, {m.Load(in, index), top});
  const uint32_t sum = m.Reduce(v1::REDUCE_SUM, m.Op(LoopOpcode::kExp, v1::F32, {below}));
  m.BeginStage({});
  m.Store(sums, m.Var(0), sum);
  m.Schedule(1, 1, v1::VECTOR_INNER_LAST);
  return m.Build();
}

TEST_P(CodegenTest, SumsOfExponentialsBelowTheMaximum) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  // 40,000 are summed in double precision.
  for (int64_t columns : {1, 16, 63, 64, 100, 4097, 40000}) {
    std::vector<std::vector<float>> rows(5, std::vector<float>(columns));
    for (int64_t k = 0; k < columns; ++k) {
      const float x = static_cast<float>((k * 7919 + 13) % 1009) / 64 - 9;
      rows[0][k] = x;
      rows[1][k] = k % 3 == 1 ? -kInfinity : 1000 * x;
      rows[2][k] = k == columns / 2 ? 50 : -1e30f;
      rows[3][k] = 0.25;
      rows[4][k] = k % 2 == 1 ? x - 80 : -x * 1e35f;
    }
    std::vector<float> in, tops(rows.size()), sums(rows.size());
    for (const std::vector<float>& row : rows) in.insert(in.end(), row.begin(), row.end());
    const auto count = static_cast<int64_t>(rows.size());
    Run(LogSumKernel(count, columns), {in.data(), tops.data(), sums.data()}, count);
    for (size_t k = 0; k < rows.size(); ++k) {
      const float top = *std::max_element(rows[k].begin(), rows[k].end());
      double expected = 0;
      for (float x : rows[k]) expected += std::exp(double{x - top});
      EXPECT_EQ(tops[k], top);
      EXPECT_NEAR(sums[k] / expected, 1, 3e-7) << columns << " " << k;
    }
    EXPECT_EQ(sums[2], 1) << columns;
    EXPECT_EQ(sums[3], columns);
  }
}

TEST_P(CodegenTest, SumsOfExponentialsThatAreNoNumbers) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::nanf("");
  // An unrolled iteration and a tail; and a row whose maximum is estimated, from its first vector.
  for (int64_t columns : {71, 1095}) {
    std::vector<float> in(columns), top(1), sum(1);
    auto compiled = CompiledKernel::Create(backend_.get(), LogSumKernel(1, columns));
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    const auto run = [&] { compiled->Run({in.data(), top.data(), sum.data()}, 0, 1, {}); };
    for (float special : {kNan, -kNan, kInfinity}) {
      for (int64_t at = 0; at < columns; at += at < 71 ? 1 : 31) {
        for (int64_t k = 0; k < columns; ++k) in[k] = static_cast<float>(k % 7);
        in[at] = special;
        run();
        EXPECT_EQ(std::isnan(top[0]), std::isnan(special)) << at;
        EXPECT_TRUE(std::isnan(sum[0])) << special << " " << at;
      }
    }
    std::fill(in.begin(), in.end(), -kInfinity);
    run();
    EXPECT_EQ(top[0], -kInfinity);
    EXPECT_TRUE(std::isnan(sum[0]));  // infinity less infinity, as eager has it
    in.back() = -3;                   // the only number, which no estimate comes near
    run();
    EXPECT_EQ(top[0], -3);
    EXPECT_EQ(sum[0], 1);
  }
}

TEST_P(CodegenTest, RowsOfOneWalkAreAskedForIntoTheTargetsLevel) {
  for (const bool l2 : {false, true}) {
    auto object = BackendOf(GetParam(), l2 ? "zen4" : "")->Emit(LogSumKernel(300, 4096), {}, true);
    ASSERT_TRUE(object.ok()) << object.status();
    EXPECT_EQ(object->listing.find("\tprefetcht0") != std::string::npos, !l2);
    EXPECT_EQ(object->listing.find("\tprefetcht1") != std::string::npos, l2);
  }
}

struct Moments {
  uint32_t mean;
  uint32_t squares;  // summed, of what lies off the mean
};

// Of the rows of a matrix.
Moments RowMoments(KernelBuilder& m, uint32_t in, uint32_t index, uint32_t columns, double count) {
  m.BeginStage({columns});
  const uint32_t sum = m.Reduce(v1::REDUCE_SUM, m.Load(in, index));
  m.BeginStage({});
  const uint32_t mean = m.Op(LoopOpcode::kDiv, v1::F32, {sum, m.Float(v1::F32, count)});
  m.BeginStage({columns});
  const uint32_t off = m.Op(LoopOpcode::kSub, v1::F32, {m.Load(in, index), mean});
  return {mean, m.Reduce(v1::REDUCE_SUM, m.Op(LoopOpcode::kMul, v1::F32, {off, off}))};
}

// Rows with a mean that their first vector tells, and with one that it doesn't.
std::vector<std::vector<float>> RowsOfManyMeans(int64_t columns) {
  std::vector<std::vector<float>> rows(6, std::vector<float>(columns));
  for (int64_t k = 0; k < columns; ++k) {
    const float x = static_cast<float>((k * 7919 + 13) % 1009) / 64 - 9;
    rows[0][k] = x;
    rows[1][k] = 0.1F;
    rows[2][k] = 10000 + x;
    rows[3][k] = k < 16 ? 1e6F : x;
    rows[4][k] = k < 16 ? 0 : 1e6F + x;  // squares about 0 would leave nothing of the variance
    rows[5][k] = k < 16 ? 1e6F : k == columns / 2 ? -3e7F : -x;
  }
  return rows;
}

TEST_P(CodegenTest, VariancesAboutAnEstimate) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::nanf("");
  for (int64_t columns : {100, 1023, 1024, 1100, 4096, 40000}) {  // the first two in two walks
    KernelBuilder m;
    std::vector<std::vector<float>> rows = RowsOfManyMeans(columns);
    const auto count = static_cast<int64_t>(rows.size());
    const uint32_t c = m.Const(columns), r = m.Const(count);
    m.Outer(r);
    const uint32_t in = m.Buffer(v1::F32, v1::READ, m.Const(count * columns));
    const uint32_t means = m.Buffer(v1::F32, v1::WRITE, r), squares = m.Buffer(v1::F32, v1::WRITE, r);
    const uint32_t index = m.Add(m.Mul(m.Var(0), c), m.Var(1));
    const Moments moments = RowMoments(m, in, index, c, static_cast<double>(columns));
    m.BeginStage({});
    m.Store(means, m.Var(0), moments.mean);
    m.Store(squares, m.Var(0), moments.squares);
    m.Schedule(1, 1, v1::VECTOR_INNER_LAST);
    auto compiled = CompiledKernel::Create(backend_.get(), m.Build());
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    std::vector<float> mean(count), square(count);
    const auto run = [&] {
      std::vector<float> all;
      for (const std::vector<float>& row : rows) all.insert(all.end(), row.begin(), row.end());
      compiled->Run({all.data(), mean.data(), square.data()}, 0, count, {});
    };
    run();
    for (int64_t k = 0; k < count; ++k) {
      double sum = 0, off = 0, largest = 0;
      for (float x : rows[k]) {
        sum += x;
        off += (double{x} - mean[k]) * (double{x} - mean[k]);
        largest = std::max(largest, std::abs(double{x}));
      }
      EXPECT_NEAR(mean[k], sum / static_cast<double>(columns), 3e-7 * largest) << columns << " " << k;
      EXPECT_NEAR(square[k], off, 2e-6 * off) << columns << " " << k;
    }
    if (columns >= 1024) {  // an estimate is exact where all are equal
      EXPECT_EQ(mean[1], 0.1F) << columns;
      EXPECT_EQ(square[1], 0) << columns;
    }

    for (int64_t at : {int64_t{0}, int64_t{17}, columns - 1}) {
      rows = RowsOfManyMeans(columns);
      rows[0][at] = kNan;
      rows[1][at] = kInfinity;
      rows[2][at] = -kInfinity;
      run();
      EXPECT_TRUE(std::isnan(mean[0])) << at;
      EXPECT_EQ(mean[1], kInfinity) << at;
      EXPECT_EQ(mean[2], -kInfinity) << at;
      for (int64_t k : {0, 1, 2}) EXPECT_TRUE(std::isnan(square[k])) << at << " " << k;
    }
  }
}

// Layer norms of rows from memory, with weights that drive each other out of the cache (in groups of rows)
// and without: by ranges that hold whole groups, parts of one and none, always the same bits. Groups' rows
// are walked one by one or, as the target has it, several at once; sums of the longer ones are kept in F64.
void TestRowsInGroups(bool avx512, bool at_once, int64_t columns, const Reschedule& reschedule = nullptr) {
  constexpr int64_t kRows = 1027;
  const auto count = static_cast<double>(columns);
  const auto backend = BackendOf(avx512, at_once ? "" : "zen5");
  const std::vector<std::vector<float>> some = RowsOfManyMeans(columns);
  std::vector<float> x, weight(columns), bias(columns), shift(kRows);
  for (int64_t r = 0; r < kRows; ++r) {
    const std::vector<float>& row = some[r % some.size()];
    x.insert(x.end(), row.begin(), row.end());
    shift[r] = static_cast<float>(r % 11) - 4;
  }
  for (int64_t k = 0; k < columns; ++k) {
    weight[k] = static_cast<float>(k % 5) / 4 - 1;
    bias[k] = static_cast<float>(k % 7) - 2;
  }
  for (bool weights : {true, false}) {
    KernelBuilder m;
    const uint32_t rows = m.Const(kRows), c = m.Const(columns), n = m.Const(kRows * columns);
    const uint32_t in = m.Buffer(v1::F32, v1::READ, n), factors = m.Buffer(v1::F32, v1::READ, c),
                   biases = m.Buffer(v1::F32, v1::READ, c), shifts = m.Buffer(v1::F32, v1::READ, rows),
                   out = m.Buffer(v1::F32, v1::WRITE, n);
    m.Outer(rows);
    const uint32_t index = m.Add(m.Mul(m.Var(0), c), m.Var(1));
    m.BeginStage({});
    const uint32_t plus = m.Load(shifts, m.Var(0));
    const Moments moments = RowMoments(m, in, index, c, count);
    m.BeginStage({});
    const uint32_t variance = m.Op(LoopOpcode::kDiv, v1::F32, {moments.squares, m.Float(v1::F32, count)});
    const uint32_t scale =
        m.Op(LoopOpcode::kRsqrt, v1::F32, {m.Op(LoopOpcode::kAdd, v1::F32, {variance, m.Float(v1::F32, 1)})});
    m.BeginStage({c});
    uint32_t value = m.Op(LoopOpcode::kSub, v1::F32, {m.Load(in, index), moments.mean});
    value = m.Op(LoopOpcode::kMul, v1::F32, {value, scale});
    if (weights) {
      value = m.Op(LoopOpcode::kMul, v1::F32, {value, m.Load(factors, m.Var(1))});
      value = m.Op(LoopOpcode::kAdd, v1::F32, {value, m.Load(biases, m.Var(1))});
    }
    m.Store(out, index, m.Op(LoopOpcode::kAdd, v1::F32, {value, plus}));
    m.Schedule(1, 1, v1::VECTOR_INNER_LAST);
    v1::Kernel kernel = m.Build();
    if (reschedule) reschedule(*backend, kernel);
    auto compiled = CompiledKernel::Create(backend.get(), kernel);
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    const auto run = [&](const std::vector<std::pair<int64_t, int64_t>>& ranges) {
      std::vector<float> result(x.size(), 1e30F);
      for (const auto& [begin, end] : ranges) {
        EXPECT_EQ(
            compiled->Run({x.data(), weight.data(), bias.data(), shift.data(), result.data()}, begin, end, {})
                .code,
            KILN_OK);
      }
      return result;
    };
    const std::vector<float> whole = run({{0, kRows}});
    int64_t wrong = 0;
    for (int64_t r = 0; r < kRows; ++r) {
      const float* row = x.data() + r * columns;
      double mean = 0, variance = 0;
      for (int64_t k = 0; k < columns; ++k) mean += row[k] / count;
      for (int64_t k = 0; k < columns; ++k) variance += (row[k] - mean) * (row[k] - mean) / count;
      for (int64_t k = 0; k < columns; ++k) {
        double expected = (row[k] - mean) / std::sqrt(variance + 1);
        if (weights) expected = expected * weight[k] + bias[k];
        expected += shift[r];
        // Means of a million are known to a sixteenth.
        wrong += !(std::abs(whole[r * columns + k] - expected) <= 1e-4 * std::max(1.0, std::abs(expected)));
      }
    }
    EXPECT_EQ(wrong, 0) << weights << " " << at_once << " " << columns;
    EXPECT_TRUE(whole == run({{5, 5}, {0, 1}, {1, 4}, {4, 9}, {9, 17}, {17, 1020}, {1020, kRows}}))
        << weights << " " << at_once << " " << columns;
  }
}

TEST_P(CodegenTest, ResultsOfRowsInGroups) {
  TestRowsInGroups(GetParam(), false, 4096);
  TestRowsInGroups(GetParam(), true, 4096);
  TestRowsInGroups(GetParam(), true, 10240);
}

constexpr size_t kSchedulesOfRows = 5;

TEST_P(CodegenTest, EveryScheduleGivesTheSameRows) {
  for (size_t k = 1; k < kSchedulesOfRows; ++k) {
    TestRowsInGroups(GetParam(), true, 4096, Alternative(k));
    TestRowsInTurns(backend_.get(), 4096, Alternative(k));
  }
}

TEST_P(CodegenTest, NumbersOfAScheduleAreTheCodes) {
  const auto with = [](uint32_t group, uint32_t at_once, uint32_t block, uint32_t unroll) {
    return [=](const CodegenBackend& backend, v1::Kernel& kernel) {
      Alternative(0)(backend, kernel);
      v1::RowSchedule& rows = *kernel.mutable_schedule()->mutable_vectors()->mutable_rows();
      ASSERT_TRUE(rows.has_pipeline());
      if (rows.pipeline().group_rows() == 0) return;  // without weights
      rows.mutable_pipeline()->set_group_rows(group);
      rows.mutable_pipeline()->set_rows_at_once(at_once);
      rows.mutable_pipeline()->set_block_columns(block);
      for (int k = 0; k < rows.unroll_size(); ++k) {
        if (kernel.stages(k).inner_size() > 0 && k + 1 < rows.unroll_size()) rows.set_unroll(k, unroll);
      }
    };
  };
  TestRowsInGroups(GetParam(), true, 4096, with(4, 2, 512, 1));
  TestRowsInGroups(GetParam(), true, 4096, with(16, 1, 128, 4));
  TestRowsInGroups(GetParam(), true, 4096, with(2, 2, 1024, 2));
}

TEST_P(CodegenTest, AScheduleIsListedAndChangesTheCode) {
  v1::Kernel kernel = SoftmaxKernel(Result::kKept, 1027, 4097);
  const std::vector<v1::KernelSchedule> schedules = backend_->Schedules(kernel);
  ASSERT_GE(schedules.size(), kSchedulesOfRows);
  std::vector<std::string> images;
  for (const v1::KernelSchedule& schedule : schedules) {
    *kernel.mutable_schedule() = schedule;
    auto object = backend_->Emit(kernel, {}, true);
    ASSERT_TRUE(object.ok()) << object.status();
    EXPECT_NE(object->listing.find(ScheduleText(schedule)), std::string::npos);
    images.push_back(object->bytes);
  }
  kernel.mutable_schedule()->clear_vectors();
  auto chosen = backend_->Emit(kernel, {}, false);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_TRUE(images[0] == chosen->bytes);
  for (size_t k = 1; k < images.size(); ++k) EXPECT_FALSE(images[0] == images[k]) << k;
}

TEST_P(CodegenTest, AScheduleThatAKernelDoesNotAllowIsRefused) {
  v1::Kernel kernel = SoftmaxKernel(Result::kKept, 1027, 4096);
  Alternative(0)(*backend_, kernel);
  kernel.mutable_schedule()->mutable_vectors()->mutable_rows()->mutable_cache()->set_writer(100000);
  EXPECT_EQ(backend_->Emit(kernel, {}, false).status().code(), absl::StatusCode::kInvalidArgument);
  kernel.mutable_schedule()->mutable_threads()->set_threads(256);
  EXPECT_EQ(backend_->Emit(kernel, {}, false).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(backend_->Schedules(kernel).empty());
}

TEST_P(CodegenTest, PositionsComparedWithOneNumber) {
  constexpr int64_t kColumns = 53, kFirst = 3;
  std::vector<int64_t> labels = {-1,        0,        2, 3, 4, 18, 19, 35, 55, 56, (int64_t{1} << 32) + 5,
                                 INT64_MIN, INT64_MAX};
  const auto rows = static_cast<int64_t>(labels.size());
  KernelBuilder m;
  const uint32_t count = m.Const(rows), width = m.Const(kColumns), n = m.Const(rows * kColumns);
  m.Outer(count);
  const uint32_t in = m.Buffer(v1::I64, v1::READ, count), equal = m.Buffer(v1::F32, v1::WRITE, n),
                 differs = m.Buffer(v1::BOOL, v1::WRITE, n);
  m.BeginStage({});
  const uint32_t label = m.Load(in, m.Var(0));
  m.BeginStage({width});
  const uint32_t index = m.Add(m.Mul(m.Var(0), width), m.Var(1));
  const uint32_t position = m.Index(m.Add(m.Var(1), m.Const(kFirst)));
  const uint32_t same = m.Op(LoopOpcode::kEq, v1::BOOL, {label, position});
  const uint32_t number = m.Op(LoopOpcode::kCast, v1::I64, {same});
  m.Store(equal, index, m.Op(LoopOpcode::kCast, v1::F32, {number}));
  m.Store(differs, index, m.Op(LoopOpcode::kNe, v1::BOOL, {position, label}));
  m.Schedule(1, 1, v1::VECTOR_INNER_LAST);
  std::vector<float> ones(rows * kColumns, -1);
  std::vector<uint8_t> others(rows * kColumns, 9);
  Run(m.Build(), {labels.data(), ones.data(), others.data()}, rows);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < kColumns; ++k) {
      const bool here = labels[row] == k + kFirst;
      EXPECT_EQ(ones[row * kColumns + k], here ? 1 : 0) << labels[row] << " " << k;
      EXPECT_EQ(others[row * kColumns + k], here ? 0 : 1) << labels[row] << " " << k;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, CodegenTest, testing::Bool(), X86TargetName);

}  // namespace
}  // namespace kiln
