// Gemms of few rows by kiln's own kernel against sums in double: on the simulator, and on a GPU
// where there is one.
#include "compiler/codegen/skinny_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "absl/strings/str_cat.h"
#include "client/runtime/cuda_kernel.h"
#include "compiler/codegen/codegen_backend.h"
#include "compiler/codegen/ptx_assembler.h"
#include "compiler/graph/schedule_text.h"
#include "compiler/image/gpu_image.h"
#include "compiler/ir/half.h"
#include "compiler/schedule/skinny_schedule.h"
#include "compiler/support/kernel_abi.h"
#include "tests/conformance/gpu_device.h"
#include "tests/conformance/gpu_simulator.h"
#include "tests/conformance/gpu_target.h"

namespace kiln {
namespace {

constexpr char kUnwritten = '\xFF';  // NaN in every float type

enum class Weights { kAlongK, kAlongN };

struct Case {
  v1::DType dtype = v1::F32;
  int64_t rows = 1, columns = 16, depth = 64;
  Weights weights = Weights::kAlongK;
  bool tf32 = true, bias = false, c = false;
  v1::Activation activation = v1::ACTIVATION_NONE;
  int64_t apart = 0;  // elements between rows of a and d, and of the weights as they lie
};

v1::MatrixOperand Operand(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  v1::MatrixOperand operand;
  operand.set_rows(rows);
  operand.set_columns(columns);
  operand.set_row_stride(row_stride);
  operand.set_column_stride(column_stride);
  return operand;
}

v1::Gemm GemmOf(const Case& c) {
  v1::Gemm gemm;
  gemm.set_dtype(c.dtype);
  gemm.set_batch(1);
  *gemm.mutable_a() = Operand(c.rows, c.depth, c.depth + c.apart, 1);
  *gemm.mutable_b() = c.weights == Weights::kAlongK ? Operand(c.depth, c.columns, 1, c.depth + c.apart)
                                                    : Operand(c.depth, c.columns, c.columns + c.apart, 1);
  if (c.c) *gemm.mutable_c() = Operand(c.rows, c.columns, c.columns, 1);
  *gemm.mutable_d() = Operand(c.rows, c.columns, c.columns + c.apart, 1);
  gemm.set_bias(c.bias);
  gemm.set_tf32(c.tf32);
  gemm.set_activation(c.activation);
  return gemm;
}

std::string Describe(const Case& c) {
  return absl::StrCat(v1::DType_Name(c.dtype), c.tf32 ? " tf32 " : " ", c.rows, "x", c.columns, "x", c.depth,
                      c.weights == Weights::kAlongN ? " along N" : "", c.bias ? " bias" : "", c.c ? " c" : "",
                      " activation ", c.activation, " apart ", c.apart);
}

using Allocate = std::function<std::shared_ptr<char>(size_t bytes)>;

// Memory of a gemm, with values that every type holds exactly.
class Operands {
 public:
  Operands(const Case& c, const Allocate& allocate, std::mt19937_64& random) : case_(c) {
    const v1::Gemm gemm = GemmOf(c);
    a_ = Make(gemm.a(), allocate, random);
    b_ = Make(gemm.b(), allocate, random);
    if (c.c) c_ = Make(gemm.c(), allocate, random);
    if (c.bias) bias_ = Make(Operand(1, c.columns, 0, 1), allocate, random);
    d_ = Make(gemm.d(), allocate, random);
    std::memset(d_.memory.get(), kUnwritten, d_.bytes);
  }

  std::vector<void*> buffers() const {
    std::vector<void*> all = {a_.memory.get(), b_.memory.get()};
    if (case_.c) all.push_back(c_.memory.get());
    if (case_.bias) all.push_back(bias_.memory.get());
    all.push_back(d_.memory.get());
    return all;
  }

  std::string Result() const { return std::string(d_.memory.get(), d_.bytes); }

