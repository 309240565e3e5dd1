// The passes that choose the layout of images and matrices: channels-last, as gemms, in aligned rows.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "compiler/graph/channels_last.h"
#include "compiler/graph/verify_graph.h"
#include "compiler/library/gemm.h"
#include "compiler/passes/channel_moments.h"
#include "compiler/passes/conv1x1_to_gemm.h"
#include "compiler/passes/pad_gemm_rows.h"
#include "compiler/passes/pipeline.h"
#include "compiler/passes/prefer_channels_last.h"
#include "tests/unit/graph_maker.h"

namespace kiln {
namespace {

// ---- layouts of images

struct Images : Maker {
  Machine machine;
  ValueId Convolve(ValueId input, int64_t groups = 1, bool transposed = false, int64_t window = 3) {
    const ValueId weight = Input({8, 8 / groups, window, window}, graph.type(input).dtype);
    return Convolve(input, weight, {2, 8, 5, 7}, groups, transposed);
  }
  ValueId Convolve(ValueId input, ValueId weight, const std::vector<int64_t>& sizes, int64_t groups = 1,
                   bool transposed = false, const Argument& bias = NoneArg{}) {
    const int64_t window = *graph.exprs.AsConst(graph.type(weight).sizes[2]);
    return Node("aten.convolution.default",
                {{"input", T(input)},
                 {"weight", T(weight)},
                 {"bias", bias},
                 {"stride", Ints({1, 1})},
                 {"padding", Ints({window / 2, window / 2})},
                 {"dilation", Ints({1, 1})},
                 {"transposed", BoolArg{transposed}},
                 {"output_padding", Ints({0, 0})},
                 {"groups", Int(groups)}},
                Type(sizes, graph.type(input).dtype));
  }
  ValueId Relu(ValueId x) { return Node("aten.relu.default", {{"self", T(x)}}, graph.type(x)); }
  bool ChannelsLast(ValueId x) { return IsChannelsLast(graph.exprs, graph.type(x)); }
  void Run(v1::DeviceType device) {
    for (TensorType& type : graph.values) type.device = device;
    PreferChannelsLast(graph, machine);
  }
};

TEST(ChannelsLast, FollowsConvolutionsUpToWhatLeaves) {
  for (const v1::DeviceType device : {v1::CUDA, v1::CPU}) {
    for (const v1::GraphKind kind : {v1::INFERENCE, v1::FORWARD}) {
      Images m;
      m.graph.kind = kind;
      const ValueId x = m.Input({2, 8, 5, 7});
      const ValueId before = m.Relu(x), first = m.Convolve(before), middle = m.Relu(first),
                    each = m.Convolve(middle, 8);
      const ValueId wide = m.Convolve(each, 8, false, 7), second = m.Convolve(wide), last = m.Relu(second);
      m.Output(last);
      m.Run(device);
      EXPECT_FALSE(m.ChannelsLast(before));
      EXPECT_TRUE(m.ChannelsLast(first));
      EXPECT_TRUE(m.ChannelsLast(middle));
      EXPECT_TRUE(m.ChannelsLast(each));
      EXPECT_TRUE(m.ChannelsLast(wide));
      EXPECT_TRUE(m.ChannelsLast(second));
      EXPECT_FALSE(m.ChannelsLast(last));
    }
  }
}

// What reads memory by strides means the traced ones; before and beside it images have the layout that is
// fast.
TEST(ChannelsLast, LeavesWhatIsReadByStorage) {
  for (const v1::DeviceType device : {v1::CUDA, v1::CPU}) {
    for (const char* reader :
         {"aten.as_strided.default", "aten.view.dtype", "mine.reads.default", "aten.exp.default"}) {
      Images m;
      const ValueId first = m.Convolve(m.Input({2, 8, 5, 7})), second = m.Relu(first),
                    beside = m.Relu(second);
      const ValueId transposed =
          m.Node("aten.permute.default", {{"self", T(second)}, {"dims", m.Ints({3, 2, 1, 0})}},
                 m.Type({7, 5, 8, 2}));
      m.Output(m.Relu(m.Node(reader, {{"self", T(transposed)}}, m.Type({7, 5, 8, 2}))));
      m.Output(m.Relu(m.Convolve(beside)));
      m.Run(device);
      EXPECT_TRUE(m.ChannelsLast(first));
      EXPECT_EQ(m.ChannelsLast(second), std::string(reader) == "aten.exp.default") << reader;
    }
  }
}

TEST(ChannelsLast, IsLeftOutWhereImagesStayAsTraced) {
  for (const bool keep_traced_layout : {false, true}) {
    Images m;
    const ValueId x = m.Input({2, 8, 5, 7}), y = m.Convolve(x), z = m.Relu(y);
    m.Output(m.Convolve(z));
    for (TensorType& type : m.graph.values) type.device = v1::CUDA;
    bool chosen = keep_traced_layout;
    ASSERT_TRUE(
        RunPasses(m.graph, {.keep_traced_layout = keep_traced_layout, .chose_channels_last = &chosen}).ok());
    EXPECT_EQ(chosen, !keep_traced_layout);
    EXPECT_EQ(m.ChannelsLast(y), !keep_traced_layout);
    EXPECT_EQ(m.ChannelsLast(z), !keep_traced_layout);
  }
}

TEST(ChannelsLast, SaysWhetherAnythingChanged) {
  for (const bool channels_last : {false, true}) {
    Images m;
    const ValueId y = m.Convolve(m.Input({2, 8, 5, 7}));
    if (channels_last) m.graph.values[y].strides = ChannelsLastStrides(m.graph.exprs, m.graph.type(y).sizes);
    m.Output(m.Convolve(y));
    for (TensorType& type : m.graph.values) type.device = v1::CUDA;
    EXPECT_EQ(PreferChannelsLast(m.graph, {}), !channels_last);
  }
}

// The backward graph is compiled for the layout that the forward saves in; the caller's own results keep the
// traced one.
TEST(ChannelsLast, ChoosesTheLayoutOfWhatAForwardSaves) {
  const auto saved_channels_last = [](v1::DeviceType device, v1::GraphKind kind, bool visible, bool viewed,
                                      int64_t groups = 1, bool sizes_known = true) {
    Images m;
    m.graph.kind = kind;
    const ValueId image = m.Input({2, 8, 5, 7}), result = m.Convolve(image), saved = m.Relu(result);
    for (const ValueId value : {image, result, saved}) {
      TensorType& type = m.graph.values[value];
      if (!sizes_known) type.sizes[2] = m.graph.exprs.Symbol(0, {2, 4096});
      type.strides = ContiguousStrides(m.graph.exprs, type.sizes);
    }
    m.Output(saved, visible);
    if (groups > 1) m.Output(m.Convolve(m.Input({2, 8, 5, 7}), groups), false);
    if (viewed) {
      m.Output(
          m.Node("aten.view.default", {{"self", T(saved)}, {"size", m.Ints({2, 280})}}, m.Type({2, 280})),
          false);
    }
    m.Run(device);
    return m.ChannelsLast(saved);
  };
  for (const v1::DeviceType device : {v1::CUDA, v1::CPU}) {
    EXPECT_TRUE(saved_channels_last(device, v1::FORWARD, false, false));
    EXPECT_FALSE(saved_channels_last(device, v1::FORWARD, true, false));
    EXPECT_FALSE(saved_channels_last(device, v1::FORWARD, false, true));
    EXPECT_FALSE(saved_channels_last(device, v1::INFERENCE, false, false));
    EXPECT_TRUE(saved_channels_last(device, v1::FORWARD, false, false, 8));
    EXPECT_EQ(saved_channels_last(device, v1::FORWARD, false, false, 4), device == v1::CUDA);
    EXPECT_EQ(saved_channels_last(device, v1::FORWARD, false, false, 1, false), device == v1::CPU);
  }
}

TEST(ChannelsLast, CopiesGradientsBackWhereTheirLayoutIsKnown) {
  for (const v1::DeviceType device : {v1::CUDA, v1::CPU}) {
    for (const int64_t groups : {1, 4, 8}) {
      for (const bool image_channels_last : {true, false}) {
        Images m;
        m.graph.kind = v1::BACKWARD;
        const ValueId gradient = m.Input({2, 8, 5, 7}), weight = m.Input({8, 8 / groups, 3, 3});
        const ValueId image = m.Input({2, 8, 5, 7});
        TensorType& type = m.graph.values[image_channels_last ? image : gradient];
        type.strides = ChannelsLastStrides(m.graph.exprs, type.sizes);
        const ValueId to_image = m.Relu(image), to_weight = m.Relu(weight);  // of their types; made below
        m.graph.values[to_image] = m.Type({2, 8, 5, 7});
        m.graph.nodes.clear();
        GraphNode node;
        node.target = "aten.convolution_backward.default";
        node.args = {{"grad_output", T(gradient)},   {"input", T(image)},
                     {"weight", T(weight)},          {"stride", m.Ints({1, 1})},
                     {"padding", m.Ints({1, 1})},    {"dilation", m.Ints({1, 1})},
                     {"transposed", BoolArg{false}}, {"output_padding", m.Ints({0, 0})},
                     {"groups", m.Int(groups)}};
        node.results = {to_image, to_weight, m.graph.NewValue(TensorType())};
        m.graph.nodes.push_back(node);
        m.Output(m.Relu(to_image));
        m.Output(to_weight);
        m.Run(device);
        const bool on_gpu = device == v1::CUDA;
        const bool chooses_image = on_gpu ? groups == 1 : groups != 4 && image_channels_last;
        const bool copies_weight = on_gpu && groups == 1;
        EXPECT_EQ(m.ChannelsLast(to_image), chooses_image) << groups << image_channels_last << on_gpu;
        EXPECT_FALSE(m.ChannelsLast(to_weight));
        const bool cloned = absl::StrContains(m.graph.ToString(), "aten.clone.default");
        EXPECT_EQ(cloned, copies_weight) << m.graph.ToString();
        EXPECT_EQ(m.ChannelsLast(m.graph.nodes[0].results[1]), copies_weight);
      }
    }
  }
}

// ---- statistics of channels

struct Statistics : Images {
  // The mean and the squares about it, as a batch normalisation's decomposition writes them.
  ValueId squares = kNoValue;
  void Normalise(ValueId image, double count) {
    const TensorType type = graph.type(image), kept = Type({1, *graph.exprs.AsConst(type.sizes[1]), 1, 1});
    const auto sum = [&](ValueId x) {
      return Node("aten.sum.dim_IntList",
                  {{"self", T(x)}, {"dim", Ints({0, 2, 3})}, {"keepdim", BoolArg{true}}}, kept);
    };
    const ValueId mean =
        Node("aten.div.Tensor", {{"self", T(sum(image))}, {"other", Int(static_cast<int64_t>(count))}}, kept);
    const ValueId centered = Node("aten.sub.Tensor", {{"self", T(image)}, {"other", T(mean)}}, type);
    squares = sum(Node("aten.mul.Tensor", {{"self", T(centered)}, {"other", T(centered)}}, type));
    Output(squares);
  }
  ValueId Image(const std::vector<int64_t>& sizes, bool channels_last) {
    const ValueId image = Input(sizes);
    if (channels_last)
      graph.values[image].strides = ChannelsLastStrides(graph.exprs, graph.type(image).sizes);
    return image;
  }
  bool IsCombined(v1::DeviceType device) {
    for (TensorType& type : graph.values) type.device = device;
    EXPECT_TRUE(CombineChannelMoments(graph, {}).ok());
    const absl::Status valid = VerifyGraph(graph);
    EXPECT_TRUE(valid.ok()) << valid;
    return graph.outputs[0].value != squares;
  }
};

TEST(ChannelMoments, TakeOnePassOverLargeChannelsLastImages) {
  const auto combined = [](const std::vector<int64_t>& sizes, bool channels_last, v1::DeviceType device,
                           int64_t count) {
    Statistics m;
    m.Normalise(m.Image(sizes, channels_last), static_cast<double>(count));
    return m.IsCombined(device);
  };
  EXPECT_TRUE(combined({8, 64, 56, 56}, true, v1::CUDA, 8 * 56 * 56));
  EXPECT_TRUE(combined({8, 64, 14, 112}, true, v1::CUDA, 8 * 14 * 112));
  EXPECT_FALSE(combined({8, 64, 56, 56}, false, v1::CUDA, 8 * 56 * 56));  // row-major
  EXPECT_TRUE(combined({8, 64, 56, 56}, true, v1::CPU, 8 * 56 * 56));
  EXPECT_FALSE(combined({8, 64, 56, 56}, false, v1::CPU, 8 * 56 * 56));
  EXPECT_FALSE(combined({8, 64, 56, 56}, true, v1::CUDA, 8 * 56 * 56 - 1));  // no mean
  EXPECT_FALSE(combined({2, 64, 8, 8}, true, v1::CUDA, 2 * 8 * 8));          // small
}

// Large weights of small images would take longer to be reordered than the images.
TEST(ChannelsLast, WeighsWeightsAgainstImagesOnACpu) {
  for (const int64_t points : {7, 192}) {
    Images m;
    const ValueId x = m.Input({1, 512, points, points}), weight = m.Input({512, 512, 3, 3});
    const ValueId y = m.Convolve(x, weight, {1, 512, points, points});
    m.Output(m.Relu(y));
    m.Run(v1::CPU);
    EXPECT_EQ(m.ChannelsLast(y), points == 192);
  }
}

TEST(ChannelsLast, LeavesOtherConvolutionsAlone) {
  Images m;
  const ValueId wide = m.Convolve(m.Input({2, 8, 5, 7}, v1::F64)),
                back = m.Convolve(m.Input({2, 8, 5, 7}), 1, true);
  const ValueId some = m.Convolve(m.Input({2, 8, 5, 7}), 4), seen = m.Convolve(m.Input({2, 8, 5, 7}));
  m.Output(m.Node("aten.view.default", {{"self", T(seen)}, {"size", m.Ints({2, 280})}}, m.Type({2, 280})));
  m.Run(v1::CUDA);
  for (ValueId value : {wide, back, some, seen}) EXPECT_FALSE(m.ChannelsLast(value)) << value;
}

// Copies that gradients of convolutions read were made for their layout; others follow what they copy.
TEST(ChannelsLast, LeavesCopiesForGradientsOnACpu) {
  for (const v1::DeviceType device : {v1::CUDA, v1::CPU}) {
    Images m;
    m.graph.kind = v1::BACKWARD;
    TensorType channels_last = m.Type({2, 8, 5, 7});
    const TensorType rows = channels_last;
    channels_last.strides = ChannelsLastStrides(m.graph.exprs, channels_last.sizes);
    const auto clone = [&](ValueId x) { return m.Node("aten.clone.default", {{"self", T(x)}}, rows); };
    const ValueId image = m.Input({2, 8, 5, 7});
    m.graph.values[image] = channels_last;
    const ValueId copy = clone(image), other = clone(image);
    m.Output(m.Node("aten.convolution_backward.default",
                    {{"grad_output", T(copy)}, {"input", T(copy)}, {"weight", T(m.Input({8, 1, 3, 3}))}},
                    rows));
    m.Output(m.Relu(m.Relu(other)));
    m.Run(device);
    EXPECT_TRUE(m.ChannelsLast(other));
    EXPECT_EQ(m.ChannelsLast(copy), device == v1::CUDA);
  }
}

TEST(Conv1x1ToGemm, AreGemmsWhereImagesAreChannelsLast) {
  for (const bool biased : {false, true}) {
    Images m;
    const ValueId x = m.Relu(m.Input({2, 8, 5, 7})), weight = m.Input({4, 8, 1, 1});
    const Argument bias = biased ? T(m.Input({4})) : Argument(NoneArg{});
    const ValueId y = m.Convolve(x, weight, {2, 4, 5, 7}, 1, false, bias);
    m.Output(m.Relu(y));
    m.Run(v1::CPU);
    ASSERT_TRUE(Conv1x1ToGemm(m.graph, m.machine).ok());
    const absl::Status valid = VerifyGraph(m.graph);
    ASSERT_TRUE(valid.ok()) << valid;
    const std::string text = m.graph.ToString();
    EXPECT_FALSE(absl::StrContains(text, "aten.convolution")) << text;
    EXPECT_TRUE(absl::StrContains(text, "kiln.gemm")) << text;
    EXPECT_EQ(absl::StrContains(text, "c="), biased) << text;
  }
}

TEST(Conv1x1ToGemm, LeaveOthers) {
  const auto remains = [](Images& m, ValueId y, v1::DeviceType device) {
    m.Output(m.Relu(y));
    m.Run(device);
    EXPECT_TRUE(Conv1x1ToGemm(m.graph, m.machine).ok());
    return absl::StrContains(m.graph.ToString(), "aten.convolution");
  };
  Images wide, gpu, training, large;
  EXPECT_TRUE(remains(wide, wide.Convolve(wide.Input({2, 8, 5, 7})), v1::CPU));
  EXPECT_TRUE(remains(gpu, gpu.Convolve(gpu.Input({2, 8, 5, 7}), 1, false, 1), v1::CUDA));
  training.graph.kind = v1::FORWARD;  // row-major images, for a grouped convolution beside it
  training.Output(training.Convolve(training.Input({2, 8, 5, 7}), 4));
  EXPECT_TRUE(remains(training, training.Convolve(training.Input({2, 8, 5, 7}), 1, false, 1), v1::CPU));
  EXPECT_FALSE(absl::StrContains(training.graph.ToString(), "kiln.gemm")) << training.graph.ToString();
  const ValueId image = large.Input({1, 1024, 64, 64}), weight = large.Input({128, 1024, 1, 1});
  EXPECT_TRUE(remains(large, large.Convolve(image, weight, {1, 128, 64, 64}), v1::CPU));
}

TEST(Conv1x1ToGemm, AreGemmsOfFewWeightsWhereSizesAreUnknown) {
  const auto remains = [](int64_t from) {
    Images m;
    const ExprId height = m.graph.exprs.Symbol(0, {2, 4096}), width = m.graph.exprs.Symbol(1, {2, 4096});
    const ValueId image = m.Input({1, from, 64, 64}), weight = m.Input({256, from, 1, 1});
    const ValueId y = m.Convolve(image, weight, {1, 256, 64, 64});
    for (const ValueId value : {image, y}) {
      TensorType& type = m.graph.values[value];
      type.sizes[2] = height;
      type.sizes[3] = width;
      type.strides = ContiguousStrides(m.graph.exprs, type.sizes);
    }
    m.Output(m.Relu(y));
    m.Run(v1::CPU);
    EXPECT_TRUE(Conv1x1ToGemm(m.graph, m.machine).ok());
    return absl::StrContains(m.graph.ToString(), "aten.convolution");
  };
  EXPECT_FALSE(remains(64));
  EXPECT_TRUE(remains(1024));
}

// oneDNN's gemm is as fast as its convolution but of large images with few weights, whatever the sizes
// are.
TEST(Conv1x1ToGemm, AreOnednnsGemmsOfMostImages) {
  const auto becomes_gemm = [](int64_t from, int64_t to, int64_t side, bool unknown) {
    Images m;
    m.machine.cpu_libraries.onednn = m.machine.cpu_libraries.mkl_leaves_avx512_unused = true;
    const ValueId image = m.Input({1, from, side, side}), weight = m.Input({to, from, 1, 1});
    const ValueId y = m.Convolve(image, weight, {1, to, side, side});
    if (unknown) {
      const ExprId height = m.graph.exprs.Symbol(0, {2, 4096});
      for (const ValueId value : {image, y}) {
        m.graph.values[value].sizes[2] = height;
        m.graph.values[value].strides = ContiguousStrides(m.graph.exprs, m.graph.values[value].sizes);
      }
    }
    m.Output(m.Relu(y));
    m.Run(v1::CPU);
    EXPECT_TRUE(Conv1x1ToGemm(m.graph, m.machine).ok());
    return absl::StrContains(m.graph.ToString(), "kiln.gemm");
  };
  EXPECT_TRUE(becomes_gemm(256, 64, 56, false));  // 103 million operations; too many for MKL
  EXPECT_FALSE(becomes_gemm(256, 64, 112, false));
  EXPECT_TRUE(becomes_gemm(256, 64, 112, true));
  EXPECT_TRUE(becomes_gemm(2048, 512, 7, false));  // whose convolution would be row-major
  EXPECT_TRUE(becomes_gemm(2048, 512, 56, false));
  EXPECT_TRUE(becomes_gemm(2048, 512, 56, true));

  Images m;  // of any number of channels
  m.machine.cpu_libraries.onednn = m.machine.cpu_libraries.mkl_leaves_avx512_unused = true;
  const ValueId image = m.Input({1, 8, 5, 7}), weight = m.Input({4, 8, 1, 1});
  const ValueId y = m.Convolve(image, weight, {1, 4, 5, 7});
  const ExprId channels = m.graph.exprs.Symbol(0, {2, 4096});
  for (const ValueId value : {image, weight}) {
    m.graph.values[value].sizes[1] = channels;
    m.graph.values[value].strides = ContiguousStrides(m.graph.exprs, m.graph.values[value].sizes);
  }
  m.Output(m.Relu(y));
  m.Run(v1::CPU);
  EXPECT_TRUE(Conv1x1ToGemm(m.graph, m.machine).ok());
  EXPECT_TRUE(absl::StrContains(m.graph.ToString(), "aten.convolution")) << m.graph.ToString();
}

TEST(ChannelsLast, KnowsTheLayout) {
  Images m;
  TensorType type = m.Type({2, 8, 5, 7});
  EXPECT_FALSE(IsChannelsLast(m.graph.exprs, type));
  type.strides = ChannelsLastStrides(m.graph.exprs, type.sizes);
  EXPECT_TRUE(IsChannelsLast(m.graph.exprs, type));
  TensorType one = m.Type({2, 1, 5, 7}), point = m.Type({2, 8, 1, 1});
  EXPECT_FALSE(IsChannelsLast(m.graph.exprs, one));
  EXPECT_FALSE(IsChannelsLast(m.graph.exprs, point));  // both layouts are one
}

// ---- rows of gemms

struct Gemms : Maker {
  explicit Gemms(v1::DType type = v1::BF16, v1::DeviceType where = v1::CUDA) : dtype(type), device(where) {}

