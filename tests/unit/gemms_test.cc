// Gemms by cuBLASLt, against a stand-in for the library that multiplies on the CPU as its descriptors say.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "client/runtime/cublas_lt_gemms.h"
#include "client/runtime/torch_gemms.h"
#include "client/runtime/tuned_gemms.h"
#include "compiler/artifact/tunables.h"
#include "tests/unit/cublas_lt_stand_in.h"
#include "tests/unit/memory_calls.h"

namespace kiln::runtime {
namespace {

class GemmsTest : public MemoryCallsTest {
 protected:
  GemmsTest() { fake = {}; }

  bool Call(const std::string& target, const Tensors& tensors, Tensor* result, bool into = true,
            Rest rest = {}) {
    const std::unique_ptr<MemoryCall> call = torch_.NewCall(target, /*fixed=*/false);
    return call != nullptr && Run(*call, tensors, result, into, std::move(rest));
  }
  bool Run(MemoryCall& call, const Tensors& tensors, Tensor* result, bool into = true, Rest rest = {}) {
    const Arguments bound = Bind(tensors, std::move(rest));
    TensorMemory declared;
    declared.dtype = v1::F32;
    if (into) declared = Memory(*result);
    return call.Run({bound.names, bound.values}, {into, {&declared, 1}, {result, 1}}, context_);
  }

  // By so many others that the plans are dropped.
  void ForgetAllPlans() {
    const bool knew = std::exchange(fake.knows, true);
    std::vector<float> x(5000), y(5000);
    float one = 1;
    size_t plans = 0;
    for (int64_t rows = 10; gemms_.plan_count() > plans; ++rows) {
      plans = gemms_.plan_count();
      Gemm gemm;
      gemm.a = {x.data(), rows, 1, 1, 1};
      gemm.b = {&one, 1, 1, 1, 1};
      gemm.d = {y.data(), rows, 1, 1, 1};
      ASSERT_LT(rows, 5000);
      ASSERT_TRUE(gemms_.Run(gemm, context_, [](size_t) { return nullptr; }));
    }
    fake.knows = knew;
  }

  static CallValue Truth(bool value) {
    CallValue made;
    made.kind = v1::Argument::kAsBool;
    made.number = value ? 1 : 0;
    return made;
  }

  Gemms gemms_{Library()};
  TorchGemms torch_{host_, Precision(), gemms_};
};

TEST_F(GemmsTest, MultipliesEveryLayout) {
  const std::vector<std::vector<int64_t>> a_strides = {{7, 1}, {1, 5}, {9, 1}, {1, 8}};   // of 5×7
  const std::vector<std::vector<int64_t>> b_strides = {{3, 1}, {1, 7}, {4, 1}, {1, 11}};  // of 7×3
  for (const auto& sa : a_strides) {
    for (const auto& sb : b_strides) {
      for (const std::vector<int64_t>& sd : {std::vector<int64_t>{3, 1}, {1, 5}, {6, 1}}) {
        const Tensor a = Filled({5, 7}, sa), b = Filled({7, 3}, sb), bias = Filled({3}, {1});
        for (const bool biased : {false, true}) {
          Tensor d = New({5, 3}, sd);
          const bool done = biased
                                ? Call("aten.addmm.default", {{"self", bias}, {"mat1", a}, {"mat2", b}}, &d)
                                : Call("aten.mm.default", {{"self", a}, {"mat2", b}}, &d);
          if (biased && sd[0] == 1) {
            EXPECT_FALSE(done);  // a bias lies along stored columns
            continue;
          }
          ASSERT_TRUE(done);
          for (int64_t i = 0; i < 5; ++i) {
            for (int64_t j = 0; j < 3; ++j) {
              float sum = biased ? At(bias, {j}) : 0;
              for (int64_t k = 0; k < 7; ++k) sum += At(a, {i, k}) * At(b, {k, j});
              ASSERT_EQ(At(d, {i, j}), sum);
            }
          }
        }
      }
    }
  }
}

TEST_F(GemmsTest, MultipliesSizesOfOne) {
  for (const auto& [m, k, n] :
       std::vector<std::array<int64_t, 3>>{{1, 4, 3}, {3, 1, 2}, {4, 3, 1}, {1, 1, 1}, {1, 5, 1}}) {
    // Strides of sizes of one are anything.
    const Tensor a = Filled({m, k}, {m == 1 ? 1 : k, k == 1 ? 3 : 1}),
                 b = Filled({k, n}, {k == 1 ? 2 : n, n == 1 ? 5 : 1});
    Tensor d = New({m, n}, {n, 1});
    ASSERT_TRUE(Call("aten.mm.default", {{"self", a}, {"mat2", b}}, &d)) << m << k << n;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        float sum = 0;
        for (int64_t l = 0; l < k; ++l) sum += At(a, {i, l}) * At(b, {l, j});
        EXPECT_EQ(At(d, {i, j}), sum);
      }
    }
  }
}

