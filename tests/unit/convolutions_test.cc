// Convolutions by cuDNN, against a stand-in for the library that convolves on the CPU as its descriptors say.
#include <memory>
#include <random>
#include <vector>

#include "client/runtime/cudnn_convolutions.h"
#include "client/runtime/torch_convolutions.h"
#include "client/runtime/tuned_convolutions.h"
#include "compiler/artifact/tunables.h"
#include "tests/unit/cudnn_stand_in.h"
#include "tests/unit/memory_calls.h"

namespace kiln::runtime {
namespace {

using Sizes = std::vector<int64_t>;

Sizes Strides(const Sizes& n, bool channels_last) {
  if (channels_last) return {n[1] * n[2] * n[3], 1, n[3] * n[1], n[1]};
  return {n[1] * n[2] * n[3], n[2] * n[3], n[3], 1};
}

class ConvolutionsTest : public MemoryCallsTest {
 protected:
  ConvolutionsTest() { fake = {}; }

  Tensor Images(const Sizes& sizes, bool channels_last = false) {
    return Filled(sizes, Strides(sizes, channels_last));
  }
  // Results declared as `wanted` says; no sizes: not wanted.
  bool Call(const std::string& target, const Tensors& tensors, Rest rest, const std::vector<Sizes>& wanted,
            bool channels_last = false) {
    const Arguments bound = Bind(tensors, std::move(rest));
    std::vector<Sizes> strides;
    std::vector<TensorMemory> declared(wanted.size());
    for (const Sizes& sizes : wanted)
      strides.push_back(sizes.empty() ? Sizes() : Strides(sizes, channels_last));
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!wanted[i].empty()) declared[i] = {nullptr, v1::F32, wanted[i], strides[i]};
    }
    made_.assign(wanted.size(), nullptr);
    const std::unique_ptr<MemoryCall> call = torch_.NewCall(target);
    const bool done = call != nullptr && call->Run({bound.names, bound.values},
                                                   {false, declared, absl::MakeSpan(made_)}, context_);
    for (Tensor tensor : made_) {
      if (tensor != nullptr) kept_.push_back(tensor);
    }
    return done;
  }
  bool Forward(Tensor input, Tensor weight, Rest rest, const Sizes& result, bool channels_last = false) {
    return Call("aten.convolution.default", {{"input", input}, {"weight", weight}}, std::move(rest), {result},
                channels_last);
  }

  Convolutions convolutions_{Library()};
  TorchConvolutions torch_{host_, Precision(), convolutions_};
  std::vector<Tensor> made_;
};

TEST_F(ConvolutionsTest, ConvolvesInBothLayouts) {
  for (const bool channels_last : {false, true}) {
    const Tensor x = Images({2, 4, 5, 6}, channels_last), w = Images({6, 2, 3, 2}, channels_last);
    Rest window = {{"stride", Pair(2, 1)},   {"padding", Pair(1, 2)},        {"dilation", Pair(1, 2)},
                   {"transposed", Count(0)}, {"output_padding", Pair(0, 0)}, {"groups", Count(2)}};
    ASSERT_TRUE(Forward(x, w, window, {2, 6, 3, 8}, channels_last));
    for (int64_t k = 0; k < 6; ++k) {
      float sum = 0;  // at image 1, row 1, column 3
      for (int64_t c = 0; c < 2; ++c) {
        for (int64_t r = 0; r < 3; ++r) {
          for (int64_t s = 0; s < 2; ++s) {
            const int64_t row = 2 - 1 + r, column = 3 - 2 + 2 * s;
            sum += At(x, {1, k / 3 * 2 + c, row, column}) * At(w, {k, c, r, s});
          }
        }
      }
      EXPECT_EQ(At(made_[0], {1, k, 1, 3}), sum);
    }
  }
  EXPECT_EQ(convolutions_.plan_count(), 2u);
}

