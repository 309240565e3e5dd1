// Convolutions on a GPU: what of them is a loop, and in which layout the library gets the rest.
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/unit/lower_testing.h"

namespace kiln {
namespace {

GraphMaker::Args ConvolutionArgs(GraphMaker& maker, ValueId input, ValueId weight, const Argument& bias,
                                 int64_t stride, int64_t padding, int64_t dilation, int64_t groups) {
  return {{"input", T(input)},
          {"weight", T(weight)},
          {"bias", bias},
          {"stride", maker.Ints({stride, stride})},
          {"padding", maker.Ints({padding, padding})},
          {"dilation", maker.Ints({dilation, dilation})},
          {"transposed", BoolArg{false}},
          {"output_padding", maker.Ints({0, 0})},
          {"groups", IntArg{maker.graph.exprs.Const(groups)}}};
}

void MoveToGpu(Graph& graph) {
  for (TensorType& type : graph.values) type.device = v1::CUDA;
}

TEST(LowerConvolution, AWindowAChannelIsALoopOnAGpu) {
  constexpr int64_t kImages = 2, kChannels = 3, kGroup = 2, kRows = 6, kColumns = 5, kHeight = 3, kWidth = 2;
  constexpr int64_t kStride = 2, kPadding = 2, kDilation = 2, kOutRows = 3, kOutColumns = 4,
                    kOut = kChannels * kGroup;
  for (const bool on_gpu : {true, false}) {
    GraphMaker maker;
    const ValueId x = maker.Input(v1::F32, {kImages, kChannels, kRows, kColumns});
    const ValueId w = maker.Input(v1::F32, {kOut, 1, kHeight, kWidth}), b = maker.Input(v1::F32, {kOut});
    maker.Output(maker.Node("aten.convolution.default",
                            ConvolutionArgs(maker, x, w, T(b), kStride, kPadding, kDilation, kChannels),
                            v1::F32, {kImages, kOut, kOutRows, kOutColumns}));
    if (on_gpu) MoveToGpu(maker.graph);
    const LoopGraph graph = Lower(maker);
    EXPECT_EQ(LoopCount(graph), on_gpu ? 1u : 0u);
    if (!on_gpu) continue;
    std::vector<float> image(kImages * kChannels * kRows * kColumns), weights(kOut * kHeight * kWidth),
        bias(kOut);
    for (size_t i = 0; i < image.size(); ++i) image[i] = static_cast<float>(i * 7 % 11) - 5;
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i * 5 % 7) - 3;
    for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(10 * i);
    const std::vector<float> got = Values<float>(
        Eval(graph, {Bytes<float>(image), Bytes<float>(weights), Bytes<float>(bias)}).outputs[0]);
    ASSERT_EQ(got.size(), static_cast<size_t>(kImages * kOut * kOutRows * kOutColumns));
    size_t at = 0;
    for (int64_t n = 0; n < kImages; ++n) {
      for (int64_t o = 0; o < kOut; ++o) {
        for (int64_t r = 0; r < kOutRows; ++r) {
          for (int64_t c = 0; c < kOutColumns; ++c) {
            float sum = bias[o];
            for (int64_t i = 0; i < kHeight; ++i) {
              for (int64_t j = 0; j < kWidth; ++j) {
                const int64_t row = r * kStride - kPadding + i * kDilation,
                              column = c * kStride - kPadding + j * kDilation;
                if (row < 0 || row >= kRows || column < 0 || column >= kColumns) continue;
                sum += image[((n * kChannels + o / kGroup) * kRows + row) * kColumns + column] *
                       weights[(o * kHeight + i) * kWidth + j];
              }
            }
            ASSERT_EQ(got[at++], sum) << n << " " << o << " " << r << " " << c;
          }
        }
      }
    }
  }
}

TEST(LowerConvolution, AWindowThatTheMachineLeavesToTheLibraryIsACall) {
  for (const int64_t points_max : {9, 8}) {
    GraphMaker maker;
    const ValueId x = maker.Input(v1::F32, {1, 4, 6, 6}), w = maker.Input(v1::F32, {4, 1, 3, 3});
    maker.Output(maker.Node("aten.convolution.default", ConvolutionArgs(maker, x, w, NoneArg{}, 1, 1, 1, 4),
                            v1::F32, {1, 4, 6, 6}));
    MoveToGpu(maker.graph);
    LowerOptions options;
    options.machine.gpu_libraries.unrolled_window_points_max = points_max;
    EXPECT_EQ(LoopCount(Lower(maker, options)), points_max == 9 ? 1u : 0u);
  }
}

TEST(LowerConvolution, TheBiasIsALoopsOnAGpu) {
  for (const bool on_gpu : {true, false}) {
    GraphMaker maker;
    const ValueId x = maker.Input(v1::F32, {1, 4, 6, 6}), w = maker.Input(v1::F32, {8, 4, 3, 3});
    const ValueId b = maker.Input(v1::F32, {8});
    maker.Output(maker.Node("aten.convolution.default", ConvolutionArgs(maker, x, w, T(b), 1, 1, 1, 1),
                            v1::F32, {1, 8, 6, 6}));
    if (on_gpu) MoveToGpu(maker.graph);
    const LoopGraph graph = Lower(maker);
    ASSERT_EQ(graph.nodes[0].kind, LoopGraphNode::Kind::kCall);
    EXPECT_EQ(graph.nodes[0].call.tensors.size(), on_gpu ? 2u : 3u);
    EXPECT_EQ(LoopCount(graph), on_gpu ? 1u : 0u);
  }
}

TEST(LowerConvolution, ChannelsLastImagesGoToTheLibraryChannelsLast) {
  for (const bool channels_last : {true, false}) {
    GraphMaker maker;
    ExprPool& exprs = maker.graph.exprs;
    const ValueId x = maker.Input(v1::F32, {1, 4, 6, 6}), w = maker.Input(v1::F32, {8, 4, 3, 3});
    TensorType type = maker.Type(v1::F32, maker.Sizes({1, 8, 6, 6}));
    if (channels_last) type.strides = maker.Sizes({288, 1, 48, 8});
    maker.Output(
        maker.NodeOf("aten.convolution.default", ConvolutionArgs(maker, x, w, NoneArg{}, 1, 1, 1, 1), type));
    MoveToGpu(maker.graph);
    const LoopGraph graph = Lower(maker);
    EXPECT_EQ(LoopCount(graph),
              channels_last ? 2u : 0u);  // the image and the weights, brought into that layout
    const CallNode& call = graph.nodes.back().call;
    ASSERT_EQ(call.tensors.size(), 2u);
    EXPECT_EQ(exprs.AsConst(call.tensors[0].strides[1]), channels_last ? 1 : 36);
    EXPECT_EQ(exprs.AsConst(call.tensors[1].strides[1]), channels_last ? 1 : 9);
  }
}

TEST(LowerConvolution, PatchesAreChannelsOfOnePoint) {
  GraphMaker maker;
  ExprPool& exprs = maker.graph.exprs;
  // Of 5 rows the last is in no patch.
  const ValueId x = maker.Input(v1::F32, {1, 2, 5, 6}), w = maker.Input(v1::F32, {8, 2, 2, 3});
  GraphMaker::Args args = ConvolutionArgs(maker, x, w, NoneArg{}, 2, 0, 1, 1);
  args[3].second = maker.Ints({2, 3});
  maker.Output(maker.Node("aten.convolution.default", args, v1::F32, {1, 8, 2, 2}));
  MoveToGpu(maker.graph);
  const LoopGraph graph = Lower(maker);
  EXPECT_EQ(LoopCount(graph), 1u);
  const CallNode& call = graph.nodes.back().call;
  ASSERT_EQ(call.tensors.size(), 2u);
  EXPECT_EQ(exprs.AsConst(call.tensors[0].sizes[1]), 12);
  EXPECT_EQ(exprs.AsConst(call.tensors[1].sizes[1]), 12);
  EXPECT_EQ(call.tensors[1].buffer, 1u);  // the weights themselves
  // The patches, channel by channel and point by point within.
  LoopGraph patches = graph;
  patches.nodes.pop_back();
  patches.outputs[0].view = call.tensors[0];
  std::vector<float> image(60), weights(96);
  for (size_t i = 0; i < image.size(); ++i) image[i] = static_cast<float>(i);
  const std::vector<float> got =
      Values<float>(Eval(patches, {Bytes<float>(image), Bytes<float>(weights)}).outputs[0]);
  ASSERT_EQ(got.size(), 48u);
  for (int c = 0; c < 2; ++c) {
    for (int i = 0; i < 6; ++i) {
      for (int p = 0; p < 4; ++p) {
        EXPECT_EQ(got[(c * 6 + i) * 4 + p], c * 30 + (p / 2 * 2 + i / 3) * 6 + p % 2 * 3 + i % 3);
      }
    }
  }
}

// Of a stride or a padding that only the run knows nothing is a kernel's, nor are its windows patches.
TEST(LowerConvolution, AWindowThatIsNotKnownIsTheLibrarys) {
  for (const std::string name : {"", "stride", "padding"}) {  // the control: it is known
    for (const int64_t groups : {1, 4}) {
      GraphMaker maker;
      maker.graph.symbols.emplace_back();
      maker.graph.symbols[0].set_kind(v1::SYMBOL_INT);
      const ExprId number = maker.graph.exprs.Symbol(0, {0, 4});
      const ValueId x = maker.Input(v1::F32, {1, 4, 6, 6}), w = maker.Input(v1::F32, {8, 4 / groups, 2, 2});
      GraphInput input;
      input.sym_int = number;
      maker.graph.inputs.push_back(input);
      GraphMaker::Args args = ConvolutionArgs(maker, x, w, NoneArg{}, 2, 0, 1, groups);
      for (auto& [key, argument] : args) {
        if (key == name) argument = IntListArg{{number, number}};
      }
      maker.Output(maker.Node("aten.convolution.default", args, v1::F32, {1, 8, 3, 3}));
      MoveToGpu(maker.graph);
      const LoopGraph graph = Lower(maker);
      SCOPED_TRACE(absl::StrCat(name, " of ", groups));
      EXPECT_EQ(LoopCount(graph), name.empty() ? 1u : 0u);
      if (name.empty()) continue;
      ASSERT_EQ(graph.nodes.size(), 1u);
      ASSERT_EQ(graph.nodes[0].call.tensors.size(), 2u);
      EXPECT_EQ(graph.nodes[0].call.tensors[0].buffer, 0u);  // the image itself
    }
  }
}

}  // namespace
}  // namespace kiln