TEST_F(GemmsTest, MultipliesBatchesAndAddsAMatrix) {
  const Tensor a = Filled({4, 2, 3}, {6, 3, 1}), b = Filled({4, 3, 5}, {1, 20, 4}),
               c = Filled({4, 2, 5}, {10, 5, 1});
  Tensor d = New({4, 2, 5}, {10, 5, 1});
  EXPECT_FALSE(Call("aten.bmm.default", {{"self", a}, {"mat2", b}}, &d));  // neither stride is 1
  const Tensor good = Filled({4, 3, 5}, {15, 1, 3});
  for (const bool added : {false, true}) {
    ASSERT_TRUE(added ? Call("aten.baddbmm.default", {{"self", c}, {"batch1", a}, {"batch2", good}}, &d, true,
                             {{"alpha", Number(2)}, {"beta", Number(3)}})
                      : Call("aten.bmm.default", {{"self", a}, {"mat2", good}}, &d));
    for (int64_t n = 0; n < 4; ++n) {
      for (int64_t i = 0; i < 2; ++i) {
        for (int64_t j = 0; j < 5; ++j) {
          float sum = 0;
          for (int64_t k = 0; k < 3; ++k) sum += At(a, {n, i, k}) * At(good, {n, k, j});
          EXPECT_EQ(At(d, {n, i, j}), added ? 2 * sum + 3 * At(c, {n, i, j}) : sum);
        }
      }
    }
  }
}

TEST_F(GemmsTest, PlansEachKindOnce) {
  const Tensor a = Filled({4, 6}, {6, 1}), b = Filled({6, 8}, {8, 1}), wide = Filled({4, 6}, {12, 1});
  Tensor d = New({4, 8}, {8, 1});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Call("aten.mm.default", {{"self", a}, {"mat2", b}}, &d));
  EXPECT_EQ(fake.asked, 1);
  EXPECT_EQ(fake.launched, 3);
  ASSERT_TRUE(Call("aten.mm.default", {{"self", wide}, {"mat2", b}}, &d));
  EXPECT_EQ(fake.asked, 2);
  EXPECT_EQ(gemms_.plan_count(), 2u);
}

TEST_F(GemmsTest, RemembersThePlanOfItsStep) {
  const Tensor a = Filled({4, 6}, {6, 1}), b = Filled({6, 8}, {8, 1}), longer = Filled({5, 6}, {6, 1});
  Tensor d = New({4, 8}, {8, 1}), e = New({5, 8}, {8, 1});
  const std::unique_ptr<MemoryCall> fixed = torch_.NewCall("aten.mm.default", true),
                                    changing = torch_.NewCall("aten.mm.default", false);
  const Tensors tensors = {{"self", a}, {"mat2", b}};
  ASSERT_TRUE(Run(*fixed, tensors, &d));
  ASSERT_TRUE(Run(*changing, tensors, &d));
  const float expected = At(d, {2, 3});
  EXPECT_EQ(fake.asked, 1);
  ForgetAllPlans();
  const int asked = fake.asked;
  for (MemoryCall* step : {fixed.get(), changing.get()}) ASSERT_TRUE(Run(*step, tensors, &d));
  EXPECT_EQ(fake.asked, asked);
  ASSERT_TRUE(Call("aten.mm.default", tensors, &d));  // not a step's own
  EXPECT_EQ(fake.asked, asked + 1);
  for (int i = 0; i < 2; ++i) {  // sizes that change find the plan of theirs
    ASSERT_TRUE(Run(*changing, {{"self", longer}, {"mat2", b}}, &e));
    ASSERT_TRUE(Run(*changing, tensors, &d));
  }
  EXPECT_EQ(fake.asked, asked + 2);
  EXPECT_EQ(At(d, {2, 3}), expected);
  fake.knows = false;  // what can't be done leaves the plan alone
  EXPECT_FALSE(Run(*changing, {{"self", a}, {"mat2", Filled({6, 7}, {7, 1})}}, &d));
  ForgetAllPlans();
  EXPECT_TRUE(Run(*changing, tensors, &d));
}