  // Every element, and that nothing else was written.
  void Check() const {
    std::string seen = Result();
    for (int64_t i = 0; i < case_.rows; ++i) {
      for (int64_t j = 0; j < case_.columns; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < case_.depth; ++k) sum += Get(a_, i, k) * Get(b_, k, j);
        if (case_.c) sum += Get(c_, i, j);
        if (case_.bias) sum += Get(bias_, 0, j);
        if (case_.activation == v1::ACTIVATION_RELU) sum = std::max(sum, 0.0);
        if (case_.activation == v1::ACTIVATION_GELU_TANH)
          sum = sum / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (sum + 0.044715 * sum * sum * sum)));
        const double unit = case_.dtype == v1::F32 ? 1e-6 : case_.dtype == v1::F16 ? 1.0 / 1024 : 1.0 / 128;
        ASSERT_NEAR(Get(d_, i, j), sum, unit * (1 + std::abs(sum))) << i << ", " << j;
        std::memset(seen.data() + Place(d_, i, j), kUnwritten, Width());
      }
    }
    EXPECT_EQ(seen, std::string(seen.size(), kUnwritten));
  }

 private:
  struct Matrix {
    v1::MatrixOperand form;
    std::shared_ptr<char> memory;
    size_t bytes = 0;
  };

  size_t Width() const { return case_.dtype == v1::F32 ? 4 : 2; }
  size_t Place(const Matrix& m, int64_t i, int64_t j) const {
    return static_cast<size_t>(i * m.form.row_stride() + j * m.form.column_stride()) * Width();
  }
  Matrix Make(const v1::MatrixOperand& form, const Allocate& allocate, std::mt19937_64& random) const {
    Matrix m{form, nullptr, 0};
    m.bytes = Place(m, form.rows() - 1, form.columns() - 1) + Width();
    m.memory = allocate(m.bytes);
    for (size_t at = 0; at < m.bytes; at += Width()) {
      const float value = static_cast<float>(static_cast<int>(random() % 17) - 8) / 8;
      const uint16_t half = case_.dtype == v1::F16 ? ToF16(value) : ToBF16(value);
      std::memcpy(m.memory.get() + at, case_.dtype == v1::F32 ? static_cast<const void*>(&value) : &half,
                  Width());
    }
    return m;
  }
  double Get(const Matrix& m, int64_t i, int64_t j) const {
    const char* at = m.memory.get() + Place(m, i, j);
    float value;
    uint16_t half;
    std::memcpy(&value, at, Width() == 4 ? 4 : 2);
    std::memcpy(&half, at, sizeof half);
    if (case_.dtype == v1::F32) return value;
    return case_.dtype == v1::F16 ? FromF16(half) : FromBF16(half);
  }

  const Case case_;
  Matrix a_, b_, c_, bias_, d_;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const auto both = [&](Case c) {
    cases.push_back(c);
    c.weights = Weights::kAlongN;
    c.columns = (c.columns + 7) / 8 * 8;
    cases.push_back(c);
  };
  for (const v1::DType dtype : {v1::F32, v1::F16, v1::BF16}) {
    for (const int64_t rows : {1, 7, 12, 33, 64}) both({dtype, rows, 40, 256});
    both({dtype, 5, 33, 1000, Weights::kAlongK, true, true, false, v1::ACTIVATION_RELU, 8});
    both({dtype, 12, 77, 136, Weights::kAlongK, true, true, true, v1::ACTIVATION_GELU_TANH, 16});
    both({dtype, 3, 5, 8});
  }
  for (const int64_t rows : {1, 7, 12, 24}) {
    both({v1::F32, rows, 24, 320, Weights::kAlongK, false, true});
  }
  return cases;
}

std::vector<v1::SkinnySchedule> Schedules(const Case& c, uint32_t architecture, std::mt19937_64& random) {
  const v1::Gemm gemm = GemmOf(c);
  Machine machine;
  machine.gpu.cluster_blocks_max = architecture >= 90 ? 8 : 1;
  absl::StatusOr<std::vector<v1::SkinnySchedule>> all = SkinnySchedules(gemm, machine, SIZE_MAX);
  EXPECT_TRUE(all.ok()) << all.status();
  if (!all.ok()) return {};
  std::shuffle(all->begin(), all->end(), random);
  if (all->size() > 2) all->resize(architecture >= 90 ? 2 : 1);
  if (architecture < 90) return *std::move(all);
  // Several rounds, whose last one is not full.
  v1::SkinnySchedule rounds = all->front();
  rounds.set_blocks(1);
  rounds.set_warps(1);
  rounds.set_steps(2);
  all->push_back(rounds);
  return *std::move(all);
}

