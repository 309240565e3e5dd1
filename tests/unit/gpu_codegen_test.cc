// What the GPU back-end says beside its code: images, machine code, schedules. No GPU is needed.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "compiler/codegen/codegen_backend.h"
#include "compiler/codegen/ptx_assembler.h"
#include "compiler/image/gpu_image.h"
#include "compiler/ir/kernel_builder.h"
#include "gmock/gmock.h"
#include "tests/conformance/gpu_target.h"

namespace kiln {
namespace {

// What runs beside the kernel in a CUDA graph is chosen by it.
TEST(GpuImage, SaysWhatTheKernelStoresTo) {
  KernelBuilder b;
  const uint32_t n = b.Symbol(0);
  const uint32_t read = b.Buffer(v1::F32, v1::READ, n), written = b.Buffer(v1::F32, v1::WRITE, n),
                 both = b.Buffer(v1::F32, v1::READ_WRITE, n);
  b.Outer(n);
  b.BeginStage({});
  const uint32_t value = b.Load(read, b.Var(0));
  b.Store(written, b.Var(0), value);
  b.Store(both, b.Var(0), b.Op(LoopOpcode::kAdd, v1::F32, {value, b.Load(both, b.Var(0))}));
  b.Schedule(1, 64, v1::VECTOR_OUTER_LAST);
  auto backend = NewCodegenBackend(GpuTarget("sm_90"));
  ASSERT_TRUE(backend.ok()) << backend.status();
  auto object = (*backend)->Emit(b.Build(), {}, false);
  ASSERT_TRUE(object.ok()) << object.status();
  auto image = ParseGpuImage(object->bytes);
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_FALSE(image->Stores(0));
  EXPECT_TRUE(image->Stores(1));
  EXPECT_TRUE(image->Stores(2));
  EXPECT_TRUE(image->Stores(64));  // beyond the bits: not known
}

TEST(GpuImage, KeepsMachineCodeAndPtxApart) {
  GpuImage image;
  image.threads = image.points_per_block = 32;
  image.cubin = std::string("a\0b", 3);
  image.ptx = "ptx";
  std::string bytes = SerializeGpuImage(image);
  auto parsed = ParseGpuImage(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->cubin, image.cubin);
  EXPECT_EQ(parsed->ptx, "ptx");
  bytes.resize(bytes.size() - 3);  // no driver takes machine code of whatever architecture
  EXPECT_EQ(ParseGpuImage(bytes).status().code(), absl::StatusCode::kDataLoss);
}

TEST(PtxAssembler, SaysWhatItDoesNotKnow) {
  for (const char* architecture : {"sm_1", "sm_130", "compute_90", ""}) {
    EXPECT_EQ(AssemblePtx("", architecture).status().code(), absl::StatusCode::kUnimplemented);
  }
  if (!HasPtxAssembler()) GTEST_SKIP() << "kiln was built without nvPTXCompiler";
  const auto refused = AssemblePtx(".version 8.0\n.target sm_90\n.address_size 64\nnonsense;", "sm_90");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr("nonsense"));
}

// A sine's kernel has a call, which LLVM numbers through the life of a process.
TEST(GpuImage, DoesNotDependOnWhatWasEmittedBefore) {
  KernelBuilder b;
  const uint32_t n = b.Symbol(0);
  const uint32_t in = b.Buffer(v1::F32, v1::READ, n), out = b.Buffer(v1::F32, v1::WRITE, n);
  b.Outer(n);
  b.BeginStage({});
  b.Store(out, b.Var(0), b.Op(LoopOpcode::kSin, v1::F32, {b.Load(in, b.Var(0))}));
  b.Schedule(1, 64, v1::VECTOR_OUTER_LAST);
  const v1::Kernel kernel = b.Build();
  auto backend = NewCodegenBackend(GpuTarget("sm_90"));
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto first = (*backend)->Emit(kernel, {}, false), second = (*backend)->Emit(kernel, {}, false);
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_TRUE(first->bytes == second->bytes);
  const auto image = ParseGpuImage(first->bytes);
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_NE(image->ptx.find("call"), std::string::npos);  // or there was nothing to number
}

class ThreadScheduleTest : public testing::Test {
 protected:
  void SetUp() override {
    auto backend = NewCodegenBackend(GpuTarget("sm_90"));
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
  }