  ValueId Matrix(int64_t rows, int64_t columns) { return Input({rows, columns}, dtype); }
  ValueId Transposed(ValueId x) {
    TensorType type = graph.type(x);
    std::swap(type.sizes[0], type.sizes[1]);
    std::swap(type.strides[0], type.strides[1]);
    return Node("aten.permute.default", {{"self", T(x)}, {"dims", Ints({1, 0})}}, type);
  }
  ValueId Multiply(ValueId a, ValueId b, ValueId bias = kNoValue) {
    TensorType type = graph.type(a);
    type.sizes[1] = graph.type(b).sizes[1];
    type.strides = ContiguousStrides(graph.exprs, type.sizes);
    return Node("kiln.gemm.default", GemmArguments({.a = a, .b = b, .c = bias}), type);
  }
  // Nodes of each target, in order, as one line.
  std::string Align() {
    for (TensorType& type : graph.values) type.device = device;
    EXPECT_TRUE(PadGemmRows(graph, {}).ok());
    const absl::Status valid = VerifyGraph(graph);
    EXPECT_TRUE(valid.ok()) << valid;
    std::string line;
    for (const std::string& target : Targets(graph)) line += target.substr(5, target.find('.', 5) - 5) + " ";
    return line;
  }
  int64_t Columns(size_t output) {
    return *graph.exprs.AsConst(graph.type(graph.outputs[output].value).sizes[1]);
  }