std::shared_ptr<char> FromHeap(size_t bytes) {
  return std::shared_ptr<char>(static_cast<char*>(std::aligned_alloc(16, (bytes + 31) / 16 * 16)), std::free);
}

TEST(SkinnyGemm, AgreesOnTheSimulator) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the simulator jumps between stacks, which AddressSanitizer does not follow";
#endif
  std::mt19937_64 random(7);
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Describe(c));
    for (const uint32_t architecture : {80u, 90u}) {
      for (const v1::SkinnySchedule& schedule : Schedules(c, architecture, random)) {
        SCOPED_TRACE(ScheduleText(schedule));
        ASSERT_TRUE(architecture >= 90 || schedule.blocks() == 1);
        auto kernel = testing::SimulatedKernel::Create(GemmOf(c), schedule);
        ASSERT_TRUE(kernel.ok()) << kernel.status();
        Operands operands(c, FromHeap, random);
        const absl::Status run =
            (*kernel)->Run(operands.buffers(), {}, (*kernel)->units(), (*kernel)->units(), random);
        ASSERT_TRUE(run.ok()) << run;
        ASSERT_NO_FATAL_FAILURE(operands.Check());
      }
    }
  }
}

TEST(SkinnyGemm, BecomesMachineCodeOfEachArchitecture) {
  if (!HasPtxAssembler()) GTEST_SKIP() << "kiln was built without nvPTXCompiler";
  for (const char* architecture : {"sm_80", "sm_90a", "sm_100"}) {
    auto backend = NewCodegenBackend(GpuTarget(architecture));
    ASSERT_TRUE(backend.ok()) << backend.status();
    for (const Case& c : Cases()) {
      SCOPED_TRACE(Describe(c));
      const auto emitted = (*backend)->EmitGemm(GemmOf(c), 1);
      ASSERT_TRUE(emitted.ok()) << emitted.status();
      const auto image = ParseGpuImage(emitted->front().image);
      ASSERT_TRUE(image.ok()) << image.status();
      EXPECT_FALSE(image->cubin.empty());
    }
  }
}

TEST(SkinnyGemm, AgreesOnAGpuAndGivesTheSameBitsAgain) {
  const absl::StatusOr<testing::GpuDevice*> gpu = testing::GpuDevice::Find();
  if (!gpu.ok()) GTEST_SKIP() << gpu.status().message();
  auto backend = NewCodegenBackend((*gpu)->target());
  ASSERT_TRUE(backend.ok()) << backend.status();
  const Allocate allocate = [&](size_t bytes) { return (*gpu)->Allocate(bytes).value(); };
  std::mt19937_64 random(7);
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Describe(c));
    const auto emitted = (*backend)->EmitGemm(GemmOf(c), 3);
    ASSERT_TRUE(emitted.ok()) << emitted.status();
    for (const EmittedGemm& gemm : *emitted) {
      SCOPED_TRACE(ScheduleText(gemm.schedule));
      auto kernel = runtime::NewCudaKernel(gemm.image);
      ASSERT_TRUE(kernel.ok()) << kernel.status();
      Operands operands(c, allocate, random);
      const std::vector<void*> buffers = operands.buffers();
      KilnArgs args = {};
      args.buffers = buffers.data();
      std::string first;
      for (int again = 0; again < 5; ++again) {
        const absl::Status run = (*kernel)->Run(args, 0, gemm.units, 0, (*gpu)->context());
        ASSERT_TRUE(run.ok()) << run;
        ASSERT_TRUE((*gpu)->Wait().ok());
        if (again == 0) first = operands.Result();
        ASSERT_EQ(operands.Result(), first);
      }
      ASSERT_NO_FATAL_FAILURE(operands.Check());
    }
  }
}