TEST_F(GemmsTest, AStepOfFixedSizesFollowsAllElse) {
  const Tensor a = Filled({4, 6}, {6, 1}), b = Filled({6, 8}, {8, 1}), first = Filled({8}, {1});
  const Tensor second = Filled({8}, {1}), c = Filled({4, 6}, {6, 1});
  Tensor d = New({4, 8}, {8, 1}), e = New({4, 8}, {8, 1});
  const std::unique_ptr<MemoryCall> step = torch_.NewCall("aten.addmm.default", true);
  const auto same = [&](Tensor self, Tensor mat1, Tensor to) {
    const Tensors tensors = {{"self", self}, {"mat1", mat1}, {"mat2", b}};
    auto* const data = static_cast<float*>(*host_.Data(to));
    EXPECT_TRUE(Call("aten.addmm.default", tensors, &to));
    const std::vector<float> expected(data, data + 32);
    std::fill_n(data, 32, -1.0f);
    const int asked = fake.asked;
    EXPECT_TRUE(Run(*step, tensors, &to));
    EXPECT_EQ(fake.asked, asked);  // the same plan
    EXPECT_EQ(std::vector<float>(data, data + 32), expected);
  };
  same(first, a, d);
  same(second, c, e);  // other memory
  const int asked = fake.asked;
  settings.matmul_tf32 = true;  // other precision
  context_.tf32 = {};
  same(first, a, d);
  EXPECT_EQ(fake.last_compute, CublasLt::kComputeTf32);
  EXPECT_EQ(fake.asked, asked + 1);
  settings.contradict = true;
  context_.tf32 = {};
  EXPECT_FALSE(Run(*step, {{"self", first}, {"mat1", a}, {"mat2", b}}, &d));
  settings = {};
  context_.tf32 = {};
  fake.splits = 3;
  context_.recorded = true;  // sums in pieces
  same(first, a, d);
  EXPECT_EQ(fake.last_reductions, CublasLt::kReduceAnyhow);
  const int known = fake.asked;
  const Tensor room = Filled({25}, {1});  // an alignment that no tensor has
  const Arguments bound = Bind({{"self", first}, {"mat1", a}, {"mat2", b}}, {});
  std::vector<CallValue> values = bound.values;
  values[1].memory.data = static_cast<float*>(*host_.Data(room)) + 1;
  const TensorMemory declared = Memory(d);
  Tensor made = nullptr;
  EXPECT_TRUE(step->Run({bound.names, values}, {true, {&declared, 1}, {&made, 1}}, context_));
  EXPECT_GT(fake.asked, known);
  float sum = At(first, {3});
  for (int64_t k = 0; k < 6; ++k) sum += At(room, {1 + 12 + k}) * At(b, {k, 3});
  EXPECT_EQ(At(d, {2, 3}), sum);
  // What is no gemm stays none.
  const std::unique_ptr<MemoryCall> none = torch_.NewCall("aten.mm.default", true);
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(Run(*none, {{"self", a}, {"mat2", b}}, &d, /*into=*/false));
  EXPECT_EQ(torch_.NewCall("aten.relu.default", true), nullptr);
}

TEST_F(GemmsTest, KeepsABiasOfEachCall) {
  const Tensor a = Filled({4, 6}, {6, 1}), b = Filled({6, 8}, {8, 1});
  const Tensor first = Filled({8}, {1}), second = Filled({8}, {1});
  Tensor d = New({4, 8}, {8, 1}), e = New({4, 8}, {8, 1});
  ASSERT_TRUE(Call("aten.addmm.default", {{"self", first}, {"mat1", a}, {"mat2", b}}, &d));
  ASSERT_TRUE(Call("aten.addmm.default", {{"self", second}, {"mat1", a}, {"mat2", b}}, &e));
  for (int64_t j = 0; j < 8; ++j) EXPECT_EQ(At(d, {2, j}) - At(e, {2, j}), At(first, {j}) - At(second, {j}));
}