  v1::DType dtype;
  v1::DeviceType device;
};

TEST(PadGemmRows, PadsTheWeightAndCutsTheResult) {
  for (bool biased : {false, true}) {
    Gemms m;
    const ValueId x = m.Matrix(2048, 1024), weight = m.Matrix(1003, 1024);
    m.Output(m.Multiply(x, m.Transposed(weight), biased ? m.Input({1003}, v1::BF16) : kNoValue));
    EXPECT_EQ(m.Align(), biased ? "permute constant_pad_nd permute constant_pad_nd gemm slice "
                                : "permute constant_pad_nd permute gemm slice ");
    EXPECT_EQ(m.Columns(0), 1003);
  }
}

// The gradients of that gemm: of the weight and of the other operand.
TEST(PadGemmRows, PadsOnceWhatTwoGemmsRead) {
  Gemms m;
  const ValueId gradient = m.Matrix(2048, 1003), x = m.Matrix(2048, 1024), weight = m.Matrix(1003, 1024);
  m.Output(m.Multiply(m.Transposed(gradient), x));
  m.Output(m.Multiply(gradient, weight));
  EXPECT_EQ(m.Align(), "permute constant_pad_nd permute gemm slice constant_pad_nd gemm ");
}

// A result that is cut has rows with gaps.
TEST(PadGemmRows, LeavesWhatIsReadByStorage) {
  for (const bool reads : {false, true}) {
    Gemms m;
    const ValueId gemm = m.Multiply(m.Matrix(2048, 1024), m.Matrix(1024, 1003));
    m.Output(
        m.Node(reads ? "aten.as_strided.default" : "aten.exp.default", {{"self", T(gemm)}}, m.Type({2048})));
    EXPECT_EQ(absl::StrContains(m.Align(), "constant_pad_nd"), !reads);
  }
}

TEST(PadGemmRows, LeavesOthers) {
  const auto aligned = [](Gemms m, int64_t rows, int64_t summed, int64_t columns) {
    m.Output(m.Multiply(m.Matrix(rows, summed), m.Matrix(summed, columns)));
    return m.Align() == "gemm ";
  };
  EXPECT_FALSE(aligned(Gemms(), 2048, 1024, 1003));
  EXPECT_FALSE(aligned(Gemms(v1::F16), 2048, 1003, 1024));
  EXPECT_TRUE(aligned(Gemms(), 2048, 1024, 1008));         // aligned as it is
  EXPECT_TRUE(aligned(Gemms(), 128, 16384, 1003));         // few rows
  EXPECT_TRUE(aligned(Gemms(), 512, 512, 1003));           // small
  EXPECT_TRUE(aligned(Gemms(v1::F32), 2048, 1024, 1003));  // whatever its rows
  EXPECT_TRUE(aligned(Gemms(v1::BF16, v1::CPU), 2048, 1024, 1003));
}

}  // namespace
}  // namespace kiln
