// Convolutions by cuDNN, against a stand-in for the library that convolves on the CPU as its descriptors say.
#include "client/runtime/convolutions.h"

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "client/runtime/torch_convolutions.h"
#include "tests/unit/memory_calls.h"

namespace kiln::runtime {
namespace {

// ---- the stand-in

struct FakeDescriptor {
  int kind = 0;
  bool final = false;
  std::map<int, std::vector<char>> values;
  std::vector<int> notes;  // of an engine and its configuration
  bool runs = true;
  int engine = -1;
  const FakeDescriptor* operation = nullptr;  // of a configuration

  template <typename T>
  std::vector<T> All(int attribute) const {
    const std::vector<char>& bytes = values.at(attribute);
    std::vector<T> all(bytes.size() / sizeof(T));
    std::memcpy(static_cast<void*>(all.data()), bytes.data(), bytes.size());
    return all;
  }
  template <typename T>
  T One(int attribute) const {
    return All<T>(attribute).at(0);
  }
  const FakeDescriptor& Of(int attribute) const {
    return *static_cast<const FakeDescriptor*>(One<void*>(attribute));
  }
};

struct FakeEngine {
  std::vector<int> notes;
  bool runs = true;
};

struct FakeLibrary {
  std::vector<FakeEngine> engines = {{}};
  int asked = 0, executed = 0, live = 0, last_engine = -1;
  int64_t workspace = 0;
} fake;

FakeDescriptor& Of(Cudnn::Descriptor d) { return *static_cast<FakeDescriptor*>(d); }

size_t WidthOf(int type) {
  if (type == Cudnn::kTypeDataType || type == Cudnn::kTypeConvolutionMode ||
      type == Cudnn::kTypeHeuristicMode || type == Cudnn::kTypeFloat) {
    return 4;
  }
  return 8;
}

int Set(Cudnn::Descriptor d, int attribute, int type, int64_t count, const void* values) {
  if (Of(d).final) return 1;
  const auto* bytes = static_cast<const char*>(values);
  Of(d).values[attribute].assign(bytes, bytes + count * WidthOf(type));
  return 0;
}

int GetAttribute(Cudnn::Descriptor d, int attribute, int, int64_t wanted, int64_t* count, void* values) {
  if (attribute == Cudnn::kHeuristicResults) {
    if (values == nullptr) ++fake.asked;
    const bool instant = Of(d).One<int>(Cudnn::kHeuristicMode) == Cudnn::kInstant;
    *count = instant ? static_cast<int64_t>(fake.engines.size()) : 0;
    for (int64_t i = 0; i < wanted; ++i) {
      FakeDescriptor& configuration = Of(static_cast<void**>(values)[i]);
      configuration.operation = &Of(d).Of(Cudnn::kHeuristicGraph).Of(Cudnn::kGraphOperations);
      configuration.notes = fake.engines[i].notes;
      configuration.runs = fake.engines[i].runs;
      configuration.engine = static_cast<int>(i);
    }
  } else if (attribute == Cudnn::kConfigurationEngine) {
    Of(*static_cast<void**>(values)).notes = Of(d).notes;
  } else if (attribute == Cudnn::kEngineNotes) {
    *count = static_cast<int64_t>(Of(d).notes.size());
    std::copy(Of(d).notes.begin(), Of(d).notes.end(), static_cast<int*>(values));
  } else if (attribute == Cudnn::kPlanWorkspace) {
    *static_cast<int64_t*>(values) = fake.workspace;
  } else {
    return 1;
  }
  return 0;
}

struct FakeTensor {
  float* data;
  std::vector<int64_t> sizes, strides;
  float& At(int64_t a, int64_t b, int64_t c, int64_t d) const {
    return data[a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3]];
  }
};

void Convolve(int kind, const FakeTensor& w, const FakeTensor& x, const FakeTensor& y,
              const FakeDescriptor& window) {
  const auto stride = window.All<int64_t>(Cudnn::kStrides),
             before = window.All<int64_t>(Cudnn::kPaddingBefore),
             dilation = window.All<int64_t>(Cudnn::kDilations);
  const FakeTensor& result = kind == Cudnn::kForward ? y : kind == Cudnn::kInputGradient ? x : w;
  for (int64_t a = 0; a < result.sizes[0]; ++a)
    for (int64_t b = 0; b < result.sizes[1]; ++b)
      for (int64_t c = 0; c < result.sizes[2]; ++c)
        for (int64_t d = 0; d < result.sizes[3]; ++d) result.At(a, b, c, d) = 0;
  const int64_t group_outputs = w.sizes[0] / (x.sizes[1] / w.sizes[1]);
  for (int64_t n = 0; n < y.sizes[0]; ++n)
    for (int64_t k = 0; k < y.sizes[1]; ++k)
      for (int64_t p = 0; p < y.sizes[2]; ++p)
        for (int64_t q = 0; q < y.sizes[3]; ++q)
          for (int64_t c = 0; c < w.sizes[1]; ++c)
            for (int64_t r = 0; r < w.sizes[2]; ++r)
              for (int64_t s = 0; s < w.sizes[3]; ++s) {
                const int64_t row = p * stride[0] - before[0] + r * dilation[0];
                const int64_t column = q * stride[1] - before[1] + s * dilation[1];
                if (row < 0 || column < 0 || row >= x.sizes[2] || column >= x.sizes[3]) continue;
                float& in = x.At(n, k / group_outputs * w.sizes[1] + c, row, column);
                float &weight = w.At(k, c, r, s), &out = y.At(n, k, p, q);
                if (kind == Cudnn::kForward) out += in * weight;
                if (kind == Cudnn::kInputGradient) in += out * weight;
                if (kind == Cudnn::kWeightGradient) weight += in * out;
              }
}

int Execute(Cudnn::Handle, Cudnn::Descriptor plan, Cudnn::Descriptor pack) {
  const FakeDescriptor& configuration = Of(plan).Of(Cudnn::kPlanConfiguration);
  if (!Of(pack).final || !configuration.runs) return 1;
  ++fake.executed;
  fake.last_engine = configuration.engine;
  if ((Of(pack).One<void*>(Cudnn::kPackWorkspace) != nullptr) != (fake.workspace > 0)) return 1;
  const FakeDescriptor& operation = *configuration.operation;
  const int first = operation.kind == Cudnn::kForward         ? Cudnn::kForwardAlpha
                    : operation.kind == Cudnn::kInputGradient ? Cudnn::kInputGradientAlpha
                                                              : Cudnn::kWeightGradientAlpha;
  if (operation.One<float>(first) != 1 || operation.One<float>(first + 1) != 0) return 1;
  const auto ids = Of(pack).All<int64_t>(Cudnn::kPackIds);
  const auto pointers = Of(pack).All<float*>(Cudnn::kPackPointers);
  const auto tensor = [&](int place) {
    const FakeDescriptor& found = operation.Of(first + 3 + place);
    size_t at = 0;
    while (ids[at] != found.One<int64_t>(Cudnn::kTensorId)) ++at;
    return FakeTensor{pointers[at], found.All<int64_t>(Cudnn::kTensorSizes),
                      found.All<int64_t>(Cudnn::kTensorStrides)};
  };
  Convolve(operation.kind, tensor(0), tensor(1), tensor(2), operation.Of(first + 2));
  return 0;
}

Cudnn Library() {
  Cudnn library = {};
  library.create = [](Cudnn::Handle* handle) {
    *handle = &fake;
    return 0;
  };
  library.set_stream = [](Cudnn::Handle, void*) { return 0; };
  library.create_descriptor = [](int kind, Cudnn::Descriptor* made) {
    ++fake.live;
    *made = new FakeDescriptor{.kind = kind};
    return 0;
  };
  library.destroy_descriptor = [](Cudnn::Descriptor d) {
    --fake.live;
    delete &Of(d);
    return 0;
  };
  library.finalize = [](Cudnn::Descriptor d) {
    Of(d).final = true;
    return 0;
  };
  library.set = Set;
  library.get = GetAttribute;
  library.execute = Execute;
  return library;
}

using Sizes = std::vector<int64_t>;

Sizes Strides(const Sizes& n, bool by_points) {
  if (by_points) return {n[1] * n[2] * n[3], 1, n[3] * n[1], n[1]};
  return {n[1] * n[2] * n[3], n[2] * n[3], n[3], 1};
}

class ConvolutionsTest : public MemoryCallsTest {
 protected:
  ConvolutionsTest() { fake = {}; }