  // Sums of the rows of a matrix, where lanes run along them, or of its columns.
  static v1::Kernel Sums(int64_t rows, int64_t columns, bool of_rows) {
    KernelBuilder b;
    const uint32_t in = b.Buffer(v1::F32, v1::READ, b.Const(rows * columns)),
                   out = b.Buffer(v1::F32, v1::WRITE, b.Const(of_rows ? rows : columns));
    b.Outer(b.Const(of_rows ? rows : columns));
    b.BeginStage({b.Const(of_rows ? columns : rows)});
    const uint32_t row = b.Var(of_rows ? 0 : 1), column = b.Var(of_rows ? 1 : 0);
    const uint32_t sum = b.Reduce(v1::REDUCE_SUM, b.Load(in, b.Add(b.Mul(row, b.Const(columns)), column)));
    b.BeginStage({});
    b.Store(out, b.Var(0), sum);
    b.Schedule(1, 1, of_rows ? v1::VECTOR_INNER_LAST : v1::VECTOR_OUTER_LAST);
    return b.Build();
  }

  // The launch by that schedule.
  absl::StatusOr<GpuImage> Launch(v1::Kernel kernel, const v1::ThreadSchedule& schedule) {
    *kernel.mutable_schedule()->mutable_threads() = schedule;
    auto object = backend_->Emit(kernel, {}, false);
    if (!object.ok()) return object.status();
    return ParseGpuImage(object->bytes);
  }

  std::unique_ptr<CodegenBackend> backend_;
};

TEST_F(ThreadScheduleTest, TheFirstIsWhatIsEmittedWithoutOne) {
  for (const bool of_rows : {true, false}) {
    v1::Kernel kernel = Sums(4096, 4096, of_rows);
    const auto chosen = backend_->Emit(kernel, {}, false);
    ASSERT_TRUE(chosen.ok()) << chosen.status();
    const std::vector<v1::KernelSchedule> schedules = backend_->Schedules(kernel);
    ASSERT_GE(schedules.size(), 3u);
    for (size_t k = 0; k < schedules.size(); ++k) {
      *kernel.mutable_schedule() = schedules[k];
      const auto emitted = backend_->Emit(kernel, {}, false);
      ASSERT_TRUE(emitted.ok()) << emitted.status();
      EXPECT_EQ(emitted->bytes == chosen->bytes, k == 0) << schedules[k].ShortDebugString();
    }
  }
}

TEST_F(ThreadScheduleTest, TheNumbersAreTheLaunchs) {
  const v1::Kernel rows = Sums(4096, 4096, true);
  v1::ThreadSchedule schedule = backend_->Schedules(rows).front().threads();
  schedule.set_threads(128);
  auto image = Launch(rows, schedule);
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->threads, 128);
  EXPECT_EQ(image->points_per_block, 1);
  schedule.set_threads(32);
  schedule.mutable_rows()->set_points_per_block(4);
  image = Launch(rows, schedule);
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->threads, 128);
  EXPECT_EQ(image->points_per_block, 4);

  const v1::Kernel columns = Sums(4096, 4096, false);
  schedule = backend_->Schedules(columns).front().threads();
  schedule.set_threads(256);
  schedule.mutable_columns()->set_rows(16);
  image = Launch(columns, schedule);
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->threads, 256);
  EXPECT_EQ(image->points_per_block, 16);
}

TEST_F(ThreadScheduleTest, TheCodeIsAsTheScheduleSays) {
  const v1::Kernel rows = Sums(4096, 4096, true);
  const v1::ThreadSchedule chosen = backend_->Schedules(rows).front().threads();
  ASSERT_EQ(chosen.lanes(), 4u);
  ASSERT_EQ(chosen.unroll(0), 4u);
  const auto count = [&](const std::string& text, absl::FunctionRef<void(v1::ThreadSchedule&)> change) {
    v1::ThreadSchedule schedule = chosen;
    change(schedule);
    const auto image = Launch(rows, schedule);
    EXPECT_TRUE(image.ok()) << image.status();
    int found = 0;
    for (size_t at = 0; image.ok() && (at = image->ptx.find(text, at)) != std::string::npos; ++at) ++found;
    return found;
  };
  const std::string of_four = "ld.global.nc.v4.b32", of_two = "ld.global.nc.v2.b32";
  EXPECT_EQ(count(of_four, [](auto&) {}), 4);
  EXPECT_EQ(count(of_four, [](auto& s) { s.set_aligned(v1::ALIGNED_NONE); }), 0);
  EXPECT_EQ(count(of_two, [](auto&) {}), 0);
  EXPECT_EQ(count(of_two, [](auto& s) { s.set_lanes(2); }), 8);  // as many elements
}