TEST_F(GemmsTest, ActivatesWhatItAdded) {
  const Tensor a = Filled({4, 6}, {6, 1}), b = Filled({6, 8}, {8, 1}), bias = Filled({8}, {1}),
               c = Filled({4, 8}, {8, 1}), unused = Filled({8}, {2});
  Tensor plain = New({4, 8}, {8, 1}), d = New({4, 8}, {8, 1});
  for (const auto& [self, beta] : std::vector<std::pair<Tensor, int64_t>>{{bias, 1}, {c, -2}, {unused, 0}}) {
    const Tensors tensors = {{"self", self}, {"mat1", a}, {"mat2", b}};
    const auto rest = [&, beta = beta](bool gelu) {
      return Rest{{"beta", Number(beta)}, {"alpha", Number(-1)}, {"use_gelu", Truth(gelu)}};
    };
    if (beta != 0) {
      ASSERT_TRUE(Call("aten.addmm.default", tensors, &plain, true, rest(false)));
    } else {
      ASSERT_TRUE(Call("aten.addmm.default", {{"self", c}, {"mat1", a}, {"mat2", b}}, &plain, true,
                       {{"beta", Number(0)}, {"alpha", Number(-1)}}));
    }
    for (const bool gelu : {false, true}) {
      ASSERT_TRUE(Call("aten._addmm_activation.default", tensors, &d, true, rest(gelu)));
      bool changed = false;
      for (int64_t i = 0; i < 4; ++i) {
        for (int64_t j = 0; j < 8; ++j) {
          const float x = At(plain, {i, j});
          ASSERT_EQ(At(d, {i, j}), gelu ? GeluByTanh(x) : std::max(x, 0.0f));
          changed = changed || At(d, {i, j}) != x;
        }
      }
      EXPECT_TRUE(changed);
    }
  }
  EXPECT_EQ(gemms_.plan_count(), 9u);  // each activation a kind of its own
}

TEST_F(GemmsTest, SplitsSumsWithABiasToo) {
  const Tensor b = Filled({6, 8}, {8, 1}), first = Filled({8}, {1});
  context_.recorded = true;
  fake.splits = 3;  // the plain algorithm splits: it is used where it takes a bias
  const Tensor a = Filled({4, 6}, {6, 1});
  Tensor d = New({4, 8}, {8, 1});
  ASSERT_TRUE(Call("aten.addmm.default", {{"self", first}, {"mat1", a}, {"mat2", b}}, &d));
  EXPECT_EQ(fake.asked, 1);
  fake.takes_bias = false;  // otherwise the heuristic is asked again
  const int asked = fake.asked;
  const Tensor longer = Filled({5, 6}, {6, 1});
  Tensor f = New({5, 8}, {8, 1});
  ASSERT_TRUE(Call("aten.addmm.default", {{"self", first}, {"mat1", longer}, {"mat2", b}}, &f));
  EXPECT_EQ(fake.asked, asked + 2);
}

TEST_F(GemmsTest, FollowsTorchsPrecisionAtEachCall) {
  const Tensor a = Filled({4, 6}, {6, 1}), b = Filled({6, 8}, {8, 1});
  Tensor d = New({4, 8}, {8, 1});
  const auto multiply = [&] { return Call("aten.mm.default", {{"self", a}, {"mat2", b}}, &d); };
  ASSERT_TRUE(multiply());
  EXPECT_EQ(fake.last_compute, CublasLt::kCompute32F);
  settings.matmul_tf32 = true;
  ASSERT_TRUE(multiply());
  EXPECT_EQ(fake.last_compute, CublasLt::kCompute32F);  // settings of a call hold for all of it
  context_.tf32 = {};
  ASSERT_TRUE(multiply());
  EXPECT_EQ(fake.last_compute, CublasLt::kComputeTf32);
  context_.tf32 = {};
  settings.contradict = true;  // torch throws: its own call has to report that
  EXPECT_FALSE(multiply());
}

TEST_F(GemmsTest, FollowsTorchsSumsOfNarrowTypes) {
  const TorchPrecision precision = Precision();
  EXPECT_EQ(precision.ReducedSums(v1::BF16), true);
  settings.sums = 1;
  EXPECT_EQ(precision.ReducedSums(v1::BF16), false);
  settings.sums = 2;  // no split sums: not to be had by a mask
  EXPECT_EQ(precision.ReducedSums(v1::BF16), std::nullopt);
  EXPECT_EQ(precision.ReducedSums(v1::F16), std::nullopt);  // no such function here
  EXPECT_EQ(TorchPrecision().Tf32(false), std::nullopt);
}