// <grad, convolution of x by w> is linear in both: its gradients against it, for ones in one place.
TEST_F(ConvolutionsTest, GivesBothGradients) {
  for (const bool channels_last : {false, true}) {
    const Tensor x = Images({2, 3, 4, 4}, channels_last), w = Images({5, 3, 3, 3}, channels_last);
    const Tensor grad = Images({2, 5, 4, 4}, channels_last);
    ASSERT_TRUE(Forward(x, w, Window(1, 1, 1), {2, 5, 4, 4}, channels_last));
    const Tensor y = made_[0];
    double product = 0, by_input = 0, by_weight = 0;
    const auto each = [&](const Sizes& sizes, auto visit) {
      for (int64_t a = 0; a < sizes[0]; ++a)
        for (int64_t b = 0; b < sizes[1]; ++b)
          for (int64_t c = 0; c < sizes[2]; ++c)
            for (int64_t d = 0; d < sizes[3]; ++d) visit(Sizes{a, b, c, d});
    };
    each({2, 5, 4, 4}, [&](const Sizes& at) { product += At(y, at) * At(grad, at); });
    const Tensors tensors = {{"grad_output", grad}, {"input", x}, {"weight", w}};
    ASSERT_TRUE(Call("aten.convolution_backward.default", tensors, Window(1, 1, 1),
                     {{2, 3, 4, 4}, {5, 3, 3, 3}, {}}, channels_last));
    each({2, 3, 4, 4}, [&](const Sizes& at) { by_input += At(made_[0], at) * At(x, at); });
    each({5, 3, 3, 3}, [&](const Sizes& at) { by_weight += At(made_[1], at) * At(w, at); });
    EXPECT_EQ(by_input, product);
    EXPECT_EQ(by_weight, product);
    ASSERT_TRUE(Call("aten.convolution_backward.default", tensors, Window(1, 1, 1), {{}, {5, 3, 3, 3}, {}},
                     channels_last));
    EXPECT_EQ(made_[0], nullptr);
    EXPECT_FALSE(Call("aten.convolution_backward.default", tensors, Window(1, 1, 1),
                      {{2, 3, 4, 4}, {5, 3, 3, 3}, {5, 1, 1, 1}},
                      channels_last));  // a bias' gradient is ATen's
  }
}

TEST_F(ConvolutionsTest, FillsMemoryThatIsThere) {
  const Tensor x = Images({1, 3, 4, 4}, true), w = Images({2, 3, 3, 3}, true);
  ASSERT_TRUE(Forward(x, w, Window(1, 1, 1), {1, 2, 4, 4}, true));
  const Tensor y = Images({1, 2, 4, 4}, true), rows = Images({1, 2, 4, 4});
  const auto fill = [&](Tensor result) {
    const Arguments bound = Bind({{"input", x}, {"weight", w}}, Window(1, 1, 1));
    const TensorMemory memory = Memory(result);
    Tensor none = nullptr;
    return torch_.NewCall("aten.convolution.default")
        ->Run({bound.names, bound.values}, {true, {&memory, 1}, {&none, 1}}, context_);
  };
  const int64_t live = host_.live();
  ASSERT_TRUE(fill(y));
  EXPECT_EQ(host_.live(), live);
  EXPECT_EQ(At(y, {0, 1, 2, 3}), At(made_[0], {0, 1, 2, 3}));
  EXPECT_FALSE(fill(rows));
}

TEST_F(ConvolutionsTest, PlansOnce) {
  const Tensor x = Images({1, 3, 4, 4}), w = Images({2, 3, 3, 3});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Forward(x, w, Window(1, 1, 1), {1, 2, 4, 4}));
  EXPECT_EQ(fake.asked, 1);
  ASSERT_TRUE(Forward(x, w, Window(1, 0, 1), {1, 2, 2, 2}));
  EXPECT_EQ(fake.asked, 2);
  settings.convolution_tf32 = false;
  context_.tf32 = {};  // another call
  ASSERT_TRUE(Forward(x, w, Window(1, 1, 1), {1, 2, 4, 4}));
  EXPECT_EQ(fake.asked, 3);
}

