// Random kernels on each back-end against the interpreter. The seed is printed and can be given:
// KILN_SEED says where to start, KILN_CASES how many (default 150, of AArch64 500; 5,000 with KILN_FULL=1).
#include <gtest/gtest.h>

#include <iostream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "compiler/ir/dtype_groups.h"
#include "compiler/ir/kernel_builder.h"
#include "compiler/ir/print.h"
#include "compiler/ir/verify_kernel.h"
#include "tests/conformance/backend_harness.h"
#include "tests/conformance/host_target.h"
#include "tests/property/campaign.h"

namespace kiln {
namespace {

constexpr v1::DType kArithmetic[] = {v1::BOOL, v1::U8, v1::I8, v1::I16, v1::I32, v1::I64, v1::F32, v1::F64};
constexpr v1::DType kStorable[] = {v1::BOOL, v1::U8,  v1::I8,   v1::I16, v1::I32,
                                   v1::I64,  v1::F16, v1::BF16, v1::F32, v1::F64};

// Results are exact: functions of more than one rounding are left to the conformance suite, and sums
// are of small integers, so that their order does not matter.
class RandomKernel {
 public:
  explicit RandomKernel(uint64_t seed) : random_(seed) {
    const int outer = Below(4);
    for (int k = 0; k < outer; ++k) AddOuter();
    const int stages = 1 + Below(3);
    for (int s = 0; s < stages; ++s) AddStage();
    const uint32_t parallel = Below(outer + 1);
    const v1::VectorDim dims[] = {v1::VECTOR_NONE, v1::VECTOR_INNER_LAST, v1::VECTOR_OUTER_LAST};
    builder_.Schedule(parallel, 1 + Below(70), dims[Below(outer > 0 ? 3 : 2)]);
  }

  v1::Kernel kernel() const { return builder_.Build(); }
  const std::vector<TestBuffer>& buffers() const { return buffers_; }
  const std::vector<int64_t>& symbols() const { return symbols_; }

 private:
  struct Value {
    uint32_t id;
    v1::DType dtype;
  };
  struct Loop {
    uint32_t extent;
    int64_t size;
  };

  int Below(int n) { return static_cast<int>(random_() % n); }
  template <typename T>
  const T& Pick(const std::vector<T>& from) {
    return from[Below(static_cast<int>(from.size()))];
  }

  Loop NewLoop() {
    const int64_t sizes[] = {1, 2, 3, 5, 8, 15, 16, 17, 33, 40};
    const int64_t size = Below(40) == 0 ? 0 : sizes[Below(10)];
    if (Below(3) == 0) {
      symbols_.push_back(size);
      return {builder_.Symbol(static_cast<uint32_t>(symbols_.size() - 1)), size};
    }
    return {builder_.Const(size), size};
  }

  void AddOuter() {
    loops_.push_back(NewLoop());
    builder_.Outer(loops_.back().extent);
    ++outer_;
  }

  // Row-major over a random subset of the loops at hand, in random order, perhaps spread out.
  uint32_t RandomIndex(int64_t* span) {
    uint32_t index = builder_.Const(Below(3));
    int64_t largest = builder_.Build().exprs(static_cast<int>(index)).value();
    for (size_t k = 0; k < loops_.size(); ++k) {
      if (Below(4) == 0) continue;
      uint32_t term = builder_.Var(static_cast<uint32_t>(k));
      int64_t top = std::max<int64_t>(loops_[k].size - 1, 0);
      if (Below(6) == 0) {
        const int64_t divisor = 2 + Below(4);
        const bool mod = Below(2) == 0;
        term = builder_.Expr(mod ? v1::EXPR_MOD : v1::EXPR_FLOORDIV, {term, builder_.Const(divisor)});
        top = mod ? divisor - 1 : top / divisor;
      }
      const int64_t stride = Below(3) == 0 ? 1 : 1 + Below(50);
      if (stride != 1) term = builder_.Mul(term, builder_.Const(stride));
      index = builder_.Add(index, term);
      largest += top * stride;
    }
    *span = largest + 1;
    return index;
  }

  // One element for every iteration, so that stores do not meet.
  uint32_t UniqueIndex(int64_t* span) {
    std::vector<size_t> order(loops_.size());
    for (size_t k = 0; k < order.size(); ++k) order[k] = k;
    if (Below(3) == 0) std::shuffle(order.begin(), order.end(), random_);
    uint32_t index = builder_.Const(0);
    *span = 1;
    for (size_t at : order) {
      index = builder_.Add(builder_.Mul(index, loops_[at].extent), builder_.Var(static_cast<uint32_t>(at)));
      *span *= loops_[at].size;
    }
    return index;
  }