TEST_F(GemmsTest, SplitsShortSumsOnlyWhereALaunchIsPaidOnce) {
  fake.splits = 3;
  const Tensor a = Filled({4, 6}, {6, 1}), b = Filled({6, 8}, {8, 1}), bias = Filled({8}, {1});
  Tensor d = New({4, 8}, {8, 1});
  for (const bool biased : {false, true}) {
    for (const bool recorded : {false, true}) {
      context_.recorded = recorded;
      ASSERT_TRUE(biased ? Call("aten.addmm.default", {{"self", bias}, {"mat1", a}, {"mat2", b}}, &d)
                         : Call("aten.mm.default", {{"self", a}, {"mat2", b}}, &d));
      EXPECT_EQ(fake.last_reductions, recorded ? CublasLt::kReduceAnyhow : CublasLt::kReduceNever);
    }
  }
  context_.recorded = false;
  const Tensor wide = Filled({4, 2000}, {2000, 1}), tall = Filled({2000, 8}, {8, 1});
  ASSERT_TRUE(Call("aten.mm.default", {{"self", wide}, {"mat2", tall}}, &d));
  EXPECT_EQ(fake.last_reductions, CublasLt::kReduceAnyhow);
}

TEST_F(GemmsTest, KeepsALittleWorkspaceFromCallToCall) {
  const Tensor a = Filled({4, 6}, {6, 1}), b = Filled({6, 8}, {8, 1}), c = Filled({6, 9}, {9, 1});
  Tensor d = New({4, 8}, {8, 1}), e = New({4, 9}, {9, 1});
  const int64_t before = host_.live();
  fake.workspace = 1000;
  ASSERT_TRUE(Call("aten.mm.default", {{"self", a}, {"mat2", b}}, &d));
  const void* const first = fake.last_workspace;
  EXPECT_NE(first, nullptr);
  EXPECT_EQ(host_.live(), before + 1);
  ASSERT_TRUE(Call("aten.mm.default", {{"self", a}, {"mat2", b}}, &d));
  EXPECT_EQ(fake.last_workspace, first);
  fake.workspace = size_t{3} << 20;  // more is for the call only
  ASSERT_TRUE(Call("aten.mm.default", {{"self", a}, {"mat2", c}}, &e));
  EXPECT_NE(fake.last_workspace, first);
  EXPECT_EQ(host_.live(), before + 1);
}

// What max-autotune measured, from the plan of a program to the call that runs.
class TunedGemmsTest : public GemmsTest {
 protected:
  static constexpr uint64_t kBest = 99;

  // Every gemm of the program measured, and `kBest` found for it.
  void Tune(uint64_t version = kVersion, int32_t splits = 1) {
    v1::Tuning tuning;
    tuning.mutable_gpu()->set_cublas_lt_version(version);
    CublasLt::Heuristic best = {};
    best.algorithm.data[0] = static_cast<uint64_t>(splits);
    best.algorithm.data[1] = kBest;
    for (const v1::Tunable& tunable : TunablesOf(program_, numerics_)) {
      v1::Measurement* record = tuning.add_measurements();
      *record->mutable_tunable() = tunable;
      *record->mutable_winner()->mutable_algorithm() = Describe(best);
    }
    ASSERT_GT(tuning.measurements_size(), 0);
    tuned_ = *TunedGemms::Create(tuning, {});
    context_.tuned = tuned_.get();
  }
  bool Runs(const std::string& target, const Tensors& tensors, Tensor d) {
    fake.last_algorithm = 0;
    EXPECT_TRUE(Call(target, tensors, &d));
    return fake.last_algorithm == kBest;
  }

  std::shared_ptr<const TunedGemms> tuned_;
};

TEST_F(TunedGemmsTest, WhatWasMeasuredRuns) {
  numerics_.set_float32_matmul_precision("highest");
  const Tensor a = Filled({4, 6}, {6, 1}), b = Filled({6, 8}, {1, 6}), c = Filled({4, 8}, {8, 1}),
               bias = Filled({8}, {1}), other = Filled({5, 6}, {6, 1});
  const Tensor a3 = Filled({2, 4, 6}, {24, 6, 1}), b3 = Filled({2, 6, 8}, {48, 8, 1});
  Tensor d = New({4, 8}, {8, 1}), d3 = New({2, 4, 8}, {32, 8, 1}), e = New({5, 8}, {8, 1});
  const std::vector<std::tuple<std::string, Tensors, Tensor>> calls = {
      {"aten.mm.default", {{"self", a}, {"mat2", b}}, d},
      {"aten.addmm.default", {{"self", bias}, {"mat1", a}, {"mat2", b}}, d},
      {"aten.addmm.default", {{"self", c}, {"mat1", a}, {"mat2", b}}, d},
      {"aten._addmm_activation.default", {{"self", bias}, {"mat1", a}, {"mat2", b}}, d},
      {"aten.bmm.default", {{"self", a3}, {"mat2", b3}}, d3},
      {"aten.baddbmm.default", {{"self", d3}, {"batch1", a3}, {"batch2", b3}}, d3}};
  for (const auto& [target, tensors, result] : calls) AddCall(target, tensors, {result});
  Tune();
  const uint64_t before = Gemms::TunedPlans();
  for (const auto& [target, tensors, result] : calls) EXPECT_TRUE(Runs(target, tensors, result)) << target;
  EXPECT_EQ(Gemms::TunedPlans(), before + calls.size());
  EXPECT_FALSE(Runs("aten.mm.default", {{"self", other}, {"mat2", b}}, e));  // not measured
  settings.matmul_tf32 = true;                                               // another gemm
  context_.tf32 = {};
  EXPECT_FALSE(Runs("aten.mm.default", {{"self", a}, {"mat2", b}}, d));
  settings.matmul_tf32 = false;
  context_.tf32 = {};
  context_.tuned = nullptr;  // a program without measurements
  EXPECT_FALSE(Runs("aten.mm.default", {{"self", a}, {"mat2", b}}, d));
}