  Tensor Images(const Sizes& sizes, bool by_points = false) {
    return Filled(sizes, Strides(sizes, by_points));
  }
  // Results declared as `wanted` says; no sizes: not wanted.
  bool Call(const std::string& target, const Tensors& tensors, Rest rest, const std::vector<Sizes>& wanted,
            bool by_points = false) {
    const Arguments bound = Bind(tensors, std::move(rest));
    std::vector<Sizes> strides;
    std::vector<TensorMemory> declared(wanted.size());
    for (const Sizes& sizes : wanted) strides.push_back(sizes.empty() ? Sizes() : Strides(sizes, by_points));
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!wanted[i].empty()) declared[i] = {nullptr, v1::F32, wanted[i], strides[i]};
    }
    made_.assign(wanted.size(), nullptr);
    const bool done =
        torch_.Call(target, {bound.names, bound.values}, {false, declared, absl::MakeSpan(made_)}, context_);
    for (Tensor tensor : made_) {
      if (tensor != nullptr) kept_.push_back(tensor);
    }
    return done;
  }
  bool Forward(Tensor input, Tensor weight, Rest rest, const Sizes& result, bool by_points = false) {
    return Call("aten.convolution.default", {{"input", input}, {"weight", weight}}, std::move(rest), {result},
                by_points);
  }

  Convolutions convolutions_{Library()};
  TorchConvolutions torch_{host_, Precision(), convolutions_};
  std::vector<Tensor> made_;
};