  uint32_t NewBuffer(v1::DType dtype, v1::BufferAccess access, int64_t span) {
    buffers_.push_back(RandomBuffer(dtype, span, random_));
    return builder_.Buffer(dtype, access, builder_.Const(span));
  }

  Value Cast(Value value, v1::DType dtype) {
    if (value.dtype == dtype) return value;
    return {builder_.Op(LoopOpcode::kCast, dtype, {value.id}), dtype};
  }

  Value Any(v1::DType dtype) { return Cast(Pick(values_), dtype); }

  std::optional<uint32_t> MaybeMask() {
    if (Below(4) != 0) return std::nullopt;
    return Any(v1::BOOL).id;
  }

  void AddValue() {
    const v1::DType dtype = kArithmetic[Below(8)];
    const bool floating = ir::IsFloating(dtype);
    switch (Below(8)) {
      case 0: {
        int64_t span;
        const v1::DType stored = kStorable[Below(10)];
        const uint32_t index = RandomIndex(&span);
        const std::optional<uint32_t> mask = MaybeMask();
        values_.push_back({builder_.Load(NewBuffer(stored, v1::READ, span), index, mask), stored});
        return;
      }
      case 1: {  // through an index that is checked
        const int64_t size = 1 + Below(30);
        const uint32_t wide = Any(v1::I64).id;
        const uint32_t within =
            builder_.Op(LoopOpcode::kRemainder, v1::I64, {wide, builder_.Int(v1::I64, size)});
        const uint32_t checked = builder_.CheckIndex(within, builder_.Const(size), MaybeMask());
        const v1::DType stored = kStorable[Below(10)];
        const int64_t stride = 1 + Below(3);
        const uint32_t index = builder_.Mul(builder_.Indirect(checked), builder_.Const(stride));
        values_.push_back({builder_.Load(NewBuffer(stored, v1::READ, size * stride), index), stored});
        return;
      }
      case 2:
        if (floating) {
          values_.push_back({builder_.Float(dtype, Below(9) * 0.5 - 2), dtype});
        } else {
          values_.push_back({builder_.Int(dtype, dtype == v1::BOOL ? Below(2) : Below(9)), dtype});
        }
        return;
      case 3: {
        int64_t span;
        values_.push_back({builder_.Index(RandomIndex(&span)), v1::I64});
        return;
      }
      case 4: {
        const LoopOpcode compare[] = {LoopOpcode::kEq, LoopOpcode::kNe, LoopOpcode::kLt,
                                      LoopOpcode::kLe, LoopOpcode::kGt, LoopOpcode::kGe};
        const Value a = Any(dtype), c = Any(dtype);
        values_.push_back({builder_.Op(compare[Below(6)], v1::BOOL, {a.id, c.id}), v1::BOOL});
        return;
      }
      case 5: {
        const Value condition = Any(v1::BOOL), a = Any(dtype), c = Any(dtype);
        values_.push_back({builder_.Op(LoopOpcode::kWhere, dtype, {condition.id, a.id, c.id}), dtype});
        return;
      }
      default: {
        const LoopOpcode both[] = {LoopOpcode::kAdd, LoopOpcode::kMul, LoopOpcode::kMaximum,
                                   LoopOpcode::kMinimum};
        const LoopOpcode on_floats[] = {LoopOpcode::kAdd, LoopOpcode::kSub,     LoopOpcode::kMul,
                                        LoopOpcode::kDiv, LoopOpcode::kMaximum, LoopOpcode::kMinimum};
        const LoopOpcode on_ints[] = {LoopOpcode::kAdd,    LoopOpcode::kSub,        LoopOpcode::kBitXor,
                                      LoopOpcode::kBitAnd, LoopOpcode::kShiftRight, LoopOpcode::kMaximum};
        const LoopOpcode op = floating            ? on_floats[Below(6)]
                              : dtype == v1::BOOL ? both[Below(4)]
                                                  : on_ints[Below(6)];
        const Value a = Any(dtype), c = Any(dtype);
        Value result = {builder_.Op(op, dtype, {a.id, c.id}), dtype};
        // Which of two zeros wins is free; a later division must not see it.
        if (floating) result.id = builder_.Op(LoopOpcode::kAdd, dtype, {result.id, builder_.Float(dtype, 0)});
        values_.push_back(result);
      }
    }
  }