TEST_F(TunedGemmsTest, AConvolutionOfOnePointIsAGemm) {
  numerics_.set_float32_matmul_precision("highest");
  const Tensor w = Filled({5, 3, 1, 1}, {3, 1, 1, 1});
  for (const bool channels_last : {false, true}) {
    const auto images = [&](int64_t channels) {
      return Filled({2, channels, 4, 4}, channels_last
                                             ? std::vector<int64_t>{16 * channels, 1, 4 * channels, channels}
                                             : std::vector<int64_t>{16 * channels, 16, 4, 1});
    };
    const Tensor x = images(3);
    Tensor y = images(5);
    program_.Clear();
    AddCall("aten.convolution.default", {{"input", x}, {"weight", w}}, {y}, Window(1, 0, 1));
    Tune();
    fake.last_algorithm = 0;
    EXPECT_TRUE(Call("aten.convolution.default", {{"input", x}, {"weight", w}}, &y, true, Window(1, 0, 1)));
    EXPECT_EQ(fake.last_algorithm, kBest) << channels_last;
  }
}

TEST_F(TunedGemmsTest, WhatTakesMostOfTheProgramComesFirst) {
  const Tensor a = Filled({4, 6}, {6, 1}), b = Filled({6, 8}, {8, 1}), wide = Filled({6, 12}, {12, 1});
  const Tensor d = New({4, 8}, {8, 1}), e = New({4, 12}, {12, 1});
  AddCall("aten.mm.default", {{"self", a}, {"mat2", b}}, {d});
  AddCall("aten.mm.default", {{"self", a}, {"mat2", wide}}, {e});
  EXPECT_EQ(TunablesOf(program_, numerics_)[0].gemm().d().columns(), 12);
  AddCall("aten.mm.default", {{"self", a}, {"mat2", b}}, {d});
  EXPECT_EQ(TunablesOf(program_, numerics_)[0].gemm().d().columns(), 8);  // twice
}

TEST_F(TunedGemmsTest, NothingRunsThatTheLibraryRefuses) {
  numerics_.set_float32_matmul_precision("highest");
  const Tensor a = Filled({4, 6}, {6, 1}), b = Filled({6, 8}, {8, 1});
  Tensor d = New({4, 8}, {8, 1});
  const Tensors tensors = {{"self", a}, {"mat2", b}};
  AddCall("aten.mm.default", tensors, {d});
  Tune(kVersion + 1);  // another library's
  EXPECT_FALSE(Runs("aten.mm.default", tensors, d));
  Gemms again{Library()};
  fake.takes_any = false;
  Tune();
  TorchGemms torch(host_, Precision(), again);
  EXPECT_TRUE(Run(*torch.NewCall("aten.mm.default", /*fixed=*/true), tensors, &d));
  EXPECT_NE(fake.last_algorithm, kBest);
}

TEST_F(TunedGemmsTest, SplitsOnlyWhereALaunchIsPaidOnce) {
  numerics_.set_float32_matmul_precision("highest");
  const Tensor a = Filled({4, 6}, {6, 1}), b = Filled({6, 8}, {8, 1});
  Tensor d = New({4, 8}, {8, 1});
  AddCall("aten.mm.default", {{"self", a}, {"mat2", b}}, {d});
  Tune(kVersion, /*splits=*/4);
  EXPECT_FALSE(Runs("aten.mm.default", {{"self", a}, {"mat2", b}}, d));
  context_.recorded = true;
  EXPECT_TRUE(Runs("aten.mm.default", {{"self", a}, {"mat2", b}}, d));
}