TEST_F(ConvolutionsTest, TakesTheEngineThatTorchWould) {
  const Tensor x = Images({1, 3, 4, 4}), w = Images({2, 3, 3, 3});
  const auto engine = [&] {
    EXPECT_TRUE(Forward(x, w, Window(1, 1, 1), {1, 2, 4, 4}));
    return fake.last_engine;
  };
  fake.engines = {{{Cudnn::kRoundsInputs}},
                  {{Cudnn::kNondeterministic, Cudnn::kTensorCores}},
                  {{Cudnn::kTensorCores}},
                  {{Cudnn::kNondeterministic}},
                  {{}}};
  EXPECT_EQ(engine(), 1);
  settings.cudnn_deterministic = true;
  EXPECT_EQ(engine(), 2);
  settings.convolution_tf32 = false;
  context_.tf32 = {};  // another call
  EXPECT_EQ(engine(), 4);
  settings.cudnn_deterministic = false;
  EXPECT_EQ(engine(), 3);
  settings.deterministic = true;
  EXPECT_EQ(engine(), 4);
}

TEST_F(ConvolutionsTest, AsksNoMoreForWhatDidNotRun) {
  const Tensor x = Images({1, 3, 4, 4}), w = Images({2, 3, 3, 3});
  fake.engines = {{{}, false}};
  const int64_t live = host_.live();
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(Forward(x, w, Window(1, 1, 1), {1, 2, 4, 4}));
  EXPECT_EQ(fake.asked, 1);
  EXPECT_EQ(host_.live(), live);
}

TEST_F(ConvolutionsTest, GivesBackTheFirstGradientWhenTheSecondFails) {
  const Tensor x = Images({1, 3, 4, 4}), w = Images({2, 3, 3, 3}, true), grad = Images({1, 2, 4, 4});
  const int64_t live = host_.live();
  EXPECT_FALSE(Call("aten.convolution_backward.default", {{"grad_output", grad}, {"input", x}, {"weight", w}},
                    Window(1, 1, 1), {{1, 3, 4, 4}, {2, 3, 3, 3}, {}}));
  const Tensor rows = Images({2, 3, 3, 3});
  EXPECT_FALSE(Call("aten.convolution_backward.default",
                    {{"grad_output", grad}, {"input", x}, {"weight", rows}}, Window(1, 1, 1),
                    {{1, 3, 4, 4}, {2, 3, 3, 2}, {}}));
  EXPECT_EQ(fake.executed, 1);  // the input's gradient
  EXPECT_EQ(made_[0], nullptr);
  EXPECT_EQ(host_.live(), live + 1);
}

TEST_F(ConvolutionsTest, TakesWorkspace) {
  fake.workspace = 4096;
  EXPECT_TRUE(Forward(Images({1, 3, 4, 4}), Images({2, 3, 3, 3}), Window(1, 1, 1), {1, 2, 4, 4}));
  EXPECT_EQ(context_.scratch[0].bytes, size_t{64} << 10);
}

TEST_F(ConvolutionsTest, LeavesTheRestToTorch) {
  const Tensor x = Images({1, 3, 4, 4}), w = Images({2, 3, 3, 3});
  const Sizes y = {1, 2, 4, 4};
  EXPECT_FALSE(Forward(x, Images({2, 3, 3, 3}, true), Window(1, 1, 1), y));  // layouts that differ
  EXPECT_FALSE(Forward(x, w, Window(1, 1, 1), y, true));
  EXPECT_FALSE(Forward(x, w, Window(1, 1, 1), {1, 2, 4, 5}));
  Rest transposed = Window(1, 1, 1);
  transposed[3].second = Count(1);
  EXPECT_FALSE(Forward(x, w, transposed, y));
  EXPECT_FALSE(
      Call("aten.convolution.default", {{"input", x}, {"weight", w}, {"bias", w}}, Window(1, 1, 1), {y}));
  const Tensor channels = Images({3, 1, 3, 3});
  EXPECT_FALSE(Forward(x, channels, Window(1, 1, 3), {1, 3, 4, 4}));  // torch's own kernel, in rows
  EXPECT_TRUE(Forward(Images({1, 3, 4, 4}, true), channels, Window(1, 1, 3), {1, 3, 4, 4}, true));
  EXPECT_FALSE(Call("aten.mm.default", {{"input", x}, {"weight", w}}, Window(1, 1, 1), {y}));
  settings.benchmark = true;
  EXPECT_FALSE(Forward(x, w, Window(1, 1, 1), y));
  settings.benchmark = false;
  settings.cudnn = false;
  EXPECT_FALSE(Forward(x, w, Window(1, 1, 1), y));
  settings.cudnn = true;
  EXPECT_TRUE(Forward(x, w, Window(1, 1, 1), y));  // the control
}