  void AddReduction() {
    const v1::DType dtype = kArithmetic[Below(8)];
    Value value = Any(dtype);
    const int kind = 1 + Below(8);
    if (kind == v1::REDUCE_ANY || kind == v1::REDUCE_ALL) value = Cast(value, v1::BOOL);
    if (value.dtype == v1::BOOL && (kind == v1::REDUCE_SUM || kind == v1::REDUCE_PROD))
      value = Cast(value, v1::I64);
    if (ir::IsFloating(value.dtype) && (kind == v1::REDUCE_SUM || kind == v1::REDUCE_PROD)) {
      const Value small = {
          builder_.Op(LoopOpcode::kBitAnd, v1::I64,
                      {Cast(value, v1::I64).id, builder_.Int(v1::I64, kind == v1::REDUCE_SUM ? 63 : 1)}),
          v1::I64};
      value = Cast(small, value.dtype);
    }
    const v1::DType result = kind >= v1::REDUCE_ARGMAX ? v1::I64 : value.dtype;
    uint32_t id = builder_.Reduce(static_cast<v1::ReduceKind>(kind), value.id);
    reduced_.push_back({id, result});
  }

  void AddStage() {
    const std::vector<Value> before = values_;
    const int inner = Below(3);
    std::vector<uint32_t> extents;
    for (int k = 0; k < inner; ++k) {
      loops_.push_back(NewLoop());
      extents.push_back(loops_.back().extent);
    }
    builder_.BeginStage(extents);
    values_.push_back({builder_.Int(v1::I64, 3), v1::I64});
    reduced_.clear();
    const int ops = 2 + Below(12);
    for (int k = 0; k < ops; ++k) AddValue();
    if (inner > 0) {
      for (int k = Below(3); k > 0; --k) AddReduction();
    }
    for (int k = 1 + Below(2); k > 0; --k) {
      const Value value = values_.back();
      int64_t span;
      const uint32_t index = UniqueIndex(&span);
      const bool accumulate = Below(5) == 0 && value.dtype != v1::BOOL;
      const std::optional<uint32_t> mask = MaybeMask();
      builder_.Store(NewBuffer(value.dtype, accumulate ? v1::READ_WRITE : v1::WRITE, span), index, value.id,
                     mask, accumulate ? v1::STORE_ACCUMULATE : v1::STORE_PLAIN);
    }
    // What a later stage may use.
    if (inner > 0) values_ = before;
    for (const Value& value : reduced_) values_.push_back(value);
    loops_.resize(outer_);
  }