TEST_F(TunedGemmsTest, SizesThatChangeAreNotMeasured) {
  const Tensor a = Filled({4, 6}, {6, 1}), b = Filled({6, 8}, {8, 1});
  AddCall("aten.mm.default", {{"self", a}, {"mat2", b}}, {New({4, 8}, {8, 1})});
  EXPECT_EQ(TunablesOf(program_, numerics_).size(), 1u);
  AddCall("aten.mm.default", {{"self", a}, {"mat2", b}}, {New({4, 8}, {8, 1})});
  EXPECT_EQ(TunablesOf(program_, numerics_).size(), 1u);  // each once
  program_.mutable_buffers(0)->mutable_sizes(0)->set_expr(0);
  program_.mutable_buffers(3)->mutable_sizes(0)->set_expr(0);
  EXPECT_EQ(TunablesOf(program_, numerics_).size(), 0u);
}

TEST_F(TunedGemmsTest, EachActivationIsMeasured) {
  const Tensor a = Filled({4, 6}, {6, 1}), b = Filled({6, 8}, {8, 1}), bias = Filled({8}, {1});
  const Tensors tensors = {{"self", bias}, {"mat1", a}, {"mat2", b}};
  const Tensor d = New({4, 8}, {8, 1});
  AddCall("aten.addmm.default", tensors, {d});
  for (const bool gelu : {false, true}) {
    AddCall("aten._addmm_activation.default", tensors, {d});
    v1::NamedArgument* argument = program_.mutable_steps()->rbegin()->mutable_call()->add_args();
    argument->set_name("use_gelu");
    argument->mutable_value()->set_as_bool(gelu);
  }
  std::vector<v1::Activation> activations;
  for (const v1::Tunable& tunable : TunablesOf(program_, numerics_)) {
    const v1::Gemm& gemm = tunable.gemm();
    activations.push_back(gemm.activation());
    EXPECT_EQ(Describe(GemmOf(gemm)).SerializeAsString(), gemm.SerializeAsString());
  }
  EXPECT_EQ(activations, (std::vector<v1::Activation>{v1::ACTIVATION_NONE, v1::ACTIVATION_RELU,
                                                      v1::ACTIVATION_GELU_TANH}));
}

