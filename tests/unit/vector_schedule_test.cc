// The rules of a CPU's schedules: what they choose on which machine, and what they refuse.
#include "compiler/schedule/vector_schedule.h"

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
#include "compiler/schedule/row_pipeline.h"
#include "tests/conformance/host_target.h"
#include "tests/unit/schedule_kernels.h"

namespace kiln {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

VectorTarget TargetOf(const char* machine, bool avx512 = true) {
  v1::Target target = X86Target(avx512);
  target.set_machine(machine);
  absl::StatusOr<VectorTarget> vectors = VectorTarget::FromProto(target);
  EXPECT_TRUE(vectors.ok()) << vectors.status();
  return vectors.ok() ? *vectors : VectorTarget();
}

v1::VectorSchedule Chosen(const v1::Kernel& kernel, const VectorTarget& target) {
  EXPECT_TRUE(VerifyKernel(kernel).ok()) << VerifyKernel(kernel);
  v1::Kernel scheduled = kernel;
  const absl::Status status = ScheduleVectors(target, &scheduled);
  EXPECT_TRUE(status.ok()) << status;
  return scheduled.schedule().vectors();
}

// Ops 1, 3, 5 and 7: sum, mean, what lies off it, sum of squares; 4 and 11 read the row again, 14 and 16 what
// is alike for all rows.
v1::Kernel LayerNorm(int64_t rows, int64_t columns) {
  KernelBuilder m;
  const uint32_t c = m.Const(columns), n = m.Const(rows * columns);
  const uint32_t in = m.Buffer(v1::F32, v1::READ, n), weight = m.Buffer(v1::F32, v1::READ, c);
  const uint32_t bias = m.Buffer(v1::F32, v1::READ, c), out = m.Buffer(v1::F32, v1::WRITE, n);
  m.Outer(m.Const(rows));
  const uint32_t index = m.Add(m.Mul(m.Var(0), c), m.Var(1));
  m.BeginStage({c});
  const uint32_t sum = m.Reduce(v1::REDUCE_SUM, m.Load(in, index));
  m.BeginStage({});
  const uint32_t count = m.Float(v1::F32, static_cast<double>(columns));
  const uint32_t mean = m.Op(LoopOpcode::kDiv, v1::F32, {sum, count});
  m.BeginStage({c});
  const uint32_t x = m.Load(in, index);
  const uint32_t off = m.Op(LoopOpcode::kSub, v1::F32, {x, mean});
  const uint32_t squares = m.Reduce(v1::REDUCE_SUM, m.Op(LoopOpcode::kMul, v1::F32, {off, off}));
  m.BeginStage({});
  const uint32_t again = m.Float(v1::F32, static_cast<double>(columns));
  const uint32_t variance = m.Op(LoopOpcode::kDiv, v1::F32, {squares, again});
  const uint32_t scale = m.Op(LoopOpcode::kRsqrt, v1::F32, {variance});
  m.BeginStage({c});
  const uint32_t y = m.Load(in, index);
  const uint32_t centered = m.Op(LoopOpcode::kSub, v1::F32, {y, mean});
  const uint32_t normal = m.Op(LoopOpcode::kMul, v1::F32, {centered, scale});
  const uint32_t w = m.Load(weight, m.Var(1));
  const uint32_t weighted = m.Op(LoopOpcode::kMul, v1::F32, {normal, w});
  const uint32_t b = m.Load(bias, m.Var(1));
  m.Store(out, index, m.Op(LoopOpcode::kAdd, v1::F32, {weighted, b}));
  m.Schedule(1, 1, v1::VECTOR_INNER_LAST);
  return m.Build();
}

// Ops 1, 4 and 5: maximum, exponential and its sum; 8 is the exponential again. By the inverse: 6 is that of
// the sum, 9 the exponential, 10 their product.
v1::Kernel Softmax(int64_t rows, int64_t columns, bool by_inverse = false) {
  KernelBuilder m;
  const uint32_t c = m.Const(columns), n = m.Const(rows * columns);
  const uint32_t in = m.Buffer(v1::F32, v1::READ, n), out = m.Buffer(v1::F32, v1::WRITE, n);
  m.Outer(m.Const(rows));
  const uint32_t index = m.Add(m.Mul(m.Var(0), c), m.Var(1));
  m.BeginStage({c});
  const uint32_t most = m.Reduce(v1::REDUCE_MAX, m.Load(in, index));
  const auto exponential = [&] {
    const uint32_t x = m.Load(in, index);
    return m.Op(LoopOpcode::kSoftmaxExp, v1::F32, {m.Op(LoopOpcode::kSub, v1::F32, {x, most})});
  };
  m.BeginStage({c});
  const uint32_t sum = m.Reduce(v1::REDUCE_SUM, exponential());
  uint32_t inverse = 0;
  if (by_inverse) {
    m.BeginStage({});
    inverse = m.Op(LoopOpcode::kReciprocal, v1::F32, {sum});
  }
  m.BeginStage({c});
  const uint32_t value = exponential();
  m.Store(out, index,
          by_inverse ? m.Op(LoopOpcode::kMul, v1::F32, {inverse, value})
                     : m.Op(LoopOpcode::kDiv, v1::F32, {value, sum}));
  m.Schedule(1, 1, v1::VECTOR_INNER_LAST);
  return m.Build();
}

// The sum of squares of a row's exponentials off their mean.
v1::Kernel SquaresOfExponentials(int64_t rows, int64_t columns) {
  KernelBuilder m;
  const uint32_t c = m.Const(columns), n = m.Const(rows * columns);
  const uint32_t in = m.Buffer(v1::F32, v1::READ, n), out = m.Buffer(v1::F32, v1::WRITE, m.Const(rows));
  m.Outer(m.Const(rows));
  const uint32_t index = m.Add(m.Mul(m.Var(0), c), m.Var(1));
  const auto exponential = [&] { return m.Op(LoopOpcode::kExp, v1::F32, {m.Load(in, index)}); };
  m.BeginStage({c});
  const uint32_t sum = m.Reduce(v1::REDUCE_SUM, exponential());
  m.BeginStage({});
  const uint32_t count = m.Float(v1::F32, static_cast<double>(columns));
  const uint32_t mean = m.Op(LoopOpcode::kDiv, v1::F32, {sum, count});
  m.BeginStage({c});
  const uint32_t off = m.Op(LoopOpcode::kSub, v1::F32, {exponential(), mean});
  const uint32_t squares = m.Reduce(v1::REDUCE_SUM, m.Op(LoopOpcode::kMul, v1::F32, {off, off}));
  m.BeginStage({});
  m.Store(out, m.Var(0), squares);
  m.Schedule(1, 1, v1::VECTOR_INNER_LAST);
  return m.Build();
}

// So many sums down each column.
v1::Kernel ColumnSums(int64_t columns, int sums, uint32_t chunk) {
  KernelBuilder m;
  const uint32_t c = m.Const(columns), rows = m.Const(512);
  m.Outer(c);
  std::vector<uint32_t> ins, outs;
  for (int k = 0; k < sums; ++k) {
    ins.push_back(m.Buffer(v1::F32, v1::READ, m.Const(columns * 512)));
    outs.push_back(m.Buffer(v1::F32, v1::WRITE, c));
  }
  m.BeginStage({rows});
  std::vector<uint32_t> found;
  for (const uint32_t in : ins) {
    found.push_back(m.Reduce(v1::REDUCE_SUM, m.Load(in, m.Add(m.Mul(m.Var(1), c), m.Var(0)))));
  }
  m.BeginStage({});
  for (int k = 0; k < sums; ++k) m.Store(outs[k], m.Var(0), found[k]);
  m.Schedule(1, chunk, v1::VECTOR_OUTER_LAST);
  return m.Build();
}

v1::Kernel Transpose(bool of_sines) {
  KernelBuilder m;
  const uint32_t n = m.Const(1024);
  const uint32_t in = m.Buffer(v1::F32, v1::READ, m.Const(1024 * 1024));
  const uint32_t out = m.Buffer(v1::F32, v1::WRITE, m.Const(1024 * 1024));
  m.Outer(n);
  m.Outer(n);
  m.BeginStage({});
  uint32_t x = m.Load(in, m.Add(m.Mul(m.Var(1), n), m.Var(0)));
  if (of_sines) x = m.Op(LoopOpcode::kSin, v1::F32, {x});
  m.Store(out, m.Add(m.Mul(m.Var(0), n), m.Var(1)), x);
  m.Schedule(1, 16, v1::VECTOR_OUTER_LAST);
  return m.Build();
}

// 16 MiB copied, by points that are contiguous in each plane. Op 1 stores.
v1::Kernel Planes(v1::DType dtype, int64_t planes) {
  KernelBuilder m;
  const uint32_t n = m.Const(1 << 20), all = m.Const(planes << 20);
  const uint32_t in = m.Buffer(dtype, v1::READ, all), out = m.Buffer(dtype, v1::WRITE, all);
  m.Outer(n);
  m.BeginStage({m.Const(planes)});
  const uint32_t index = m.Add(m.Mul(m.Var(1), n), m.Var(0));
  m.Store(out, index, m.Load(in, index));
  m.Schedule(1, 1 << 16, v1::VECTOR_OUTER_LAST);
  return m.Build();
}

uint32_t LastOp(const v1::Kernel& kernel) {
  return static_cast<uint32_t>(KernelFacts(kernel).ops().size()) - 1;
}

TEST(VectorSchedule, LargeRowsGoInGroupsAsTheMachinePrefetches) {
  const v1::Kernel kernel = LayerNorm(1027, 4096);
  EXPECT_EQ(
      ScheduleText(Chosen(kernel, TargetOf(""))),
      "16 lanes; %1 and %7 in one pass about an estimate of the mean %3; rows in groups of 8, 4 at once, "
      "results by "
      "blocks of 256 columns; nontemporal b3 from 16777216 bytes; prefetch of %4 4 rows ahead into the "
      "second "
      "level");
  EXPECT_EQ(
      ScheduleText(Chosen(kernel, TargetOf("zen5"))),
      "16 lanes; stages unrolled 2 1 2 1 1; %1 and %7 in one pass about an estimate of the mean %3; rows "
      "in groups of "
      "8, 1 at once, results by blocks of 256 columns; nontemporal b3 from 16777216 bytes; prefetch of "
      "%4 6144 "
      "bytes ahead into the first level");
}

TEST(VectorSchedule, StoresThatFillLinesPassTheCacheBy) {
  const v1::Kernel norm = LayerNorm(1027, 4096);
  EXPECT_THAT(Chosen(norm, TargetOf("")).nontemporal_stores(), ElementsAre(LastOp(norm)));  // by neighbours
  const v1::VectorSchedule whole = Chosen(Planes(v1::F32, 4), TargetOf(""));
  EXPECT_THAT(whole.nontemporal(), ElementsAre(1));
  EXPECT_THAT(whole.nontemporal_stores(), ElementsAre(1));
  const v1::VectorSchedule half = Chosen(Planes(v1::BF16, 8), TargetOf(""));  // vectors of 32 bytes
  EXPECT_THAT(half.nontemporal(), ElementsAre(1));
  EXPECT_THAT(half.nontemporal_stores(), IsEmpty());
  EXPECT_THAT(ScheduleText(half),
              HasSubstr("nontemporal b1 from 16777216 bytes, of which no store fills lines"));
  v1::Kernel scalars = Planes(v1::F32, 4);
  scalars.mutable_schedule()->set_vector_dim(v1::VECTOR_NONE);
  EXPECT_THAT(Chosen(scalars, TargetOf("")).nontemporal_stores(), IsEmpty());
}

TEST(VectorSchedule, WhatASmallCacheDoesNotHoldComesFromMemory) {
  const v1::Kernel kernel = LayerNorm(1027, 1024);  // 4 MiB
  const v1::VectorSchedule small = Chosen(kernel, TargetOf("renoir")), large = Chosen(kernel, TargetOf(""));
  EXPECT_EQ(small.rows().pipeline().group_rows(), 8u);
  EXPECT_THAT(small.nontemporal(), ElementsAre(3));
  EXPECT_EQ(small.nontemporal_bytes_min(), uint64_t{4} << 20);
  EXPECT_FALSE(large.rows().has_pipeline());
  EXPECT_THAT(large.nontemporal(), IsEmpty());
  // Of few rows each takes all its passes, and asks for the next one's lines meanwhile.
  const v1::VectorSchedule few = Chosen(LayerNorm(1023, 4352), TargetOf("zen4"));
  EXPECT_FALSE(few.rows().has_pipeline());
  ASSERT_EQ(few.prefetches_size(), 2);
  EXPECT_EQ(few.prefetches(1).load(), 11u);
  EXPECT_EQ(few.prefetches(1).rows_ahead(), 1u);
}

TEST(VectorSchedule, NoMoreVectorsGoSideBySideThanThereAre) {
  v1::VectorSchedule schedule;
  schedule.set_lanes(16);
  const auto side_by_side = [&](int64_t columns) {
    const v1::Kernel kernel = LayerNorm(4, columns);
    const KernelFacts facts(kernel);
    return VectorsSideBySide(facts, schedule, facts.stages()[0], 4);
  };
  EXPECT_EQ(side_by_side(64), 4u);
  EXPECT_EQ(side_by_side(63), 2u);
  EXPECT_EQ(side_by_side(31), 1u);
  EXPECT_EQ(side_by_side(1), 1u);
}

TEST(VectorSchedule, SumsAreLongByWhatAnAccumulatorGets) {
  const auto is_long = [](int64_t columns, uint32_t op, uint32_t unroll) {
    v1::Kernel kernel = LayerNorm(4, columns);
    *kernel.mutable_schedule()->mutable_vectors() = Chosen(kernel, TargetOf(""));
    EXPECT_EQ(kernel.schedule().vectors().lanes(), 16u);
    return IsLongSum(KernelFacts(kernel), op, unroll);
  };
  EXPECT_FALSE(is_long(2048, 1, 4));  // 32 vectors each
  EXPECT_TRUE(is_long(2049, 1, 4));
  EXPECT_TRUE(is_long(2048, 1, 2));
  EXPECT_FALSE(is_long(2049, 0, 4));  // a load
}

TEST(VectorSchedule, ExponentialsAreKeptWhereTheSecondLevelHoldsThem) {
  VectorTarget target = TargetOf("");
  const v1::Kernel kernel = Softmax(64, 16384);
  v1::RowSchedule rows = Chosen(kernel, target).rows();
  EXPECT_EQ(rows.cache().writer(), 4u);
  EXPECT_EQ(rows.cache().reader(), 8u);
  EXPECT_THAT(rows.summed_exponentials(), IsEmpty());  // the cache keeps exact terms
  EXPECT_FALSE(rows.shifted().of_mean());
  EXPECT_EQ(rows.shifted().sum(), 5u);
  target.machine.cpu.second_level_bytes = 64 << 10;
  rows = Chosen(kernel, target).rows();
  EXPECT_FALSE(rows.has_cache());
  EXPECT_THAT(rows.summed_exponentials(), ElementsAre(5));
}

TEST(VectorSchedule, ProductsWithTheInverseOfTheSumScaleWhatIsKept) {
  const v1::VectorSchedule chosen = Chosen(Softmax(64, 16384, /*by_inverse=*/true), TargetOf(""));
  EXPECT_EQ(chosen.rows().cache().reader(), 9u);
  EXPECT_THAT(chosen.rows().cache().scaled(), ElementsAre(10));
  EXPECT_THAT(ScheduleText(chosen), HasSubstr("row cache of %4 for %9, scaled in %10"));
  EXPECT_THAT(Chosen(Softmax(64, 16384), TargetOf("")).rows().cache().scaled(), IsEmpty());
}

// One pass about an estimate of the mean emits its second stage alone, where the kept values would be
// missing.
TEST(VectorSchedule, WhatIsKeptIsOfAStageThatIsEmitted) {
  const v1::VectorSchedule kept = Chosen(SquaresOfExponentials(64, 4096), TargetOf(""));
  EXPECT_TRUE(kept.rows().has_cache());
  EXPECT_FALSE(kept.rows().has_shifted());
  const v1::VectorSchedule large = Chosen(SquaresOfExponentials(64, 1 << 22), TargetOf(""));
  EXPECT_FALSE(large.rows().has_cache());
  EXPECT_TRUE(large.rows().has_shifted());
}

TEST(VectorSchedule, ColumnsTakeAsManyVectorsAsRegistersHold) {
  const auto lanes = [](const v1::Kernel& kernel, bool avx512) {
    return Chosen(kernel, TargetOf("", avx512)).lanes();
  };
  EXPECT_EQ(lanes(ColumnSums(4096, 1, 128), true), 128u);
  EXPECT_EQ(lanes(ColumnSums(4096, 3, 128), true), 64u);
  EXPECT_EQ(lanes(ColumnSums(4096, 3, 128), false), 32u);
  EXPECT_EQ(lanes(ColumnSums(4096, 1, 32), true), 32u);  // a unit's
  EXPECT_EQ(lanes(ColumnSums(20, 1, 128), false), 16u);  // two of 8
}

TEST(VectorSchedule, TransposedLoadsAreTurnedRoundWhereTheBodyIsCheap) {
  const v1::VectorSchedule copy = Chosen(Transpose(false), TargetOf(""));
  ASSERT_TRUE(copy.has_tile());
  EXPECT_THAT(copy.tile().packed(), ElementsAre(0));
  const v1::VectorSchedule sines = Chosen(Transpose(true), TargetOf(""));
  ASSERT_TRUE(sines.has_tile());
  EXPECT_THAT(sines.tile().packed(), IsEmpty());
}

TEST(VectorSchedule, AlternativesLeaveOneRuleOutEach) {
  const v1::Kernel kernel = LayerNorm(1027, 4096);
  const KernelFacts facts(kernel);
  const VectorTarget target = TargetOf("");
  const std::vector<v1::VectorSchedule> all = VectorSchedules(facts, target);
  ASSERT_EQ(all.size(), 5u);  // without nontemporal stores, one pass, a pipeline, prefetches
  EXPECT_EQ(all[0].SerializeAsString(), Chosen(kernel, target).SerializeAsString());
  for (const v1::VectorSchedule& schedule : all) {
    const absl::Status status = CheckVectorSchedule(facts, target, schedule);
    EXPECT_TRUE(status.ok()) << status << ScheduleText(schedule);
  }
}

class VectorScheduleCheck : public ::testing::Test {
 protected:
  using Change = std::function<void(v1::VectorSchedule&)>;

