// Which kernels of a plan max-autotune measures.
#include "compiler/artifact/tunable_kernels.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "compiler/codegen/codegen_backend.h"
#include "compiler/ir/kernel_builder.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "tests/conformance/gpu_target.h"
#include "tests/conformance/host_target.h"

namespace kiln {
namespace {

constexpr int64_t kMany = int64_t{1} << 22;

class TunableKernelsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto backend = NewCodegenBackend(GpuTarget("sm_90"));
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
  }

  // y = x op x.
  static v1::Kernel Pointwise(v1::DType dtype, LoopOpcode op, int64_t elements) {
    KernelBuilder b;
    const uint32_t x = b.Buffer(dtype, v1::READ, b.Const(elements)),
                   y = b.Buffer(dtype, v1::WRITE, b.Const(elements));
    b.Outer(b.Const(elements));
    b.BeginStage({});
    const uint32_t value = b.Load(x, b.Var(0));
    b.Store(y, b.Var(0), b.Op(op, dtype, {value, value}));
    b.Schedule(1, 1, v1::VECTOR_OUTER_LAST);
    return b.Build();
  }

  static v1::Kernel Gathered() {
    KernelBuilder b;
    const uint32_t x = b.Buffer(v1::F32, v1::READ, b.Const(kMany)),
                   i = b.Buffer(v1::I64, v1::READ, b.Const(kMany)),
                   y = b.Buffer(v1::F32, v1::WRITE, b.Const(kMany));
    b.Outer(b.Const(kMany));
    b.BeginStage({});
    b.Store(y, b.Var(0), b.Load(x, b.Indirect(b.Load(i, b.Var(0)))));
    b.Schedule(1, 1, v1::VECTOR_OUTER_LAST);
    return b.Build();
  }

  void Add(const v1::Kernel& kernel, uint64_t bytes, int launches = 1) {
    v1::PlannedKernel* planned = plan_.add_kernels();
    planned->set_kernel(SerializeDeterministic(kernel));
    planned->mutable_bytes_read()->set_value(static_cast<int64_t>(bytes / 2));
    planned->mutable_bytes_written()->set_value(static_cast<int64_t>(bytes - bytes / 2));
    for (int k = 0; k < launches; ++k) {
      v1::Launch* launch = plan_.mutable_program()->add_steps()->mutable_launch();
      launch->set_kernel(static_cast<uint32_t>(plan_.kernels_size() - 1));
      launch->mutable_units()->set_value(kMany);
    }
  }

  std::vector<v1::Tunable> Tunables() const { return TunableKernelsOf(plan_, *backend_, {}); }

  std::unique_ptr<CodegenBackend> backend_;
  v1::PlanReply plan_;
};

TEST_F(TunableKernelsTest, TellsWhatAKernelNeeds) {
  const v1::Kernel kernel = Pointwise(v1::F32, LoopOpcode::kAdd, kMany);
  Add(kernel, 1 << 24);
  const std::vector<v1::Tunable> tunables = Tunables();
  ASSERT_EQ(tunables.size(), 1u);
  const v1::KernelTunable& tunable = tunables[0].kernel();
  EXPECT_EQ(tunable.digest(), Sha256(SerializeDeterministic(kernel)));
  EXPECT_EQ(tunable.units(), kMany);
  ASSERT_EQ(tunable.operands_size(), 2);
  EXPECT_EQ(tunable.operands(0).dtype(), v1::F32);
  EXPECT_EQ(tunable.operands(0).elements(), kMany);
  EXPECT_EQ(tunable.operands(0).access(), v1::READ);
  EXPECT_EQ(tunable.operands(1).access(), v1::WRITE);
  EXPECT_GE(tunable.schedules_size(), 2);
}

// Whichever device's: each is the kernel's.
TEST_F(TunableKernelsTest, CandidatesAreTheBackEndsSchedules) {
  const v1::Kernel kernel = Pointwise(v1::F32, LoopOpcode::kAdd, kMany);
  Add(kernel, 1 << 24);
  for (const v1::Target& target : {GpuTarget("sm_90"), X86Target(true)}) {
    SCOPED_TRACE(target.triple());
    auto backend = NewCodegenBackend(target);
    ASSERT_TRUE(backend.ok()) << backend.status();
    const std::vector<v1::Tunable> tunables = TunableKernelsOf(plan_, **backend, {});
    ASSERT_EQ(tunables.size(), 1u);
    const std::vector<v1::KernelSchedule> schedules = (*backend)->Schedules(kernel);
    ASSERT_EQ(tunables[0].kernel().schedules_size(), static_cast<int>(schedules.size()));
    for (size_t k = 0; k < schedules.size(); ++k) {
      const v1::KernelSchedule& candidate = tunables[0].kernel().schedules(static_cast<int>(k));
      EXPECT_EQ(SerializeDeterministic(candidate), SerializeDeterministic(schedules[k]));
      v1::Kernel scheduled = kernel;
      *scheduled.mutable_schedule() = candidate;
      EXPECT_TRUE((*backend)->Emit(scheduled, {}, false).ok());
    }
  }
}

TEST_F(TunableKernelsTest, TheHeaviestComeFirst) {
  Add(Pointwise(v1::F32, LoopOpcode::kAdd, kMany), 1 << 24);
  Add(Pointwise(v1::F32, LoopOpcode::kSub, kMany), 1 << 24, 3);
  Add(Pointwise(v1::F32, LoopOpcode::kMul, kMany), 1 << 25);
  const std::vector<v1::Tunable> tunables = Tunables();
  ASSERT_EQ(tunables.size(), 3u);
  EXPECT_EQ(tunables[0].kernel().digest(), Sha256(plan_.kernels(1).kernel()));
  EXPECT_EQ(tunables[1].kernel().digest(), Sha256(plan_.kernels(2).kernel()));
}

TEST_F(TunableKernelsTest, SmallOnesAndThoseThatNeedCertainDataAreLeftAlone) {
  Add(Pointwise(v1::F32, LoopOpcode::kAdd, kMany), 1 << 20);
  Add(Gathered(), 1 << 25);
  Add(Pointwise(v1::I32, LoopOpcode::kFloorDiv, kMany), 1 << 25);
  EXPECT_TRUE(Tunables().empty());
  Add(Pointwise(v1::F32, LoopOpcode::kFloorDiv, kMany), 1 << 25);  // of floats it can't fail
  EXPECT_EQ(Tunables().size(), 1u);
}

TEST_F(TunableKernelsTest, SizesThatAreNotFixedAreLeftAlone) {
  KernelBuilder b;
  const uint32_t n = b.Symbol(0);
  const uint32_t y = b.Buffer(v1::F32, v1::WRITE, n);
  b.Outer(n);
  b.BeginStage({});
  b.Store(y, b.Var(0), b.Float(v1::F32, 1));
  b.Schedule(1, 1, v1::VECTOR_OUTER_LAST);
  Add(b.Build(), 1 << 25);
  EXPECT_TRUE(Tunables().empty());
}

}  // namespace
}  // namespace kiln