TEST_F(TunedGemmsTest, RefusesWhatIsNoAlgorithm) {
  v1::Tuning tuning;
  EXPECT_EQ(*TunedGemms::Create(tuning, {}), nullptr);
  v1::Measurement* measured = tuning.add_measurements();
  measured->mutable_tunable()->mutable_gemm();
  measured->mutable_winner()->mutable_algorithm()->set_data("short");
  EXPECT_EQ(TunedGemms::Create(tuning, {}).status().code(), absl::StatusCode::kInvalidArgument);
  measured->mutable_winner()->mutable_native()->mutable_object()->set_digest("gone");
  EXPECT_EQ(TunedGemms::Create(tuning, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(GemmsTest, OffersEachAlgorithmOnceAndTheDefaultFirst) {
  float memory[64] = {};
  Gemm gemm;
  gemm.a = {memory, 4, 4, 4, 1, 0};
  gemm.b = gemm.d = gemm.a;
  const auto names = [&] {
    std::vector<uint64_t> found;
    for (const CublasLt::Heuristic& one : gemms_.Algorithms(gemm, context_, 8)) {
      found.push_back(one.algorithm.data[1]);
    }
    return found;
  };
  EXPECT_EQ(names(), (std::vector<uint64_t>{0, 11, 12}));
  gemm.bias = memory;
  EXPECT_EQ(names(), (std::vector<uint64_t>{0, 41, 42, 11, 12}));
  fake.takes_bias = false;  // those of the plain gemm
  EXPECT_EQ(names(), (std::vector<uint64_t>{0, 41, 42}));
  fake.knows = false;
  EXPECT_TRUE(names().empty());
}

TEST_F(GemmsTest, LeavesTheRestToTorch) {
  const Tensor a = Filled({4, 6}, {6, 1}), b = Filled({6, 8}, {8, 1}), bias = Filled({8}, {1}),
               one = Filled({1}, {1});
  Tensor d = New({4, 8}, {8, 1});
  EXPECT_FALSE(Call("aten.sin.default", {{"self", a}}, &d));
  EXPECT_FALSE(Call("aten.mm.default", {{"self", a}, {"mat2", b}}, &d, false));
  EXPECT_FALSE(Call("aten.addmm.default", {{"self", one}, {"mat1", a}, {"mat2", b}}, &d));
  EXPECT_FALSE(Call("aten.addmm.default", {{"self", bias}, {"mat1", a}, {"mat2", b}}, &d, true,
                    {{"beta", Number(2)}}));
  fake.knows = false;
  EXPECT_FALSE(Call("aten.mm.default", {{"self", a}, {"mat2", b}}, &d));
  EXPECT_FALSE(Call("aten.mm.default", {{"self", a}, {"mat2", b}}, &d));
  EXPECT_EQ(fake.asked, 1);  // what can't be done is remembered
  EXPECT_EQ(fake.launched, 0);
}

TEST_F(GemmsTest, ConvolvesWithOnePoint) {
  const int64_t n = 2, c = 3, h = 4, w = 5, o = 6;
  for (const bool channels_last : {false, true}) {
    const Tensor x = channels_last ? Filled({n, c, h, w}, {c * h * w, 1, w * c, c})
                                   : Filled({n, c, h, w}, {c * h * w, h * w, w, 1});
    const Tensor weight = Filled({o, c, 1, 1}, {c, 1, 1, 1});
    Tensor y = nullptr;
    ASSERT_TRUE(
        Call("aten.convolution.default", {{"input", x}, {"weight", weight}}, &y, false, Window(1, 0, 1)));
    EXPECT_EQ(fake.last_compute, CublasLt::kCompute32F);  // the setting of gemms, not cuDNN's
    EXPECT_EQ((*host_.Strides(y))[1], channels_last ? 1 : h * w);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < o; ++j) {
        for (int64_t p = 0; p < h * w; ++p) {
          float sum = 0;
          for (int64_t k = 0; k < c; ++k) sum += At(x, {i, k, p / w, p % w}) * At(weight, {j, k, 0, 0});
          ASSERT_EQ(At(y, {i, j, p / w, p % w}), sum);
        }
      }
    }
    Tensor filled = channels_last ? New({n, o, h, w}, {o * h * w, 1, w * o, o})
                                  : New({n, o, h, w}, {o * h * w, h * w, w, 1});
    ASSERT_TRUE(
        Call("aten.convolution.default", {{"input", x}, {"weight", weight}}, &filled, true, Window(1, 0, 1)));
    EXPECT_EQ(At(filled, {1, 5, 3, 4}), At(y, {1, 5, 3, 4}));
    Tensor other = channels_last ? New({n, o, h, w}, {o * h * w, h * w, w, 1})
                                 : New({n, o, h, w}, {o * h * w, 1, w * o, o});
    EXPECT_FALSE(
        Call("aten.convolution.default", {{"input", x}, {"weight", weight}}, &other, true, Window(1, 0, 1)));
    host_.Release(y);
    y = nullptr;
    EXPECT_FALSE(
        Call("aten.convolution.default", {{"input", x}, {"weight", weight}}, &y, false, Window(2, 0, 1)));
    EXPECT_FALSE(
        Call("aten.convolution.default", {{"input", x}, {"weight", weight}}, &y, false, Window(1, 1, 1)));
    EXPECT_FALSE(
        Call("aten.convolution.default", {{"input", x}, {"weight", weight}}, &y, false, Window(1, 0, 3)));
    EXPECT_FALSE(Call("aten.convolution.default", {{"input", x}, {"weight", weight}, {"bias", weight}}, &y,
                      false, Window(1, 0, 1)));
    EXPECT_EQ(y, nullptr);
  }
  const Tensor apart = Filled({1, c, h, w}, {c * h * w * 4, 1, 2 * w * c, c}),
               weight = Filled({o, c, 1, 1}, {c, 1, 1, 1});
  Tensor y = nullptr;  // rows with gaps between them are no matrix
  EXPECT_FALSE(
      Call("aten.convolution.default", {{"input", apart}, {"weight", weight}}, &y, false, Window(1, 0, 1)));
}

TEST(CublasLtGemms, GivesBackWhatItMade) {
  fake = {};
  {
    Gemms gemms{Library()};
    float a[4] = {1, 2, 3, 4}, d[4];
    Gemm gemm;
    gemm.a = gemm.b = {a, 2, 2, 2, 1};
    gemm.d = {d, 2, 2, 2, 1};
    ASSERT_TRUE(gemms.Run(gemm, CallContext(), [](size_t) { return nullptr; }));
    EXPECT_EQ(d[3], 22);
    EXPECT_GT(fake.live, 0);
  }
  EXPECT_EQ(fake.live, 0);
}

}  // namespace
}  // namespace kiln::runtime
