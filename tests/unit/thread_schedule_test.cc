// The rules of a GPU's schedules: what they choose on which machine, what they refuse, what is worth
// measuring.
#include "compiler/schedule/thread_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "compiler/graph/schedule_text.h"
#include "compiler/ir/kernel_builder.h"
#include "compiler/ir/verify_kernel.h"
#include "compiler/schedule/long_sums.h"
#include "compiler/target/machine.h"
#include "tests/conformance/gpu_target.h"
#include "tests/unit/schedule_kernels.h"

namespace kiln {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Machine MachineNamed(const char* name) {
  v1::Target target = GpuTarget("sm_90");
  target.set_machine(name);
  return MachineOf(target);
}

v1::ThreadSchedule Chosen(const v1::Kernel& kernel, const char* machine = "") {
  EXPECT_TRUE(VerifyKernel(kernel).ok()) << VerifyKernel(kernel);
  v1::Kernel scheduled = kernel;
  const absl::Status status = ScheduleThreads(MachineNamed(machine), &scheduled);
  EXPECT_TRUE(status.ok()) << status;
  return scheduled.schedule().threads();
}

std::string TextOf(const v1::Kernel& kernel, const char* machine = "") {
  return ScheduleText(Chosen(kernel, machine));
}

// y = f(x), which reads every `stride`th element.
v1::Kernel Pointwise(int64_t points, int64_t stride, LoopOpcode f) {
  KernelBuilder m;
  const uint32_t x = m.Buffer(v1::F32, v1::READ, m.Const(points * stride)),
                 y = m.Buffer(v1::F32, v1::WRITE, m.Const(points));
  m.Outer(m.Const(points));
  m.BeginStage({});
  const uint32_t index = stride == 1 ? m.Var(0) : m.Mul(m.Var(0), m.Const(stride));
  m.Store(y, m.Var(0), m.Op(f, v1::F32, {m.Load(x, index)}));
  m.Schedule(1, 1, v1::VECTOR_OUTER_LAST);
  return m.Build();
}

// out = sin(x) + y, where y is loaded last, from a buffer that the kernel may write or does not.
v1::Kernel LateLoad(v1::BufferAccess access) {
  KernelBuilder m;
  const uint32_t n = m.Const(1000);
  const uint32_t x = m.Buffer(v1::F32, v1::READ, n), y = m.Buffer(v1::F32, access, n),
                 out = m.Buffer(v1::F32, v1::WRITE, n);
  m.Outer(n);
  m.BeginStage({});
  const uint32_t sine = m.Op(LoopOpcode::kSin, v1::F32, {m.Load(x, m.Var(0))});
  m.Store(out, m.Var(0), m.Op(LoopOpcode::kAdd, v1::F32, {sine, m.Load(y, m.Var(0))}));
  m.Schedule(1, 1, v1::VECTOR_OUTER_LAST);
  return m.Build();
}

v1::Kernel RandomNumbers(int64_t points) {
  KernelBuilder m;
  const uint32_t y = m.Buffer(v1::I64, v1::WRITE, m.Const(points));
  m.Outer(m.Const(points));
  m.BeginStage({});
  const uint32_t seed = m.Int(v1::I64, 7), at = m.Index(m.Var(0)), number = m.Int(v1::I64, 1);
  m.Store(y, m.Var(0), m.Op(LoopOpcode::kRandBits, v1::I64, {seed, at, number}));
  m.Schedule(1, 1, v1::VECTOR_OUTER_LAST);
  return m.Build();
}

// Sums of a matrix's columns, each so many times.
v1::Kernel ColumnSums(int64_t rows, int64_t columns, int times = 1) {
  KernelBuilder m;
  const uint32_t in = m.Buffer(v1::F32, v1::READ, m.Const(rows * columns)),
                 out = m.Buffer(v1::F32, v1::WRITE, m.Const(columns));
  m.Outer(m.Const(columns));
  m.BeginStage({m.Const(rows)});
  const uint32_t value = m.Load(in, m.Add(m.Mul(m.Var(1), m.Const(columns)), m.Var(0)));
  std::vector<uint32_t> sums;
  for (int i = 0; i < times; ++i) sums.push_back(m.Reduce(v1::REDUCE_SUM, value));
  m.BeginStage({});
  uint32_t sum = sums[0];
  for (int i = 1; i < times; ++i) sum = m.Op(LoopOpcode::kAdd, v1::F32, {sum, sums[i]});
  m.Store(out, m.Var(0), sum);
  m.Schedule(1, 1, v1::VECTOR_OUTER_LAST);
  return m.Build();
}

v1::Kernel Transpose(int64_t side, bool of_sines = false) {
  KernelBuilder m;
  const uint32_t n = m.Const(side), all = m.Const(side * side);
  const uint32_t in = m.Buffer(v1::F32, v1::READ, all), out = m.Buffer(v1::F32, v1::WRITE, all);
  m.Outer(n);
  m.Outer(n);
  m.BeginStage({});
  uint32_t x = m.Load(in, m.Add(m.Mul(m.Var(1), n), m.Var(0)));
  if (of_sines) x = m.Op(LoopOpcode::kSin, v1::F32, {x});
  m.Store(out, m.Add(m.Mul(m.Var(0), n), m.Var(1)), x);
  m.Schedule(1, 1, v1::VECTOR_OUTER_LAST);
  return m.Build();
}

// Ops 1, 4 and 5: maximum, exponential and its sum, of rows whose elements are in `planes` of columns.
v1::Kernel Softmax(int64_t rows, int64_t columns, int64_t planes = 1) {
  KernelBuilder m;
  const uint32_t c = m.Const(columns), n = m.Const(rows * planes * columns);
  const uint32_t in = m.Buffer(v1::F32, v1::READ, n), out = m.Buffer(v1::F32, v1::WRITE, n);
  m.Outer(m.Const(rows));
  uint32_t index = m.Add(m.Mul(m.Var(0), m.Const(planes * columns)), m.Var(1));
  std::vector<uint32_t> loops = {c};
  if (planes > 1) {
    index = m.Add(m.Add(m.Mul(m.Var(0), m.Const(planes * columns)), m.Mul(m.Var(1), c)), m.Var(2));
    loops = {m.Const(planes), c};
  }
  m.BeginStage(loops);
  const uint32_t most = m.Reduce(v1::REDUCE_MAX, m.Load(in, index));
  const auto exponential = [&] {
    const uint32_t x = m.Load(in, index);
    return m.Op(LoopOpcode::kSoftmaxExp, v1::F32, {m.Op(LoopOpcode::kSub, v1::F32, {x, most})});
  };
  m.BeginStage(loops);
  const uint32_t sum = m.Reduce(v1::REDUCE_SUM, exponential());
  m.BeginStage({});
  m.Store(out, m.Var(0), m.Op(LoopOpcode::kAdd, v1::F32, {most, m.Op(LoopOpcode::kLog, v1::F32, {sum})}));
  m.Schedule(1, 1, v1::VECTOR_INNER_LAST);
  return m.Build();
}

// Rows reduced, and summed down their columns in strips of 83; op 2 stores the sums.
v1::Kernel Strips(int64_t rows, int64_t columns) {
  KernelBuilder m;
  const uint32_t c = m.Const(columns), n = m.Const(rows * columns);
  const uint32_t in = m.Buffer(v1::F32, v1::READ, n),
                 sums = m.Buffer(v1::F32, v1::READ_WRITE, m.Const((rows / 83 + 1) * columns)),
                 out = m.Buffer(v1::F32, v1::WRITE, m.Const(rows));
  m.Outer(m.Const(rows));
  m.BeginStage({c});
  const uint32_t x = m.Load(in, m.Add(m.Mul(m.Var(0), c), m.Var(1)));
  const uint32_t sum = m.Reduce(v1::REDUCE_SUM, x);
  const uint32_t strip = m.Expr(v1::EXPR_FLOORDIV, {m.Var(0), m.Const(83)});
  m.Store(sums, m.Add(m.Var(1), m.Mul(strip, c)), x, std::nullopt, v1::STORE_ACCUMULATE);
  m.BeginStage({});
  m.Store(out, m.Var(0), sum);
  m.Schedule(1, 83, v1::VECTOR_INNER_LAST);
  return m.Build();
}

// As many points as fill 108 multiprocessors with a vector for each thread, but not 132 or 148.
TEST(ThreadSchedule, ThreadsTakeVectorsWhereTheGpuIsFull) {
  const v1::Kernel kernel = Pointwise(200'000, 1, LoopOpcode::kNeg);
  EXPECT_EQ(TextOf(kernel, "a100"), "256 threads, 4 lanes; aligned code for the kernel");
  EXPECT_EQ(TextOf(kernel, "h100"), "256 threads");
  EXPECT_EQ(TextOf(kernel, "b200"), "256 threads");
}

TEST(ThreadSchedule, LongCodeStandsTwiceOnlyWhereItDiffers) {
  const v1::ThreadSchedule schedule = Chosen(Pointwise(1 << 20, 1, LoopOpcode::kSin));
  EXPECT_EQ(schedule.aligned(), v1::ALIGNED_POINT);
  EXPECT_EQ(schedule.threads(), 128u);
}

TEST(ThreadSchedule, NarrowAccessesGoInGroupsThatFillTheGpu) {
  const v1::Kernel kernel = Pointwise(600'000, 2, LoopOpcode::kNeg);
  EXPECT_EQ(Chosen(kernel, "a100").points().vectors_per_group(), 4u);
  EXPECT_EQ(Chosen(kernel, "h100").points().vectors_per_group(), 2u);
  EXPECT_EQ(Chosen(kernel, "b200").points().vectors_per_group(), 2u);
}

TEST(ThreadSchedule, SeedsAreMadeForSeveralRoundsWhereTheGpuStaysFull) {
  EXPECT_EQ(Chosen(RandomNumbers(int64_t{1} << 24)).points().groups_per_thread(), 4u);
  EXPECT_EQ(Chosen(RandomNumbers(1000)).points().groups_per_thread(), 1u);
}

// 4,480 columns of points are 140 blocks of 32: enough for 108 multiprocessors and 132, not for 148.
TEST(ThreadSchedule, ColumnsAreAsManyAsMultiprocessorsWant) {
  const v1::Kernel kernel = ColumnSums(4096, 4480);
  EXPECT_THAT(TextOf(kernel, "a100"), HasSubstr("1024 threads, 32 rows; loops shared by level 0 0"));
  EXPECT_THAT(TextOf(kernel, "h100"), HasSubstr("1024 threads, 32 rows; "));
  EXPECT_THAT(TextOf(kernel, "b200"), HasSubstr("1024 threads, 64 rows; "));
  EXPECT_THAT(Chosen(kernel, "b200").unroll(), ElementsAre(8, 1));
  EXPECT_TRUE(Chosen(ColumnSums(4096, 1 << 20)).has_points());  // each has its thread
  EXPECT_TRUE(Chosen(ColumnSums(6, 64)).has_points());          // too short to be shared
}

// With few columns, and with what rows reduce beyond the shared memory of more: points are threads' own, and
// whatever is chosen is allowed.
TEST(ThreadSchedule, ManySumsOfShortColumnsShareNoHalfWarp) {
  EXPECT_TRUE(Chosen(ColumnSums(12, 64, 21)).has_points());
  EXPECT_FALSE(Chosen(ColumnSums(12, 64, 4)).has_points()) << "the control: fewer sums are shared";
  for (const int64_t rows : {2, 8, 12, 15, 16, 40, 300}) {
    for (const int64_t columns : {1, 8, 64, 500, 3000}) {
      for (const int times : {1, 5, 11, 21, 40}) Chosen(ColumnSums(rows, columns, times));  // which checks
    }
  }
}

TEST(ThreadSchedule, TilesAreLargeWhereBlocksAreEnough) {
  EXPECT_EQ(TextOf(Transpose(600), "a100"),
            "256 threads, 64 points a tile's side; tiles along i0, %0 transposed, unrolled points");
  EXPECT_THAT(TextOf(Transpose(600), "h100"), HasSubstr("32 points a tile's side"));
  EXPECT_FALSE(Chosen(Transpose(600, /*of_sines=*/true)).tile().unrolled());
  EXPECT_TRUE(Chosen(Transpose(64)).has_points());  // leaves the GPU empty
}

// Rows of a hundred elements are a warp's; so many share blocks.
TEST(ThreadSchedule, ManyShortRowsShareBlocksByTheMultiprocessors) {
  EXPECT_EQ(Chosen(Softmax(10'000, 100), "a100").rows().points_per_block(), 8u);
  EXPECT_EQ(Chosen(Softmax(10'000, 100), "h100").rows().points_per_block(), 1u);
  EXPECT_EQ(Chosen(Softmax(10'000, 100), "b200").rows().points_per_block(), 1u);
  EXPECT_EQ(Chosen(Softmax(20'000, 100), "b200").rows().points_per_block(), 8u);
}

TEST(ThreadSchedule, RowsReadAgainAreKeptInRegisters) {
  const v1::ThreadSchedule schedule = Chosen(Softmax(4096, 4096));
  EXPECT_EQ(ScheduleText(schedule), "256 threads, 4 lanes; aligned code for a point; stages unrolled 4 4 1");
  // Loops that are one share their iterations; they have a single look at the addresses.
  EXPECT_THAT(TextOf(Softmax(4096, 64, 8)),
              HasSubstr("flattened loops of stages 0 1; aligned code for a point"));
}

TEST(ThreadSchedule, LongRowsOfASoftmaxTakeOnePass) {
  EXPECT_THAT(TextOf(Softmax(4096, 32'768)), HasSubstr("%1 and %5 in one pass"));
  EXPECT_FALSE(Chosen(Softmax(4096, 8192)).rows().has_softmax());  // in registers
  // The sums of so long rows are F64.
  EXPECT_FALSE(Chosen(Softmax(16, int64_t{1} << 24)).rows().has_softmax());
}

TEST(ThreadSchedule, StripsAreTriedAndLeftWhereTheyDoNotFit) {
  const v1::ThreadSchedule strips = Chosen(Strips(21'760, 1024));
  EXPECT_THAT(ScheduleText(strips),
              HasSubstr("32 threads, 4 points a block, 4 lanes; strips for the sums %2, 2 blocks"));
  EXPECT_EQ(strips.aligned(), v1::ALIGNED_POINT);
  EXPECT_FALSE(Chosen(Strips(21'760, 65'536)).rows().has_strips());  // more than registers hold
  EXPECT_FALSE(Chosen(Strips(21'760, 1023)).rows().has_strips());    // no whole vectors
}

TEST(ThreadSchedule, LoadsStandFirstWhereSomeWouldComeLater) {
  EXPECT_TRUE(Chosen(LateLoad(v1::READ)).loads_first());
  EXPECT_EQ(TextOf(LateLoad(v1::READ)), "128 threads; loads first");
  EXPECT_FALSE(Chosen(LateLoad(v1::READ_WRITE)).loads_first());  // it may be stored before
  EXPECT_FALSE(Chosen(Pointwise(1000, 1, LoopOpcode::kSin)).loads_first());
}

TEST(ThreadSchedule, PointsAreWideWhere32BitsMayNotHoldThem) {
  EXPECT_FALSE(Chosen(Transpose(1024)).wide_points());
  EXPECT_TRUE(Chosen(Transpose(1 << 15)).wide_points());
  EXPECT_THAT(TextOf(Transpose(1 << 15)), HasSubstr("points in 64 bits"));
  EXPECT_FALSE(Chosen(Pointwise(int64_t{1} << 31, 1, LoopOpcode::kNeg)).wide_points());  // of one loop
  v1::Kernel unknown = Transpose(1024);
  unknown.set_symbol_count(1);
  v1::ExprNode& side = *unknown.mutable_exprs(static_cast<int>(unknown.outer(0)));
  side.set_op(v1::EXPR_SYMBOL);
  side.set_value(0);
  EXPECT_TRUE(Chosen(unknown).wide_points());
}

TEST(ThreadSchedule, SumsAreLongByWhatAThreadAdds) {
  const auto is_long = [](v1::Kernel kernel, uint32_t sum) {
    *kernel.mutable_schedule()->mutable_threads() = Chosen(kernel);
    return IsLongSum(KernelFacts(kernel), sum, 1);
  };
  EXPECT_FALSE(is_long(ColumnSums(512, 1 << 20), 1));  // each has its thread
  EXPECT_TRUE(is_long(ColumnSums(513, 1 << 20), 1));
  EXPECT_FALSE(is_long(ColumnSums(513, 1 << 20), 0));  // a load
  EXPECT_FALSE(is_long(Softmax(4096, 4096), 5));
  EXPECT_TRUE(is_long(Softmax(16, int64_t{1} << 24), 5));
}

TEST(ThreadSchedule, RegistersAreTheRows) {
  const auto chosen = [](const v1::Kernel& kernel, const Machine& machine) {
    return ChooseThreadSchedule(KernelFacts(kernel), machine);
  };
  const v1::Kernel strips = Strips(21'760, 1024), rows = Softmax(4096, 8192),
                   long_rows = Softmax(4096, 32'768);
  Machine machine;
  machine.gpu.registers.strip_sums = 32;
  EXPECT_TRUE(chosen(strips, machine).rows().has_strips());
  machine.gpu.registers.strip_sums = 31;
  EXPECT_FALSE(chosen(strips, machine).rows().has_strips());
  EXPECT_EQ(chosen(strips, Machine()).rows().points_per_block(), 4u);
  machine = Machine();
  machine.gpu.registers_of_multiprocessor /= 2;
  EXPECT_EQ(chosen(strips, machine).rows().points_per_block(), 2u);
  EXPECT_EQ(chosen(rows, Machine()).threads(), 256u);
  machine = Machine();
  machine.gpu.registers.row_iterations = 4;
  EXPECT_EQ(chosen(rows, machine).threads(), 512u);
  EXPECT_EQ(chosen(long_rows, Machine()).unroll(0), 4u);
  machine.gpu.registers.softmax_loads = 8;
  EXPECT_EQ(chosen(long_rows, machine).unroll(0), 2u);
}

TEST(ThreadSchedule, OthersAreAllowedAndEachIsThereOnce) {
  for (const v1::Kernel& kernel :
       {Pointwise(1 << 22, 1, LoopOpcode::kNeg), Pointwise(1 << 22, 2, LoopOpcode::kNeg),
        ColumnSums(4096, 4480), ColumnSums(4096, 1 << 20), Transpose(1024), Softmax(4096, 4096),
        Softmax(20'000, 100), Softmax(4096, 32'768), Strips(21'760, 1024)}) {
    const KernelFacts facts(kernel);
    const Machine machine = MachineNamed("");
    const std::vector<v1::ThreadSchedule> all = ThreadSchedules(facts, machine);
    EXPECT_GT(all.size(), 2u) << ScheduleText(all[0]);
    EXPECT_LE(all.size(), 5u);
    EXPECT_EQ(all[0].SerializeAsString(), ChooseThreadSchedule(facts, machine).SerializeAsString());
    for (size_t k = 0; k < all.size(); ++k) {
      EXPECT_TRUE(CheckThreadSchedule(facts, machine, all[k]).ok()) << ScheduleText(all[k]);
      for (size_t other = 0; other < k; ++other)
        EXPECT_NE(all[k].SerializeAsString(), all[other].SerializeAsString()) << ScheduleText(all[k]);
    }
  }
}

// What follows from the number of threads is chosen again with them.
TEST(ThreadSchedule, OthersUnrollAsManyTurnsAsTheyHave) {
  const v1::Kernel kernel = Softmax(4096, 4096);
  const KernelFacts facts(kernel);
  for (const v1::ThreadSchedule& one : ThreadSchedules(facts, MachineNamed(""))) {
    if (one.threads() == 32) continue;  // more than registers hold
    const uint32_t iterations = 1024 / one.threads();
    EXPECT_THAT(one.unroll(), ElementsAre(iterations, iterations, 1)) << ScheduleText(one);
  }
}

class ThreadScheduleCheck : public ::testing::Test {
 protected:
  using Change = std::function<void(v1::ThreadSchedule&)>;

  absl::Status Changed(const v1::Kernel& kernel, const Change& change) {
    v1::Kernel changed = kernel;
    *changed.mutable_schedule()->mutable_threads() = Chosen(kernel);
    change(*changed.mutable_schedule()->mutable_threads());
    return ScheduleThreads(MachineNamed(""), &changed);
  }

  void Refused(const v1::Kernel& kernel, absl::string_view why, const Change& change) {
    const absl::Status status = Changed(kernel, change);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(why)));
  }

  void Allowed(const v1::Kernel& kernel, const Change& change) {
    const absl::Status status = Changed(kernel, change);
    EXPECT_TRUE(status.ok()) << status;
  }

  const v1::Kernel points_ = Pointwise(1 << 22, 1, LoopOpcode::kNeg);
  const v1::Kernel columns_ = ColumnSums(4096, 4480);
  const v1::Kernel tile_ = Transpose(1024);
  const v1::Kernel rows_ = Softmax(4096, 4096);
  const v1::Kernel softmax_ = Softmax(4096, 32'768);
  const v1::Kernel strips_ = Strips(21'760, 1024);
};

TEST_F(ThreadScheduleCheck, OtherNumbersThanTheRulesAreAllowed) {
  Allowed(points_, [](auto& s) { s.set_lanes(2); });
  Allowed(points_, [](auto& s) { s.set_aligned(v1::ALIGNED_POINT); });
  Allowed(points_, [](auto& s) { s.set_aligned(v1::ALIGNED_NONE); });
  Allowed(points_, [](auto& s) { s.mutable_points()->set_groups_per_thread(4); });
  Allowed(columns_, [](auto& s) { s.mutable_columns()->set_rows(2); });
  Allowed(columns_, [](auto& s) { s.set_unroll(0, 1); });
  Allowed(tile_, [](auto& s) { s.mutable_tile()->set_unrolled(false); });
  Allowed(tile_, [](auto& s) { s.set_wide_points(true); });
  Allowed(rows_, [](auto& s) { s.set_threads(96); });
  Allowed(rows_, [](auto& s) { s.set_aligned(v1::ALIGNED_STAGE); });
  Allowed(softmax_, [](auto& s) { s.mutable_rows()->clear_softmax(); });
  Allowed(strips_, [](auto& s) { s.mutable_rows()->mutable_strips()->set_blocks(0); });
}

TEST_F(ThreadScheduleCheck, TheFormIsTheKernels) {
  Refused(rows_, "no form is set", [](auto& s) { s.clear_form(); });
  Refused(rows_, "a block shares a point", [](auto& s) { s.mutable_points(); });
  Refused(points_, "no block can share a point", [](auto& s) { s.mutable_rows(); });
  Refused(Pointwise(1000, 2, LoopOpcode::kNeg), "loops that rows of threads share",
          [](auto& s) { s.mutable_columns()->set_rows(4); });
  Refused(columns_, "tiles need two outer loops", [](auto& s) { s.mutable_tile()->set_side(32); });
  for (const uint32_t threads : {0u, 100u, 2048u}) {
    Refused(rows_, "where a multiple of 32 up to 1024", [&](auto& s) { s.set_threads(threads); });
  }
}

TEST_F(ThreadScheduleCheck, LanesRunAlongWhatIsAccessed) {
  for (const uint32_t lanes : {0u, 3u, 8u}) {
    Refused(points_, "where a power of two up to 4", [&](auto& s) { s.set_lanes(lanes); });
  }
  Refused(columns_, "up to 1 ", [](auto& s) { s.set_lanes(2); });
  Refused(tile_, "up to 1 ", [](auto& s) { s.set_lanes(4); });
  Refused(Pointwise(1 << 22, 2, LoopOpcode::kNeg), "up to 1 ", [](auto& s) { s.set_lanes(2); });
}

TEST_F(ThreadScheduleCheck, OneLookAtAddressesIsEnough) {
  Refused(points_, "for rows without strips", [](auto& s) { s.set_aligned(v1::ALIGNED_STAGE); });
  Refused(columns_, "of scalars", [](auto& s) { s.set_aligned(v1::ALIGNED_POINT); });
  Refused(rows_, "of some points", [](auto& s) { s.set_aligned(v1::ALIGNED_KERNEL); });
  Refused(strips_, "for rows without strips", [](auto& s) { s.set_aligned(v1::ALIGNED_STAGE); });
  Refused(Softmax(4096, 64, 8), "in one run of a loop and not in another",
          [](auto& s) { s.mutable_rows()->clear_flattened(); });
  Refused(points_, "unknown code", [](auto& s) { s.set_aligned(static_cast<v1::AlignedCode>(9)); });
}

TEST_F(ThreadScheduleCheck, ThreadsTakeAFewPoints) {
  Allowed(points_, [](auto& s) {  // of 4 lanes: 16 points
    s.mutable_points()->set_vectors_per_group(4);
    s.mutable_points()->set_groups_per_thread(1);
  });
  for (const auto& [group, groups] : {std::pair{0u, 1u}, {1u, 0u}, {8u, 1u}, {16u, 1u}, {1u, 8u}}) {
    Refused(points_, "16 points a thread are the most", [&](auto& s) {
      s.mutable_points()->set_vectors_per_group(group);
      s.mutable_points()->set_groups_per_thread(groups);
    });
  }
}

TEST_F(ThreadScheduleCheck, PointsAreNumberedInBitsThatHoldThem) {
  Refused(Transpose(1 << 15), "32 bits may not hold", [](auto& s) { s.set_wide_points(false); });
  Refused(points_, "of one outer loop", [](auto& s) { s.set_wide_points(true); });
}

TEST_F(ThreadScheduleCheck, ColumnsHaveRowsThatDivide) {
  for (const uint32_t rows : {0u, 1u, 3u, 256u}) {
    Refused(columns_, "where a power of two up to 128",
            [&](auto& s) { s.mutable_columns()->set_rows(rows); });
  }
  Refused(columns_, "of 2 stages", [](auto& s) { s.mutable_columns()->add_levels(0); });
  Refused(columns_, "a loop that stage 0 does not have",
          [](auto& s) { s.mutable_columns()->set_levels(0, 1); });
}

TEST_F(ThreadScheduleCheck, TilesHoldLoadsThatAreTransposed) {
  Refused(tile_, "is not before the last", [](auto& s) { s.mutable_tile()->set_loop(1); });
  Refused(tile_, "no load along", [](auto& s) { s.mutable_tile()->set_transposed(0, 1); });
  Refused(tile_, "no load along", [](auto& s) { s.mutable_tile()->add_transposed(0); });
  Refused(tile_, "without transposed loads", [](auto& s) { s.mutable_tile()->clear_transposed(); });
  for (const uint32_t side : {0u, 16u, 48u}) {
    Refused(tile_, "points a side", [&](auto& s) { s.mutable_tile()->set_side(side); });
  }
  Allowed(tile_, [](auto& s) { s.set_threads(256); });  // 16 for each
  Refused(tile_, "64 points a side by 128 threads", [](auto& s) { s.set_threads(128); });
}

TEST_F(ThreadScheduleCheck, RowsKeepWhatTheKernelComputes) {
  Refused(rows_, "points a block",
          [](auto& s) { s.mutable_rows()->set_points_per_block(2); });  // of a block's threads
  Refused(rows_, "points a block", [](auto& s) { s.mutable_rows()->set_points_per_block(0); });
  Refused(rows_, "cannot be flattened", [](auto& s) { s.mutable_rows()->add_flattened(0); });
  Refused(Softmax(4096, 64, 8), "cannot be flattened",
          [](auto& s) { s.mutable_rows()->set_flattened(1, 0); });
  Refused(softmax_, "that the kernel does not compute",
          [](auto& s) { s.mutable_rows()->mutable_softmax()->set_sum(4); });
  Refused(softmax_, "kept in F64", [](auto& s) {
    s.set_threads(32);
    s.set_lanes(1);
    s.set_aligned(v1::ALIGNED_NONE);
  });
}

TEST_F(ThreadScheduleCheck, StripsFit) {
  Refused(strips_, "other stores than all",
          [](auto& s) { s.mutable_rows()->mutable_strips()->set_stores(0, 0); });
  Refused(strips_, "other stores than all",
          [](auto& s) { s.mutable_rows()->mutable_strips()->clear_stores(); });
  Refused(strips_, "blocks of a multiprocessor",
          [](auto& s) { s.mutable_rows()->mutable_strips()->set_blocks(33); });
  Refused(strips_, "are not unrolled", [](auto& s) { s.set_unroll(0, 1); });
  Refused(Strips(21'760, 8192), "too few registers", [](auto& s) {
    s.set_threads(32);
    s.mutable_rows()->set_points_per_block(4);
    s.set_unroll(0, 64);
  });
}

TEST_F(ThreadScheduleCheck, UnrolledBodiesAreOfLoops) {
  Refused(rows_, "of 3 stages", [](auto& s) { s.add_unroll(1); });
  Refused(rows_, "0 unrolled bodies of stage 0, where 1 to 64", [](auto& s) { s.set_unroll(0, 0); });
  Refused(rows_, "65 unrolled bodies", [](auto& s) { s.set_unroll(1, 65); });
  Refused(rows_, "where 1 to 1 ", [](auto& s) { s.set_unroll(2, 2); });  // there is no loop
}

TEST_F(ThreadScheduleCheck, LoadsComeFirstWhereTheyMay) {
  Refused(points_, "loads_first without a later load", [](auto& s) { s.set_loads_first(true); });
  Refused(LateLoad(v1::READ_WRITE), "loads_first without a later load",
          [](auto& s) { s.set_loads_first(true); });
  Allowed(LateLoad(v1::READ), [](auto& s) { s.set_loads_first(false); });
}

TEST_F(ThreadScheduleCheck, ACpusScheduleIsNone) {
  v1::Kernel kernel = rows_;
  kernel.mutable_schedule()->mutable_vectors()->set_lanes(16);
  EXPECT_EQ(ScheduleThreads(MachineNamed(""), &kernel).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ThreadScheduleCheck, AnExpressionOfTooManyTermsGetsNone) {
  v1::Kernel kernel = testing::KernelOfManyTerms();
  EXPECT_EQ(ScheduleThreads(MachineNamed(""), &kernel).code(), absl::StatusCode::kUnimplemented);
  EXPECT_FALSE(kernel.schedule().has_threads());
}

}  // namespace
}  // namespace kiln
