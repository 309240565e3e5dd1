// Gemms of few rows as kernels of loops, with whatever follows at their elements, by every schedule that is
// listed for them, against the interpreter: on the simulator, on a GPU where there is one, and as machine
// code.
#include "compiler/schedule/gemm_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/graph/schedule_text.h"
#include "compiler/ir/kernel_builder.h"
#include "compiler/ir/verify_kernel.h"
#include "compiler/schedule/thread_schedule.h"
#include "tests/conformance/backend_harness.h"

namespace kiln {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Sizes of a kernel whose rows and columns are counted by one outer loop each, or by several.
struct Sizes {
  v1::DType dtype = v1::F32;
  std::vector<int64_t> rows, columns;
  int64_t depth = 64;
  bool along_n = false;  // the weights' columns lie beside each other, not their terms
  int64_t apart = 0;     // elements between rows of a factor
  bool swapped = false;  // the loops of columns are outside
  // Factors are made where they are read: 2 a of a, and of a's columns a number each; of 8-bit weights and a
  // scale.
  bool makes_a = false, makes_b = false;
};

int64_t Product(const std::vector<int64_t>& sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

// d = f(a b), with a bias for each column, another matrix, and the sum itself as a second result.
class GemmKernel {
 public:
  explicit GemmKernel(const Sizes& s) : sizes_(s), rows_(Product(s.rows)), columns_(Product(s.columns)) {
    std::vector<std::pair<std::vector<int64_t>, uint32_t*>> counted = {{s.rows, &row_},
                                                                       {s.columns, &column_}};
    if (s.swapped) std::swap(counted[0], counted[1]);
    for (const auto& [extents, number] : counted) {
      uint32_t sum = m_.Const(0);
      for (const int64_t extent : extents) sum = m_.Add(m_.Mul(sum, m_.Const(extent)), m_.Var(Outer(extent)));
      if (extents.size() == 1) sum = m_.Var(loops_ - 1);
      *number = sum;
    }
    const int64_t a_row = s.depth + s.apart, b_row = (s.along_n ? columns_ : s.depth) + s.apart;
    a_ = Buffer(s.dtype, v1::READ, rows_ * a_row);
    b_ = Buffer(s.makes_b ? v1::I8 : s.dtype, v1::READ, (s.along_n ? s.depth : columns_) * b_row);
    const uint32_t added = s.makes_a ? Buffer(s.dtype, v1::READ, s.depth) : 0,
                   scale = s.makes_b ? Buffer(v1::F32, v1::READ, columns_) : 0;
    uint32_t scale_of_column = 0;
    if (s.makes_b) {  // which does not change along the loop
      m_.BeginStage({});
      scale_of_column = m_.Load(scale, column_);
    }
    m_.BeginStage({m_.Const(s.depth)});
    const uint32_t k = m_.Var(loops_);
    uint32_t x = Wide(m_.Load(a_, m_.Add(m_.Mul(row_, m_.Const(a_row)), k)));
    if (s.makes_a) {
      x = m_.Op(LoopOpcode::kMul, v1::F32, {x, m_.Float(v1::F32, 2)});
      x = Rounded(m_.Op(LoopOpcode::kAdd, v1::F32, {x, Wide(m_.Load(added, k))}));
    }
    const uint32_t in_b =
        s.along_n ? m_.Add(m_.Mul(k, m_.Const(b_row)), column_) : m_.Add(m_.Mul(column_, m_.Const(b_row)), k);
    uint32_t w = m_.Load(b_, in_b);
    if (s.makes_b) {
      w = m_.Op(LoopOpcode::kCast, v1::F32, {w});
      w = Rounded(m_.Op(LoopOpcode::kMul, v1::F32, {w, scale_of_column}));
    } else {
      w = Wide(w);
    }
    sum_ = m_.Reduce(v1::REDUCE_SUM, m_.Op(LoopOpcode::kMul, v1::F32, {x, w}));
    m_.BeginStage({});
  }

  // What follows; each stores one result.
  void Plain() { Store(sum_); }
  void BiasAndGate() {
    const uint32_t bias = Buffer(v1::F32, v1::READ, columns_);
    const uint32_t gate = Buffer(sizes_.dtype, v1::READ, rows_ * columns_);
    const uint32_t biased = m_.Op(LoopOpcode::kAdd, v1::F32, {sum_, m_.Load(bias, column_)});
    Store(biased);
    const uint32_t sigmoid = m_.Op(LoopOpcode::kSigmoid, v1::F32, {biased});
    m_.BeginStage({});
    Store(m_.Op(LoopOpcode::kMul, v1::F32, {sigmoid, Wide(m_.Load(gate, Element()))}));
  }
  // Adds to what is there, which is no load that may come first.
  void IntoSum() {
    const uint32_t d = Buffer(v1::F32, v1::READ_WRITE, rows_ * columns_);
    m_.Store(d, Element(), m_.Op(LoopOpcode::kAdd, v1::F32, {m_.Load(d, Element()), sum_}));
  }

  v1::Kernel Build() {
    m_.Schedule(static_cast<uint32_t>(loops_), 1,
                sizes_.along_n ? v1::VECTOR_OUTER_LAST : v1::VECTOR_INNER_LAST);
    return m_.Build();
  }
  // Whose products have exact sums.
  std::vector<TestBuffer> Values(std::mt19937_64& random) const {
    std::vector<TestBuffer> buffers;
    for (const auto& [dtype, elements] : buffers_) {
      if (dtype == v1::I8) {
        std::vector<int64_t> values(static_cast<size_t>(elements));
        for (int64_t& value : values) value = static_cast<int64_t>(random() % 9) - 4;
        buffers.push_back(IntBuffer(dtype, values));
        continue;
      }
      std::vector<double> values(static_cast<size_t>(elements));
      for (double& value : values) value = static_cast<double>(random() % 9) / 4 - 1;
      buffers.push_back(FloatBuffer(dtype, values));
    }
    return buffers;
  }

 private:
  uint32_t Outer(int64_t extent) {
    m_.Outer(m_.Const(extent));
    return loops_++;
  }
  uint32_t Buffer(v1::DType dtype, v1::BufferAccess access, int64_t elements) {
    buffers_.emplace_back(dtype, elements);
    return m_.Buffer(dtype, access, m_.Const(elements));
  }
  uint32_t Wide(uint32_t op) {
    return sizes_.dtype == v1::F32 ? op : m_.Op(LoopOpcode::kCast, v1::F32, {op});
  }
  uint32_t Rounded(uint32_t op) {
    return sizes_.dtype == v1::F32 ? op : Wide(m_.Op(LoopOpcode::kCast, sizes_.dtype, {op}));
  }
  uint32_t Element() { return m_.Add(m_.Mul(row_, m_.Const(columns_)), column_); }
  void Store(uint32_t value) {
    const uint32_t d = Buffer(sizes_.dtype, v1::WRITE, rows_ * columns_);
    if (sizes_.dtype != v1::F32) value = m_.Op(LoopOpcode::kCast, sizes_.dtype, {value});
    m_.Store(d, Element(), value);
  }

  KernelBuilder m_;
  const Sizes sizes_;
  const int64_t rows_, columns_;
  uint32_t loops_ = 0, row_ = 0, column_ = 0, a_ = 0, b_ = 0, sum_ = 0;
  std::vector<std::pair<v1::DType, int64_t>> buffers_;
};

std::string Describe(const Sizes& s) {
  return absl::StrCat(v1::DType_Name(s.dtype), " ", absl::StrJoin(s.rows, "·"), " x ",
                      absl::StrJoin(s.columns, "·"), " x ", s.depth, s.along_n ? " along N" : "",
                      s.swapped ? " swapped" : "", s.makes_a ? " a is made" : "",
                      s.makes_b ? " b is made" : "", " apart ", s.apart);
}

std::vector<Sizes> AllSizes(std::mt19937_64& random) {
  std::vector<Sizes> all;
  for (const v1::DType dtype : {v1::F32, v1::F16, v1::BF16}) {
    for (const std::vector<int64_t>& rows : {std::vector<int64_t>{}, {1}, {7}, {2, 3}, {16}}) {
      Sizes s{.dtype = dtype, .rows = rows, .columns = {32}, .depth = 128};
      if (random() % 2 == 0) s.columns = {4, 8};
      s.along_n = random() % 2 == 0;
      s.swapped = random() % 2 == 0;
      s.apart = random() % 2 == 0 ? 0 : 8;
      all.push_back(s);
    }
    all.push_back({.dtype = dtype, .rows = {5}, .columns = {64}, .depth = 1000});
    all.push_back(
        {.dtype = dtype, .rows = {6}, .columns = {2, 16}, .depth = 136, .apart = 3, .makes_a = true});
    all.push_back(
        {.dtype = dtype, .rows = {2, 3}, .columns = {32}, .depth = 136, .apart = 3, .makes_b = true});
    all.push_back(
        {.dtype = dtype, .rows = {4}, .columns = {16}, .depth = 64, .makes_a = true, .makes_b = true});
  }
  return all;
}

// Each kernel with each schedule, by `runner` and the interpreter. The schedules that were seen to be a
// gemm's.
int Agree(KernelRunner& runner, std::mt19937_64& random) {
  int gemms = 0;
  const auto interpreter = NewInterpreterRunner();
  for (const Sizes& sizes : AllSizes(random)) {
    for (void (GemmKernel::*follow)() :
         {&GemmKernel::Plain, &GemmKernel::BiasAndGate, &GemmKernel::IntoSum}) {
      GemmKernel maker(sizes);
      (maker.*follow)();
      const v1::Kernel kernel = maker.Build();
      SCOPED_TRACE(Describe(sizes));
      EXPECT_EQ(VerifyKernel(kernel), absl::OkStatus());
      std::vector<v1::Kernel> scheduled = WithEverySchedule(kernel);
      std::shuffle(scheduled.begin(), scheduled.end(), random);
      if (scheduled.size() > 3) scheduled.resize(3);
      for (const v1::Kernel& one : scheduled) {
        const std::string text = ScheduleText(one.schedule());
        SCOPED_TRACE(text);
        gemms += one.schedule().threads().has_gemm() ? 1 : 0;
        const std::vector<TestBuffer> buffers = maker.Values(random);
        const auto expected = interpreter->Run(kernel, buffers, {}, false, random),
                   got = runner.Run(one, buffers, {}, false, random);
        EXPECT_TRUE(expected.ok()) << expected.status();
        EXPECT_TRUE(got.ok()) << got.status();
        if (!expected.ok() || !got.ok()) return gemms;
        EXPECT_EQ(Difference(got->buffers, expected->buffers, {.ulps = 4}), "");
      }
    }
  }
  return gemms;
}

TEST(GemmThreads, AgreeOnTheSimulator) {
  auto runner = NewSimulatedGpuRunner();
  if (!runner.ok()) GTEST_SKIP() << runner.status().message();
  std::mt19937_64 random(7);
  EXPECT_GT(Agree(**runner, random), 100);
}

// The control: threads that do not wait for each other's pieces.
TEST(GemmThreads, WaitForEachOther) {
  auto runner = NewSimulatedGpuRunner(/*barriers=*/false);
  if (!runner.ok()) GTEST_SKIP() << runner.status().message();
  std::mt19937_64 random(7);
  GemmKernel maker({.rows = {4}, .columns = {16}, .depth = 256});
  maker.Plain();
  v1::Kernel kernel = maker.Build();
  ASSERT_EQ(ScheduleThreads(Machine(), &kernel), absl::OkStatus());
  v1::SkinnySchedule* gemm = kernel.mutable_schedule()->mutable_threads()->mutable_gemm();
  gemm->set_blocks(1);
  const std::vector<TestBuffer> buffers = maker.Values(random);
  const auto expected = NewInterpreterRunner()->Run(kernel, buffers, {}, false, random),
             got = (*runner)->Run(kernel, buffers, {}, false, random);
  ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
  EXPECT_NE(Difference(got->buffers, expected->buffers, {.ulps = 4}), "");
}

TEST(GemmThreads, AgreeOnAGpu) {
  auto runner = NewGpuRunner();
  if (!runner.ok()) GTEST_SKIP() << runner.status().message();
  std::mt19937_64 random(7);
  EXPECT_GT(Agree(**runner, random), 100);
}

TEST(GemmThreads, BecomeMachineCode) {
  auto runner = NewAssemblingRunner();
  if (!runner.ok()) GTEST_SKIP() << runner.status().message();
  for (const v1::DType dtype : {v1::F32, v1::BF16}) {
    GemmKernel maker({.dtype = dtype, .rows = {16}, .columns = {64}, .depth = 256});
    maker.BiasAndGate();
    std::mt19937_64 random(7);
    const auto run = (*runner)->Run(maker.Build(), maker.Values(random), {}, false, random);
    EXPECT_TRUE(run.ok()) << run.status();
  }
}

// ---- the rule

std::optional<GemmLoops> LoopsOf(const v1::Kernel& kernel) { return GemmLoopsOf(KernelFacts(kernel)); }

v1::Kernel Plain(const Sizes& sizes) {
  GemmKernel maker(sizes);
  maker.Plain();
  return maker.Build();
}

TEST(GemmThreads, ReadRowsAndColumnsOfSeveralLoops) {
  const auto loops = LoopsOf(Plain(
      {.dtype = v1::BF16, .rows = {2, 3}, .columns = {4, 8}, .depth = 64, .apart = 8, .swapped = true}));
  ASSERT_TRUE(loops.has_value());
  EXPECT_THAT(loops->columns, ElementsAre(0, 1));
  EXPECT_THAT(loops->rows, ElementsAre(2, 3));
  EXPECT_EQ(loops->gemm.d().rows(), 6);
  EXPECT_EQ(loops->gemm.d().columns(), 32);
  EXPECT_EQ(loops->gemm.a().row_stride(), 72);
  EXPECT_EQ(loops->gemm.b().column_stride(), 72);
  EXPECT_EQ(loops->gemm.dtype(), v1::BF16);
}

// The dtype that a factor is multiplied in is that which has its digits.
TEST(GemmThreads, MakeFactors) {
  for (const v1::DType dtype : {v1::F32, v1::F16, v1::BF16}) {
    const auto loops =
        LoopsOf(Plain({.dtype = dtype, .rows = {4}, .columns = {32}, .makes_a = true, .makes_b = true}));
    ASSERT_TRUE(loops.has_value());
    EXPECT_EQ(loops->gemm.dtype(), dtype);
    EXPECT_FALSE(loops->a.ops.empty());
    EXPECT_FALSE(loops->b.ops.empty());
  }
  // Of 8 bits beside 16, and of 16 beside F32, which is multiplied in F32, as what is not rounded behind the
  // sum.
  const auto of = [](v1::DType x_dtype, v1::DType w_dtype, v1::DType d_dtype = v1::BF16, int64_t depth = 64) {
    KernelBuilder m;
    const uint32_t x = m.Buffer(x_dtype, v1::READ, m.Const(depth)),
                   w = m.Buffer(w_dtype, v1::READ, m.Const(32 * depth)),
                   d = m.Buffer(d_dtype, v1::WRITE, m.Const(32));
    m.Outer(m.Const(32));
    m.BeginStage({m.Const(depth)});
    const auto wide = [&](v1::DType dtype, uint32_t op) {
      return dtype == v1::F32 ? op : m.Op(LoopOpcode::kCast, v1::F32, {op});
    };
    const uint32_t a = wide(x_dtype, m.Load(x, m.Var(1))),
                   b = wide(w_dtype, m.Load(w, m.Add(m.Mul(m.Var(0), m.Const(depth)), m.Var(1))));
    const uint32_t sum = m.Reduce(v1::REDUCE_SUM, m.Op(LoopOpcode::kMul, v1::F32, {a, b}));
    m.BeginStage({});
    m.Store(d, m.Var(0), d_dtype == v1::F32 ? sum : m.Op(LoopOpcode::kCast, d_dtype, {sum}));
    m.Schedule(1, 1, v1::VECTOR_INNER_LAST);
    return LoopsOf(m.Build());
  };
  EXPECT_EQ(of(v1::F16, v1::I8)->gemm.dtype(), v1::F16);
  EXPECT_TRUE(of(v1::F16, v1::I8)->a.ops.empty());
  EXPECT_FALSE(of(v1::F16, v1::I8)->b.ops.empty());
  EXPECT_EQ(of(v1::F32, v1::BF16)->gemm.dtype(), v1::F32);
  EXPECT_EQ(of(v1::F16, v1::BF16)->gemm.dtype(), v1::F32);
  EXPECT_EQ(of(v1::F32, v1::I32)->gemm.dtype(), v1::F32);
  EXPECT_EQ(of(v1::U8, v1::I8)->gemm.dtype(), v1::BF16);
  EXPECT_EQ(of(v1::BF16, v1::BF16)->gemm.dtype(), v1::BF16);
  EXPECT_EQ(of(v1::BF16, v1::BF16, v1::F32)->gemm.dtype(), v1::F32);
  EXPECT_EQ(of(v1::BF16, v1::BF16, v1::BF16, 68)->gemm.dtype(), v1::F32);  // no 16 bytes of 16 bits
}

// Lines that do not start at 16 bytes, or lie across, are read one element after the other.
TEST(GemmThreads, MakeWhatDoesNotLieAsTheyReadIt) {
  const auto loops = LoopsOf(Plain({.rows = {4}, .columns = {32}, .depth = 64, .apart = 2}));
  ASSERT_TRUE(loops.has_value());
  EXPECT_FALSE(loops->a.ops.empty());
  EXPECT_FALSE(loops->b.ops.empty());
  EXPECT_EQ(loops->gemm.a().row_stride(), 64);
  const auto aligned = LoopsOf(Plain({.rows = {4}, .columns = {32}, .depth = 64, .apart = 4}));
  EXPECT_TRUE(aligned->a.ops.empty() && aligned->b.ops.empty());
  EXPECT_EQ(aligned->gemm.b().column_stride(), 68);
}

// Rows are counted as they lie, whatever the order of the loops, and what no factor moves along counts rows.
TEST(GemmThreads, CountRowsAsTheyLie) {
  KernelBuilder m;
  const uint32_t x = m.Buffer(v1::F32, v1::READ, m.Const(2 * 4 * 64)),
                 w = m.Buffer(v1::F32, v1::READ, m.Const(32 * 64)),
                 d = m.Buffer(v1::F32, v1::WRITE, m.Const(4 * 2 * 3 * 32));
  for (const int64_t extent : {4, 2, 3, 32})
    m.Outer(m.Const(extent));  // rows 2 × 4 are walked as 4 × 2, each thrice
  m.BeginStage({m.Const(64)});
  const auto place = [&](const std::vector<std::pair<uint32_t, int64_t>>& loops) {
    uint32_t sum = m.Const(0);
    for (const auto& [loop, stride] : loops) sum = m.Add(sum, m.Mul(m.Var(loop), m.Const(stride)));
    return sum;
  };
  const uint32_t a = m.Load(x, m.Add(place({{0, 64}, {1, 256}}), m.Var(4))),
                 b = m.Load(w, m.Add(place({{3, 64}}), m.Var(4)));
  const uint32_t sum = m.Reduce(v1::REDUCE_SUM, m.Op(LoopOpcode::kMul, v1::F32, {a, b}));
  m.BeginStage({});
  m.Store(d, place({{0, 192}, {1, 96}, {2, 32}, {3, 1}}), sum);
  m.Schedule(4, 1, v1::VECTOR_INNER_LAST);
  const auto loops = LoopsOf(m.Build());
  ASSERT_TRUE(loops.has_value());
  EXPECT_EQ(loops->gemm.d().rows(), 24);
  EXPECT_EQ(loops->gemm.d().columns(), 32);
  EXPECT_THAT(loops->columns, ElementsAre(3));
}

TEST(GemmThreads, AreOfOneSumOfProducts) {
  // A sum of squares, of a product of the two loops' own, two sums, a maximum.
  const auto kernel = [](const std::function<void(KernelBuilder&, uint32_t x, uint32_t y)>& stage) {
    KernelBuilder m;
    const uint32_t x = m.Buffer(v1::F32, v1::READ, m.Const(64)),
                   y = m.Buffer(v1::F32, v1::READ, m.Const(32 * 64)),
                   d = m.Buffer(v1::F32, v1::WRITE, m.Const(32));
    m.Outer(m.Const(32));
    m.BeginStage({m.Const(64)});
    stage(m, m.Load(x, m.Var(1)), m.Load(y, m.Add(m.Mul(m.Var(0), m.Const(64)), m.Var(1))));
    m.BeginStage({});
    m.Store(d, m.Var(0), m.Float(v1::F32, 0));
    m.Schedule(1, 1, v1::VECTOR_INNER_LAST);
    return m.Build();
  };
  const auto mul = [](KernelBuilder& m, uint32_t a, uint32_t b) {
    return m.Op(LoopOpcode::kMul, v1::F32, {a, b});
  };
  EXPECT_TRUE(
      LoopsOf(kernel([&](auto& m, auto x, auto y) { m.Reduce(v1::REDUCE_SUM, mul(m, x, y)); })).has_value());
  EXPECT_FALSE(
      LoopsOf(kernel([&](auto& m, auto, auto y) { m.Reduce(v1::REDUCE_SUM, mul(m, y, y)); })).has_value());
  EXPECT_FALSE(LoopsOf(kernel([&](auto& m, auto x, auto y) {
                 m.Reduce(v1::REDUCE_SUM, mul(m, mul(m, x, y), y));
               })).has_value());
  EXPECT_FALSE(LoopsOf(kernel([&](auto& m, auto x, auto y) {
                 const uint32_t product = mul(m, x, y);
                 m.Reduce(v1::REDUCE_SUM, x);
                 m.Reduce(v1::REDUCE_SUM, product);
               })).has_value());
  EXPECT_FALSE(
      LoopsOf(kernel([&](auto& m, auto x, auto y) { m.Reduce(v1::REDUCE_MAX, mul(m, x, y)); })).has_value());
}

TEST(GemmThreads, TakeEveryPointAsAUnit) {
  v1::Kernel kernel = Plain({.rows = {4}, .columns = {32}, .depth = 256});
  EXPECT_TRUE(LoopsOf(kernel).has_value());
  kernel.mutable_schedule()->set_parallel_dims(1);
  EXPECT_FALSE(LoopsOf(kernel).has_value());
  kernel.mutable_schedule()->set_parallel_dims(2);
  kernel.mutable_schedule()->set_chunk(2);
  EXPECT_FALSE(LoopsOf(kernel).has_value());
}

TEST(GemmThreads, LeaveTheRestToOtherRules) {
  const auto chooses = [](const Sizes& sizes, const Machine& machine = {}) {
    const v1::Kernel kernel = Plain(sizes);
    const auto schedule = ChooseGemmThreads(KernelFacts(kernel), machine);
    return schedule.has_value();
  };
  const Sizes fits{.rows = {4}, .columns = {32}, .depth = 256};
  EXPECT_TRUE(chooses(fits));
  const auto other = [&](const std::function<void(Sizes&)>& change) {
    Sizes sizes = fits;
    change(sizes);
    return chooses(sizes);
  };
  EXPECT_FALSE(other([](Sizes& s) { s.columns = {40}; }));   // no whole tiles
  EXPECT_FALSE(other([](Sizes& s) { s.depth = 254; }));      // no 16 bytes
  EXPECT_FALSE(other([](Sizes& s) { s.depth = 60; }));       // too short
  EXPECT_FALSE(other([](Sizes& s) { s.rows = {25}; }));      // of F32
  EXPECT_FALSE(other([](Sizes& s) { s.depth = 1 << 20; }));  // many additions in a row
  Machine alone;
  alone.gpu.cluster_blocks_max = 1;
  const v1::Kernel kernel = Plain({.rows = {1}, .columns = {16}, .depth = 8192});
  EXPECT_GT(ChooseGemmThreads(KernelFacts(kernel), {})->gemm().blocks(), 1u);
  EXPECT_FALSE(ChooseGemmThreads(KernelFacts(kernel), alone).has_value());
}

TEST(GemmThreads, AreChecked) {
  v1::Kernel kernel = Plain({.rows = {4}, .columns = {32}, .depth = 256});
  ASSERT_EQ(ScheduleThreads(Machine(), &kernel), absl::OkStatus());
  ASSERT_TRUE(kernel.schedule().threads().has_gemm());
  const auto refused = [&](const std::function<void(v1::KernelSchedule&)>& change) {
    v1::Kernel other = kernel;
    change(*other.mutable_schedule());
    return std::string(ScheduleThreads(Machine(), &other).message());
  };
  EXPECT_THAT(refused([](auto&) {}), IsEmpty());
  EXPECT_THAT(refused([](auto& s) { s.mutable_threads()->mutable_gemm()->set_tiles(3); }),
              HasSubstr("3 tiles"));
  EXPECT_THAT(refused([](auto& s) { s.mutable_threads()->mutable_gemm()->set_tiles(4); }),
              HasSubstr("tiles of 64 of 32 columns"));
  EXPECT_THAT(refused([](auto& s) { s.mutable_threads()->set_threads(32 * 32); }), HasSubstr("more to it"));
  EXPECT_THAT(refused([](auto& s) { s.mutable_threads()->set_lanes(4); }), HasSubstr("more to it"));
  EXPECT_THAT(refused([](auto& s) { s.set_members(4); }), HasSubstr("member of a launch"));
  Machine alone;
  alone.gpu.cluster_blocks_max = 1;
  kernel.mutable_schedule()->mutable_threads()->mutable_gemm()->set_blocks(2);
  EXPECT_THAT(std::string(ScheduleThreads(alone, &kernel).message()), HasSubstr("a cluster of 2 blocks"));
  // A sum of squares is no gemm.
  KernelBuilder m;
  const uint32_t x = m.Buffer(v1::F32, v1::READ, m.Const(64)), d = m.Buffer(v1::F32, v1::WRITE, m.Const(1));
  m.Outer(m.Const(1));
  m.BeginStage({m.Const(64)});
  const uint32_t sum = m.Reduce(v1::REDUCE_SUM, m.Load(x, m.Var(1)));
  m.BeginStage({});
  m.Store(d, m.Var(0), sum);
  m.Schedule(1, 1, v1::VECTOR_INNER_LAST);
  v1::Kernel none = m.Build();
  *none.mutable_schedule()->mutable_threads() = kernel.schedule().threads();
  EXPECT_THAT(std::string(ScheduleThreads(Machine(), &none).message()),
              HasSubstr("for a kernel that is none"));
}

TEST(GemmThreads, AreSaidInListings) {
  v1::Kernel kernel = Plain({.rows = {4}, .columns = {32}, .depth = 256});
  ASSERT_EQ(ScheduleThreads(Machine(), &kernel), absl::OkStatus());
  EXPECT_THAT(ScheduleText(kernel.schedule()), HasSubstr("a gemm by 16 columns"));
}

}  // namespace
}  // namespace kiln