  std::mt19937_64 random_;
  KernelBuilder builder_;
  std::vector<TestBuffer> buffers_;
  std::vector<int64_t> symbols_;
  std::vector<Loop> loops_;
  std::vector<Value> values_, reduced_;
  size_t outer_ = 0;
};

// What the runner makes of the kernel where the interpreter has results: the first difference, or "".
std::string Differs(KernelRunner* runner, const v1::Kernel& kernel, const RandomKernel& made,
                    const Outcome& expected, bool split, std::mt19937_64& random) {
  auto got = runner->Run(kernel, made.buffers(), made.symbols(), split, random);
  if (!got.ok()) return got.status().ToString();
  if (got->status.code != expected.status.code) return absl::StrCat("status ", got->status.code);
  if (got->status.code != 0) return "";
  Tolerance tolerance;
  if (runner->is_gpu()) tolerance.absolute = std::numeric_limits<float>::min();
  return Difference(got->buffers, expected.buffers, tolerance);
}

void CheckOne(KernelRunner* reference, KernelRunner* runner, uint64_t seed) {
  SCOPED_TRACE(absl::StrCat("KILN_SEED=", seed));
  const RandomKernel made(seed);
  const v1::Kernel kernel = made.kernel();
  const absl::Status verified = VerifyKernel(kernel);
  ASSERT_TRUE(verified.ok()) << verified << "\n" << PrintKernel(kernel, {});
  std::mt19937_64 random(seed);
  auto expected = reference->Run(kernel, made.buffers(), made.symbols(), false, random);
  ASSERT_TRUE(expected.ok()) << expected.status() << "\n" << PrintKernel(kernel, {});
  if (runner->is_gpu() && expected->status.code != 0) return;
  for (bool split : {false, true}) {
    ASSERT_EQ(Differs(runner, kernel, made, *expected, split, random), "") << PrintKernel(kernel, {});
  }
}

// By every schedule of threads, or of AArch64's vectors; how many differ.
void CheckSchedules(KernelRunner* reference, KernelRunner* runner, uint64_t seed, int* schedules,
                    int* different) {
  SCOPED_TRACE(absl::StrCat("KILN_SEED=", seed));
  const RandomKernel made(seed);
  std::mt19937_64 random(seed);
  auto expected = reference->Run(made.kernel(), made.buffers(), made.symbols(), false, random);
  ASSERT_TRUE(expected.ok()) << expected.status();
  if (expected->status.code != 0) return;
  const std::vector<v1::Kernel> kernels =
      runner->is_gpu() ? WithEverySchedule(made.kernel()) : WithEveryNeonSchedule(made.kernel());
  ASSERT_FALSE(kernels.empty());
  for (const v1::Kernel& kernel : kernels) {
    const std::string difference = Differs(runner, kernel, made, *expected, random() % 2 == 0, random);
    ++*schedules;
    if (difference.empty()) continue;
    if (++*different == 1) std::cout << difference << "\n" << PrintKernel(kernel, {});
  }
}

absl::StatusOr<std::unique_ptr<KernelRunner>> NewRunner(absl::string_view name) {
  if (name == "gpu") return NewGpuRunner();
  if (name == "simulated_gpu") return NewSimulatedGpuRunner();
  if (name == "neon") return NewEmulatedRunner();
  if (name == "avx512" && !HostHasAvx512()) return absl::UnavailableError("this machine has no AVX-512");
  return NewBackendRunner(X86Target(name == "avx512"));
}

class KernelPropertyTest : public ::testing::TestWithParam<const char*> {};

TEST_P(KernelPropertyTest, RandomKernelsAgreeWithTheInterpreter) {
  auto reference = NewInterpreterRunner();
  auto runner = NewRunner(GetParam());
  if (absl::IsUnavailable(runner.status())) GTEST_SKIP() << runner.status().message();
  ASSERT_TRUE(runner.ok()) << runner.status();
  const bool emulated = GetParam() == absl::string_view("neon");
  const testing::Campaign campaign = testing::CampaignFromEnv(1000, emulated ? 500 : 150, 5000);
  for (uint64_t k = 0; k < campaign.cases && !HasFailure(); ++k) {
    CheckOne(reference.get(), runner->get(), campaign.first + k);
  }
}

class SchedulePropertyTest : public ::testing::TestWithParam<const char*> {};

TEST_P(SchedulePropertyTest, EveryScheduleOfRandomKernelsAgreesWithTheInterpreter) {
  auto reference = NewInterpreterRunner();
  auto runner = NewRunner(GetParam());
  if (absl::IsUnavailable(runner.status())) GTEST_SKIP() << runner.status().message();
  ASSERT_TRUE(runner.ok()) << runner.status();
  const testing::Campaign campaign = testing::CampaignFromEnv(9000, 50, 1500);
  int schedules = 0, different = 0;
  for (uint64_t k = 0; k < campaign.cases && different == 0 && !HasFatalFailure(); ++k) {
    CheckSchedules(reference.get(), runner->get(), campaign.first + k, &schedules, &different);
    if (different > 0) std::cout << "KILN_SEED=" << campaign.first + k << "\n";
  }
  EXPECT_EQ(different, 0);
  // Kernels have a choice; of vectors' not each rule has something to choose.
  EXPECT_GT(schedules, (runner->get()->is_gpu() ? 2 : 1) * static_cast<int>(campaign.cases));
}

// The control: threads that do not wait for each other are seen.
TEST(SchedulePropertyControl, WithoutBarriersSomeScheduleIsWrong) {
  auto reference = NewInterpreterRunner();
  auto runner = NewSimulatedGpuRunner(/*barriers=*/false);
  if (absl::IsUnavailable(runner.status())) GTEST_SKIP() << runner.status().message();
  ASSERT_TRUE(runner.ok()) << runner.status();
  int schedules = 0, different = 0;
  for (uint64_t seed = 9000; seed < 9050 && different == 0; ++seed) {
    CheckSchedules(reference.get(), runner->get(), seed, &schedules, &different);
  }
  EXPECT_GT(different, 0);
}

INSTANTIATE_TEST_SUITE_P(Targets, SchedulePropertyTest, ::testing::Values("neon", "gpu", "simulated_gpu"),
                         [](const auto& info) { return std::string(info.param); });

INSTANTIATE_TEST_SUITE_P(Targets, KernelPropertyTest,
                         ::testing::Values("avx2", "avx512", "neon", "gpu", "simulated_gpu"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace kiln