// Of iterations too many for LLVM to unroll by itself.
TEST_F(ThreadScheduleTest, BodiesStandInARowAsTheScheduleSays) {
  const v1::Kernel rows = Sums(64, 1 << 20, true);
  v1::ThreadSchedule schedule = backend_->Schedules(rows).front().threads();
  const auto chosen = Launch(rows, schedule);
  schedule.set_unroll(0, 1);
  const auto one = Launch(rows, schedule);
  ASSERT_TRUE(chosen.ok() && one.ok()) << chosen.status() << one.status();
  EXPECT_NE(chosen->ptx, one->ptx);
}

// A load behind a sine, and before it.
TEST_F(ThreadScheduleTest, LoadsStandWhereTheScheduleSays) {
  KernelBuilder b;
  const uint32_t n = b.Const(1000);
  const uint32_t x = b.Buffer(v1::F32, v1::READ, n), y = b.Buffer(v1::F32, v1::READ, n),
                 out = b.Buffer(v1::F32, v1::WRITE, n);
  b.Outer(n);
  b.BeginStage({});
  const uint32_t sine = b.Op(LoopOpcode::kSin, v1::F32, {b.Load(x, b.Var(0))});
  b.Store(out, b.Var(0), b.Op(LoopOpcode::kAdd, v1::F32, {sine, b.Load(y, b.Var(0))}));
  b.Schedule(1, 1, v1::VECTOR_OUTER_LAST);
  const v1::Kernel kernel = b.Build();
  v1::ThreadSchedule schedule = backend_->Schedules(kernel).front().threads();
  ASSERT_TRUE(schedule.loads_first());
  const auto first = Launch(kernel, schedule), again = Launch(kernel, schedule);
  schedule.set_loads_first(false);
  const auto in_order = Launch(kernel, schedule);
  ASSERT_TRUE(first.ok() && again.ok() && in_order.ok()) << first.status() << in_order.status();
  EXPECT_EQ(first->ptx, again->ptx);
  EXPECT_NE(first->ptx, in_order->ptx);
}

// thread_schedule_test.cc has what is refused, and why.
TEST_F(ThreadScheduleTest, WhatAKernelDoesNotAllowIsRefused) {
  const v1::Kernel rows = Sums(4096, 4096, true), columns = Sums(4096, 4096, false);
  const auto refused = [&](const v1::Kernel& kernel, absl::FunctionRef<void(v1::ThreadSchedule&)> change) {
    v1::ThreadSchedule schedule = backend_->Schedules(kernel).front().threads();
    change(schedule);
    const absl::Status status = Launch(kernel, schedule).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status << schedule.ShortDebugString();
  };
  refused(rows, [](auto& s) { s.Clear(); });
  refused(rows, [](auto& s) { s.set_threads(100); });
  refused(rows, [](auto& s) { s.mutable_rows()->set_points_per_block(2); });  // of a block's threads
  refused(rows, [](auto& s) { s.mutable_columns()->set_rows(4); });
  refused(columns, [](auto& s) { s.mutable_columns()->set_rows(3); });
  refused(columns, [](auto& s) { s.mutable_tile()->set_side(32); });  // nothing is transposed
  v1::Kernel of_a_cpu = rows;
  of_a_cpu.mutable_schedule()->mutable_vectors()->set_lanes(16);
  EXPECT_TRUE(absl::IsInvalidArgument(backend_->Emit(of_a_cpu, {}, false).status()));
  EXPECT_TRUE(backend_->Schedules(of_a_cpu).empty());
}

}  // namespace
}  // namespace kiln