class TunedConvolutionsTest : public ConvolutionsTest {
 protected:
  static constexpr int kBest = 2;

  TunedConvolutionsTest() { fake.engines = {{}, {{Cudnn::kNondeterministic}}, {}}; }

  // Every convolution of the program measured, and engine `best` found for it.
  void Tune(uint64_t version = kFakeCudnn, int best = kBest, int64_t knob = KnobOf(kBest)) {
    v1::Tuning tuning;
    tuning.mutable_gpu()->set_cudnn_version(version);
    for (const v1::Tunable& tunable : TunablesOf(program_, numerics_)) {
      v1::Measurement* record = tuning.add_measurements();
      *record->mutable_tunable() = tunable;
      record->mutable_winner()->mutable_plan()->set_engine(best);
      v1::ConvolutionPlan::Knob* choice = record->mutable_winner()->mutable_plan()->add_knobs();
      choice->set_kind(kFakeKnob);
      choice->set_value(knob);
    }
    ASSERT_GT(tuning.measurements_size(), 0);
    tuned_ = TunedConvolutions::Create(tuning);
    context_.tuned_convolutions = tuned_.get();
  }

  std::shared_ptr<const TunedConvolutions> tuned_;
};

TEST_F(TunedConvolutionsTest, WhatWasMeasuredRuns) {
  for (const bool channels_last : {false, true}) {
    program_.Clear();
    const Tensor x = Images({2, 4, 5, 6}, channels_last), w = Images({6, 2, 3, 2}, channels_last),
                 y = Images({2, 6, 3, 8}, channels_last);
    const Rest window = {{"stride", Pair(2, 1)},   {"padding", Pair(1, 2)},        {"dilation", Pair(1, 2)},
                         {"transposed", Count(0)}, {"output_padding", Pair(0, 0)}, {"groups", Count(2)}};
    const Tensors forward = {{"input", x}, {"weight", w}},
                  backward = {{"grad_output", y}, {"input", x}, {"weight", w}};
    AddCall("aten.convolution.default", forward, {y}, window);
    AddCall("aten.convolution.default", forward, {y}, window);
    AddCall("aten.convolution_backward.default", backward, {x, w, nullptr}, window);
    EXPECT_EQ(TunablesOf(program_, numerics_).size(), 3u);  // each once
    Tune();
    const uint64_t before = Convolutions::TunedPlans();
    ASSERT_TRUE(Call("aten.convolution.default", forward, window, {{2, 6, 3, 8}}, channels_last));
    EXPECT_EQ(fake.last_engine, kBest);
    ASSERT_TRUE(Call("aten.convolution_backward.default", backward, window, {{2, 4, 5, 6}, {6, 2, 3, 2}, {}},
                     channels_last));
    EXPECT_EQ(fake.last_engine, kBest);
    EXPECT_EQ(Convolutions::TunedPlans(), before + 3);
    // Others are not measured, and a program without measurements has none.
    ASSERT_TRUE(Forward(Images({1, 4, 5, 6}, channels_last), w, window, {1, 6, 3, 8}, channels_last));
    EXPECT_EQ(fake.last_engine, 0);
    context_.tuned_convolutions = nullptr;
    ASSERT_TRUE(Forward(x, w, window, {2, 6, 3, 8}, channels_last));
    EXPECT_EQ(fake.last_engine, 0);
  }
}