  absl::Status Changed(const v1::Kernel& kernel, const Change& change) {
    v1::Kernel changed = kernel;
    *changed.mutable_schedule()->mutable_vectors() = Chosen(kernel, target_);
    change(*changed.mutable_schedule()->mutable_vectors());
    return ScheduleVectors(target_, &changed);
  }

  void Refused(const v1::Kernel& kernel, absl::string_view why, const Change& change) {
    const absl::Status status = Changed(kernel, change);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(why)));
  }

  const VectorTarget target_ = TargetOf("");
};

TEST_F(VectorScheduleCheck, OtherNumbersThanTheRulesAreAllowed) {
  const absl::Status status = Changed(LayerNorm(1027, 4096), [](v1::VectorSchedule& s) {
    v1::RowPipeline& pipeline = *s.mutable_rows()->mutable_pipeline();
    pipeline.set_group_rows(4);
    pipeline.set_rows_at_once(2);
    pipeline.set_block_columns(512);
    s.mutable_rows()->set_unroll(0, 2);
    s.mutable_rows()->set_unroll(2, 2);
    s.mutable_prefetches(0)->set_rows_ahead(2);
    s.clear_nontemporal();
    s.clear_nontemporal_stores();
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(VectorScheduleCheck, LanesAndWalkAreTheKernels) {
  const v1::Kernel rows = LayerNorm(1027, 4096);
  for (const uint32_t lanes : {0, 4, 8, 12, 32, 1 << 30}) {
    Refused(rows, "lanes, where a power of two from 16 to 16", [&](auto& s) { s.set_lanes(lanes); });
  }
  Refused(rows, "rows go with", [](auto& s) { s.clear_rows(); });
  Refused(rows, "rows go with", [](auto& s) { s.mutable_tile(); });
  Refused(Transpose(false), "rows go with", [](auto& s) { s.mutable_rows(); });
  Refused(ColumnSums(64, 1, 16), "a tile needs", [](auto& s) { s.mutable_tile(); });
  Refused(Transpose(false), "op 1 is no load", [](auto& s) { s.mutable_tile()->add_packed(1); });
  Refused(Transpose(false), "op 7 is no load", [](auto& s) { s.mutable_tile()->add_packed(7); });
  Refused(Transpose(false), "op 0 is no load", [](auto& s) { s.mutable_tile()->add_packed(0); });  // twice
  v1::Kernel scalars = Transpose(false);
  scalars.mutable_schedule()->set_vector_dim(v1::VECTOR_NONE);
  Refused(scalars, "lanes of a kernel of scalars", [](auto& s) { s.set_lanes(16); });
}

TEST_F(VectorScheduleCheck, RowsKeepWhatTheKernelComputes) {
  const v1::Kernel norm = LayerNorm(1027, 4096), softmax = Softmax(64, 4096);
  const auto cache = [&](const v1::Kernel& kernel, uint32_t writer, uint32_t reader) {
    Refused(kernel, "cannot read what op", [&](auto& s) {
      s.mutable_rows()->mutable_cache()->set_writer(writer);
      s.mutable_rows()->mutable_cache()->set_reader(reader);
    });
  };
  cache(norm, 4, 11);
  cache(softmax, 8, 4);
  cache(softmax, 4, 4);
  cache(softmax, 4, 1000);
  Refused(norm, "is no sum of exponentials", [](auto& s) { s.mutable_rows()->add_summed_exponentials(7); });
  Refused(softmax, "op 5 is no sum",
          [](auto& s) { s.mutable_rows()->add_summed_exponentials(5); });  // cached
  const v1::Kernel by_inverse = Softmax(64, 4096, /*by_inverse=*/true);
  for (const uint32_t op : {6, 9, 99}) {
    Refused(by_inverse, "is no product that scales", [&](auto& s) {
      s.mutable_rows()->mutable_cache()->clear_scaled();
      s.mutable_rows()->mutable_cache()->add_scaled(op);
    });
  }
  Refused(by_inverse, "op 10 is no product",
          [](auto& s) { s.mutable_rows()->mutable_cache()->add_scaled(10); });  // twice
  Refused(by_inverse, "op 10 is no product", [](auto& s) { s.mutable_rows()->clear_shifted(); });
  EXPECT_TRUE(Changed(by_inverse, [](auto& s) { s.mutable_rows()->mutable_cache()->clear_scaled(); }).ok());
  const auto shifted = [&](absl::string_view why, void (*change)(v1::ShiftedReduction&)) {
    Refused(norm, why, [&](auto& s) { change(*s.mutable_rows()->mutable_shifted()); });
  };
  shifted("that does not exist", [](auto& r) { r.set_sum(99); });
  shifted("is not what the kernel computes", [](auto& r) { r.set_sum(1); });
  shifted("is not what the kernel computes", [](auto& r) { r.set_center(9); });
  shifted("is not what the kernel computes", [](auto& r) { r.set_of_mean(false); });
  shifted("is not what the kernel computes", [](auto& r) { r.set_reduced(7); });
  shifted("is not what the kernel computes", [](auto& r) { r.set_difference(12); });
  Refused(LayerNorm(4, 15), "rows shorter than a vector", [](auto& s) {
    *s.mutable_rows()->mutable_shifted() = Chosen(LayerNorm(4, 4096), TargetOf("")).rows().shifted();
  });
}

TEST_F(VectorScheduleCheck, PipelinesHaveNumbersThatDivide) {
  const v1::Kernel norm = LayerNorm(1027, 4096);
  const auto pipeline = [&](absl::string_view why, void (*change)(v1::RowPipeline&)) {
    Refused(norm, why, [&](auto& s) { change(*s.mutable_rows()->mutable_pipeline()); });
  };
  pipeline("3 rows at once of a group of 8", [](auto& p) { p.set_rows_at_once(3); });
  pipeline("0 rows at once", [](auto& p) { p.set_rows_at_once(0); });
  pipeline("of a group of 1000", [](auto& p) { p.set_group_rows(1000); });
  pipeline("numbers of a group without one", [](auto& p) { p.set_group_rows(0); });
  pipeline("blocks of 320 columns", [](auto& p) { p.set_block_columns(320); });
  pipeline("blocks of 32 columns", [](auto& p) { p.set_block_columns(32); });
  pipeline("blocks of 4096 columns",
           [](auto& p) { p.set_block_columns(4096); });  // of 64 iterations of a row, not 16
  pipeline("blocks of 0 columns", [](auto& p) { p.set_block_columns(0); });
  v1::Kernel updated = LayerNorm(1027, 4096);
  updated.mutable_buffers(3)->set_access(v1::READ_WRITE);
  Refused(updated, "not made of short passes",
          [](auto& s) { s.mutable_rows()->mutable_pipeline()->set_rows_at_once(1); });
  Refused(Softmax(2048, 4096), "groups need two passes", [](auto& s) {
    s.mutable_rows()->mutable_pipeline()->set_group_rows(8);
    s.mutable_rows()->mutable_pipeline()->set_block_columns(256);
  });
  Refused(norm, "unroll counts of 4 stages of 5",
          [](auto& s) { s.mutable_rows()->mutable_unroll()->RemoveLast(); });
  Refused(norm, "stage 1 unrolled 2 times", [](auto& s) { s.mutable_rows()->set_unroll(1, 2); });
  const v1::Kernel few = LayerNorm(64, 4096);  // without a pipeline
  Refused(few, "stage 0 unrolled 3 times", [](auto& s) { s.mutable_rows()->set_unroll(0, 3); });
  Refused(few, "stage 0 unrolled 4 times", [](auto& s) {  // scalars have one accumulator
    s.Clear();
    s.set_lanes(1);
    for (const uint32_t unroll : {4, 1, 1, 1, 1}) s.mutable_rows()->add_unroll(unroll);
  });
  Refused(few, "stage 0 unrolled 8 times", [](auto& s) { s.mutable_rows()->set_unroll(0, 8); });
  Refused(norm, "unrolled differently", [](auto& s) { s.mutable_rows()->set_unroll(2, 2); });
}

TEST_F(VectorScheduleCheck, MemoryIsThatOfTheKernel) {
  const v1::Kernel norm = LayerNorm(1027, 4096);
  for (const uint32_t buffer : {0, 3, 9}) {  // read, named twice, not there
    Refused(norm, "is not written by one store", [&](auto& s) { s.add_nontemporal(buffer); });
  }
  const auto refused = [&](const v1::Kernel& kernel, const Change& change) {
    Refused(kernel, "stores no vectors of a nontemporal buffer", change);
  };
  for (const uint32_t op : {0u, LastOp(norm), 99u}) {  // a load, named twice, not there
    refused(norm, [&](auto& s) { s.add_nontemporal_stores(op); });
  }
  refused(norm, [](auto& s) { s.clear_nontemporal(); });
  refused(LayerNorm(16, 64), [](auto& s) { s.add_nontemporal_stores(LastOp(LayerNorm(16, 64))); });  // small
  v1::Kernel scalars = Planes(v1::F32, 4);
  scalars.mutable_schedule()->set_vector_dim(v1::VECTOR_NONE);
  refused(scalars, [](auto& s) { s.add_nontemporal_stores(1); });
  EXPECT_TRUE(Changed(norm, [](auto& s) { s.clear_nontemporal_stores(); }).ok());
  EXPECT_TRUE(
      Changed(Planes(v1::BF16, 8), [](auto& s) { s.add_nontemporal_stores(1); }).ok());  // allowed, but slow
  Refused(norm, "more bytes", [](auto& s) { s.set_nontemporal_bytes_min(~uint64_t{0}); });
  const auto prefetch = [&](void (*change)(v1::Prefetch&)) {
    Refused(norm, "has no such lines", [&](auto& s) { change(*s.mutable_prefetches(0)); });
  };
  prefetch([](auto& p) { p.set_load(1); });    // a reduction
  prefetch([](auto& p) { p.set_load(100); });  // not there
  prefetch([](auto& p) { p.set_rows_ahead(0); });
  prefetch([](auto& p) { p.set_rows_ahead(1 << 20); });
  prefetch([](auto& p) { p.set_bytes_ahead(64); });  // and rows
  prefetch([](auto& p) { p.set_share(1); });
  prefetch([](auto& p) {
    p.set_shares(2);
    p.set_share(2);
  });
  prefetch([](auto& p) { p.set_level(static_cast<v1::CacheLevel>(9)); });
  Refused(norm, "has no such lines", [](auto& s) { *s.add_prefetches() = s.prefetches(0); });
  Refused(Transpose(false), "has no such lines", [](auto& s) {  // no rows
    s.add_prefetches()->set_rows_ahead(1);
  });
}

TEST_F(VectorScheduleCheck, AGpusScheduleIsNone) {
  v1::Kernel kernel = LayerNorm(16, 64);
  kernel.mutable_schedule()->mutable_threads()->set_threads(256);
  EXPECT_EQ(ScheduleVectors(target_, &kernel).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(VectorScheduleCheck, AnExpressionOfTooManyTermsGetsNone) {
  v1::Kernel kernel = testing::KernelOfManyTerms();
  EXPECT_EQ(ScheduleVectors(target_, &kernel).code(), absl::StatusCode::kUnimplemented);
  EXPECT_FALSE(kernel.schedule().has_vectors());
}

}  // namespace
}  // namespace kiln