TEST_F(ConvolutionsTest, ConvolvesInBothLayouts) {
  for (const bool by_points : {false, true}) {
    const Tensor x = Images({2, 4, 5, 6}, by_points), w = Images({6, 2, 3, 2}, by_points);
    Rest window = {{"stride", Pair(2, 1)},   {"padding", Pair(1, 2)},        {"dilation", Pair(1, 2)},
                   {"transposed", Count(0)}, {"output_padding", Pair(0, 0)}, {"groups", Count(2)}};
    ASSERT_TRUE(Forward(x, w, window, {2, 6, 3, 8}, by_points));
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
  for (const bool by_points : {false, true}) {
    const Tensor x = Images({2, 3, 4, 4}, by_points), w = Images({5, 3, 3, 3}, by_points);
    const Tensor grad = Images({2, 5, 4, 4}, by_points);
    ASSERT_TRUE(Forward(x, w, Window(1, 1, 1), {2, 5, 4, 4}, by_points));
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
                     {{2, 3, 4, 4}, {5, 3, 3, 3}, {}}, by_points));
    each({2, 3, 4, 4}, [&](const Sizes& at) { by_input += At(made_[0], at) * At(x, at); });
    each({5, 3, 3, 3}, [&](const Sizes& at) { by_weight += At(made_[1], at) * At(w, at); });
    EXPECT_EQ(by_input, product);
    EXPECT_EQ(by_weight, product);
    ASSERT_TRUE(Call("aten.convolution_backward.default", tensors, Window(1, 1, 1), {{}, {5, 3, 3, 3}, {}},
                     by_points));
    EXPECT_EQ(made_[0], nullptr);
    EXPECT_FALSE(Call("aten.convolution_backward.default", tensors, Window(1, 1, 1),
                      {{2, 3, 4, 4}, {5, 3, 3, 3}, {5, 1, 1, 1}}, by_points));  // a bias' gradient is ATen's
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
    return torch_.Call("aten.convolution.default", {bound.names, bound.values},
                       {true, {&memory, 1}, {&none, 1}}, context_);
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

TEST(ConvolutionsLibraryTest, GivesBackWhatItMade) {
  fake = {};
  {
    PlainHost host;
    Convolutions convolutions(Library());
    std::vector<float> data(1000);
    const Sizes x = {1, 3, 4, 4}, w = {2, 3, 3, 3}, y = {1, 2, 2, 2};
    const Sizes xs = Strides(x, false), ws = Strides(w, false), ys = Strides(y, false);
    Convolution convolution;
    convolution.input = {data.data(), v1::F32, x, xs};
    convolution.weight = {data.data() + 100, v1::F32, w, ws};
    convolution.output = {data.data() + 300, v1::F32, y, ys};
    ASSERT_TRUE(convolutions.Run(convolution, CallContext(), [](size_t) { return nullptr; }));
    EXPECT_GT(fake.live, 0);
  }
  EXPECT_EQ(fake.live, 0);
}

}  // namespace
}  // namespace kiln::runtime