TEST_F(TunedConvolutionsTest, NothingRunsThatTheLibraryOrTorchRefuses) {
  const Tensor x = Images({1, 3, 4, 4}), w = Images({2, 3, 3, 3}), y = Images({1, 2, 4, 4});
  AddCall("aten.convolution.default", {{"input", x}, {"weight", w}}, {y}, Window(1, 1, 1));
  std::vector<std::unique_ptr<Convolutions>> kept;
  const auto engine = [&] {  // by plans of its own
    kept.push_back(std::make_unique<Convolutions>(Library()));
    TorchConvolutions torch(host_, Precision(), *kept.back());
    const Arguments bound = Bind({{"input", x}, {"weight", w}}, Window(1, 1, 1));
    const TensorMemory memory = Memory(y);
    Tensor none = nullptr;
    EXPECT_TRUE(torch.NewCall("aten.convolution.default")
                    ->Run({bound.names, bound.values}, {true, {&memory, 1}, {&none, 1}}, context_));
    return fake.last_engine;
  };
  Tune();
  EXPECT_EQ(engine(), kBest);  // the control
  Tune(kFakeCudnn + 1);        // another library's
  EXPECT_EQ(engine(), 0);
  Tune(kFakeCudnn, /*best=*/7);  // no such engine
  EXPECT_EQ(engine(), 0);
  Tune(kFakeCudnn, kBest, /*knob=*/1);
  EXPECT_EQ(engine(), 0);
  Tune(kFakeCudnn, 1, KnobOf(1));
  EXPECT_EQ(engine(), 1);
  numerics_.set_deterministic(true);  // measured for it by mistake
  settings.deterministic = true;
  Tune(kFakeCudnn, 1, KnobOf(1));
  EXPECT_EQ(engine(), 0);
}

TEST_F(TunedConvolutionsTest, WhatIsNotFixedOrNotCudnnsIsNotMeasured) {
  const Tensor x = Images({1, 3, 4, 4}), w = Images({2, 3, 3, 3}), y = Images({1, 2, 4, 4}),
               channels_last = Images({2, 3, 3, 3}, true), channels = Images({3, 1, 3, 3}),
               z = Images({1, 3, 4, 4});
  const auto count = [&](const Tensors& tensors, Tensor result, const Rest& window) {
    program_.Clear();
    AddCall("aten.convolution.default", tensors, {result}, window);
    return TunablesOf(program_, numerics_).size();
  };
  EXPECT_EQ(count({{"input", x}, {"weight", w}}, y, Window(1, 1, 1)), 1u);
  program_.mutable_buffers(0)->mutable_sizes(0)->set_expr(0);
  EXPECT_EQ(TunablesOf(program_, numerics_).size(), 0u);
  EXPECT_EQ(count({{"input", x}, {"weight", channels_last}}, y, Window(1, 1, 1)), 0u);
  EXPECT_EQ(count({{"input", x}, {"weight", w}, {"bias", w}}, y, Window(1, 1, 1)), 0u);
  EXPECT_EQ(count({{"input", x}, {"weight", channels}}, z, Window(1, 1, 3)), 0u);
  Rest transposed = Window(1, 1, 1);
  transposed[3].second = Count(1);
  EXPECT_EQ(count({{"input", x}, {"weight", w}}, y, transposed), 0u);
}