TEST(SkinnyGemm, RefusesWhatItDoesNotDo) {
  const auto refusal = [](const std::function<void(v1::Gemm*)>& change) {
    v1::Gemm gemm = GemmOf({v1::F32, 12, 64, 64});
    change(&gemm);
    return std::string(SkinnySchedules(gemm, {}, 1).status().ToString());
  };
  EXPECT_EQ(refusal([](v1::Gemm*) {}), "OK");
  const std::vector<std::pair<std::string, std::function<void(v1::Gemm*)>>> changes = {
      {"UNIMPLEMENTED", [](auto* p) { p->set_batch(2); }},
      {"UNIMPLEMENTED", [](auto* p) { p->set_dtype(v1::F64); }},
      {"UNIMPLEMENTED", [](auto* p) { p->mutable_a()->set_row_stride(65); }},
      {"UNIMPLEMENTED", [](auto* p) { p->mutable_a()->set_column_stride(12); }},
      {"UNIMPLEMENTED", [](auto* p) { p->mutable_b()->set_column_stride(65); }},
      {"UNIMPLEMENTED",
       [](auto* p) {
         p->mutable_a()->set_columns(63);
         p->mutable_b()->set_rows(63);
       }},
      {"UNIMPLEMENTED",
       [](auto* p) {
         p->mutable_a()->set_rows(65);
         p->mutable_d()->set_rows(65);
       }},
      {"UNIMPLEMENTED",
       [](auto* p) {
         p->set_tf32(false);
         p->mutable_a()->set_rows(25);
         p->mutable_d()->set_rows(25);
       }},
      {"INVALID_ARGUMENT", [](auto* p) { p->mutable_b()->set_rows(60); }},
      {"INVALID_ARGUMENT", [](auto* p) { p->mutable_c()->set_rows(60); }},
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    EXPECT_EQ(refusal(changes[i].second).substr(0, changes[i].first.size()), changes[i].first) << i;
  }
}

TEST(SkinnyGemm, HasAsManyInFlightAsRegistersHold) {
  // Of one tile 16 sums and 40 words of a step, of two 32 and 48, of four 64 and 64.
  const v1::Gemm gemm = GemmOf({v1::F32, 8, 4096, 2048, Weights::kAlongK, false});
  struct Most {
    uint32_t tiles = 0, warps = 0, steps = 0;
  };
  const auto most = [&](const Machine& machine) {
    Most found;
    const auto all = SkinnySchedules(gemm, machine, SIZE_MAX);
    if (!all.ok()) return found;
    for (const v1::SkinnySchedule& one : *all) {
      found.tiles = std::max(found.tiles, one.tiles());
      found.warps = std::max(found.warps, one.warps());
      found.steps = std::max(found.steps, one.steps());
    }
    return found;
  };
  Machine machine;
  EXPECT_EQ(most(machine).tiles, 4u);
  EXPECT_EQ(most(machine).warps, 16u);
  EXPECT_EQ(most(machine).steps, 2u);
  machine.gpu.registers.gemm_loads = 79;
  EXPECT_EQ(most(machine).steps, 1u);
  machine.gpu.registers.gemm_of_large_block = 55;
  EXPECT_EQ(most(machine).warps, 8u);
  machine.gpu.registers.gemm_sums = 63;
  EXPECT_EQ(most(machine).tiles, 2u);
  machine.gpu.registers.gemm_sums = 15;
  EXPECT_EQ(most(machine).tiles, 0u);
}

TEST(SkinnyGemm, RefusesASchedule) {
  const v1::Gemm gemm = GemmOf({v1::F32, 12, 64, 64});
  const auto schedule = [](uint32_t tiles, uint32_t warps, uint32_t blocks, uint32_t steps) {
    v1::SkinnySchedule schedule;
    schedule.set_tiles(tiles);
    schedule.set_warps(warps);
    schedule.set_blocks(blocks);
    schedule.set_steps(steps);
    return schedule;
  };
  const v1::SkinnySchedule good = schedule(2, 4, 2, 3);
  EXPECT_TRUE(SkinnyShape::Of(gemm, good).ok());
  EXPECT_EQ(ScheduleText(good), "32 columns, 4 warps, 2 blocks, 3 steps in flight");
  EXPECT_EQ(ScheduleText(schedule(1, 4, 1, 1)), "16 columns, 4 warps, 1 block");
  for (const v1::SkinnySchedule& bad :
       {schedule(3, 4, 2, 3), schedule(2, 0, 2, 3), schedule(2, 17, 2, 3), schedule(2, 4, 3, 3),
        schedule(2, 4, 16, 3), schedule(2, 4, 2, 0), schedule(2, 4, 2, 9), v1::SkinnySchedule()}) {
    const absl::Status status = SkinnyShape::Of(gemm, bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << ScheduleText(bad) << ": " << status;
  }
}

}  // namespace
}  // namespace kiln