// The compiler and the runtime judge alike, or what was measured would not be found.
TEST_F(TunedConvolutionsTest, WhatIsMeasuredIsWhatRuns) {
  std::mt19937 random(20261130);
  const auto draw = [&](int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random);
  };
  int measured = 0, left = 0;
  for (int round = 0; round < 300; ++round) {
    const int64_t groups = draw(1, 3), channels = draw(1, 2), outputs = draw(1, 2) * groups;
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    const Sizes x = {draw(1, 2), groups * channels, draw(5, 7), draw(5, 7)};
    for (int d = 0; d < 2; ++d)  // never one point, which is a gemm
      kernel[d] = draw(2 - d, 3), stride[d] = draw(1, 2), padding[d] = draw(0, 1), dilation[d] = draw(1, 2);
    const Sizes w = {outputs, channels, kernel[0], kernel[1]};
    Sizes y = {x[0], outputs};
    for (int d = 0; d < 2; ++d)
      y.push_back((x[2 + d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) / stride[d] + 1);
    const bool last = draw(0, 1) == 1, other_weight = draw(0, 7) == 0, other_result = draw(0, 7) == 0;
    const int64_t said = draw(0, 9) == 0 ? groups + 1 : groups;
    const Rest window = {{"stride", Pair(stride[0], stride[1])},
                         {"padding", Pair(padding[0], padding[1])},
                         {"dilation", Pair(dilation[0], dilation[1])},
                         {"transposed", Count(draw(0, 9) == 0 ? 1 : 0)},
                         {"output_padding", Pair(0, 0)},
                         {"groups", Count(said)}};
    settings.deterministic = draw(0, 1) == 1;
    numerics_.set_deterministic(settings.deterministic);
    const Tensor image = Images(x, last), weight = Images(w, last != other_weight),
                 result = Images(y, last != other_result);
    program_.Clear();
    AddCall("aten.convolution.default", {{"input", image}, {"weight", weight}}, {result}, window);
    const size_t found = TunablesOf(program_, numerics_).size();
    ASSERT_EQ(Forward(image, weight, window, y, last != other_result), found == 1) << round;
    (found == 1 ? measured : left) += 1;
    if (other_weight) continue;
    const Tensors tensors = {{"grad_output", result}, {"input", image}, {"weight", weight}};
    program_.Clear();
    AddCall("aten.convolution_backward.default", tensors, {image, weight, nullptr}, window);
    ASSERT_EQ(Call("aten.convolution_backward.default", tensors, window, {x, w, {}}, last),
              TunablesOf(program_, numerics_).size() == 2)
        << round;
  }
  EXPECT_GT(measured, 50);
  EXPECT_GT(left, 50);
}

// Of two channels of results by a window of 3 x 3, and its memory.
struct SmallConvolution {
  SmallConvolution() {
    convolution.input = {data.data(), v1::F32, x, xs};
    convolution.weight = {data.data() + 100, v1::F32, w, ws};
    convolution.output = {data.data() + 300, v1::F32, y, ys};
  }

  std::vector<float> data = std::vector<float>(1000);
  const Sizes x = {1, 3, 4, 4}, w = {2, 3, 3, 3}, y = {1, 2, 2, 2};
  const Sizes xs = Strides(x, false), ws = Strides(w, false), ys = Strides(y, false);
  Convolution convolution;
};

TEST_F(TunedConvolutionsTest, OffersEachEngineOnceAndTheDefaultFirst) {
  fake.engines = {{{Cudnn::kRoundsInputs}}, {}, {}, {{Cudnn::kNondeterministic}}};
  SmallConvolution small;
  Convolution& convolution = small.convolution;
  const auto engines = [&](size_t wanted) {
    std::vector<int64_t> found;
    for (const Convolutions::Offer& offer : convolutions_.Offers(convolution, CallContext(), wanted, 0)) {
      EXPECT_TRUE(convolutions_.RunAs(convolution, offer, CallContext(), [](size_t) { return nullptr; }));
      EXPECT_EQ(fake.last_engine, offer.plan.engine());
      EXPECT_EQ(offer.plan.knobs(0).value(), KnobOf(fake.last_engine));
      found.push_back(offer.plan.engine());
    }
    return found;
  };
  EXPECT_EQ(engines(9), (std::vector<int64_t>{1, 2, 3}));  // not what torch would not take
  EXPECT_EQ(engines(2), (std::vector<int64_t>{1, 2}));
  convolution.deterministic = true;
  EXPECT_EQ(engines(9), (std::vector<int64_t>{1, 2}));
  fake.engines = {{{Cudnn::kRoundsInputs}}};
  EXPECT_TRUE(engines(9).empty());
}

TEST(ConvolutionsLibraryTest, GivesBackWhatItMade) {
  fake = {};
  {
    PlainHost host;
    Convolutions convolutions(Library());
    SmallConvolution small;
    ASSERT_TRUE(convolutions.Run(small.convolution, CallContext(), [](size_t) { return nullptr; }));
    EXPECT_GT(fake.live, 0);
  }
  EXPECT_EQ(fake.live, 0);
}

}  // namespace
}  // namespace kiln::runtime
