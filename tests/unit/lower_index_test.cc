// Lowering of gathers and scatters, by what their loop graphs compute.
#include <algorithm>
#include <tuple>

#include "absl/strings/string_view.h"
#include "compiler/graph/channels_last.h"
#include "compiler/support/kernel_abi.h"
#include "tests/unit/lower_testing.h"

namespace kiln {
namespace {

TEST(LowerIndex, IndicesWrapOnceAndAreChecked) {
  GraphMaker maker;
  const ValueId x = maker.Input(v1::F32, {5}), i = maker.Input(v1::I64, {3});
  maker.Output(
      maker.Node("aten.index.Tensor", {{"self", T(x)}, {"indices", TensorListArg{{i}}}}, v1::F32, {3}));
  const LoopGraph graph = Lower(maker);
  const BufferBytes data = Bytes<float>({10, 11, 12, 13, 14});
  const LoopEvalResult good = Eval(graph, {data, Bytes<int64_t>({0, -1, 4})});
  EXPECT_EQ(good.status_code, KILN_OK);
  EXPECT_EQ(Values<float>(good.outputs[0]), (std::vector<float>{10, 14, 14}));
  EXPECT_EQ(Eval(graph, {data, Bytes<int64_t>({0, 5, 1})}).status_code, KILN_INDEX_OUT_OF_RANGE);
  EXPECT_EQ(Eval(graph, {data, Bytes<int64_t>({0, -6, 1})}).status_code, KILN_INDEX_OUT_OF_RANGE);
}

// In order along the indexed dimension; on a GPU, which adds in memory, only where one order is asked for.
TEST(LowerIndex, AccumulatingScatterAddsEveryDuplicate) {
  for (const auto& [device, deterministic, ordered] :
       {std::tuple(v1::CPU, false, true), std::tuple(v1::CUDA, false, false),
        std::tuple(v1::CUDA, true, true)}) {
    for (const char* target :
         {"aten.index_put.default", "aten.scatter_add.default", "aten.index_add.default"}) {
      GraphMaker maker;
      const ValueId x = maker.Input(v1::F32, {3}), i = maker.Input(v1::I64, {4}),
                    v = maker.Input(v1::F32, {4});
      GraphMaker::Args args = {{"self", T(x)}, {"dim", maker.Int(0)}, {"index", T(i)}};
      if (target == absl::string_view("aten.index_put.default")) {
        args = {
            {"self", T(x)}, {"indices", TensorListArg{{i}}}, {"values", T(v)}, {"accumulate", BoolArg{true}}};
      } else {
        args.emplace_back(target == absl::string_view("aten.index_add.default") ? "source" : "src", T(v));
      }
      maker.Output(maker.Node(target, std::move(args), v1::F32, {3}));
      for (TensorType& type : maker.graph.values) type.device = device;
      const LoopGraph graph = Lower(maker, {.deterministic = deterministic});
      EXPECT_EQ(graph.nodes.back().loops.ordered, ordered) << target;
      const LoopEvalResult result =
          Eval(graph, {Bytes<float>({1, 1, 1}), Bytes<int64_t>({2, 0, 2, 2}), Bytes<float>({1, 2, 4, 8})});
      EXPECT_EQ(Values<float>(result.outputs[0]), (std::vector<float>{3, 1, 14})) << target;
      EXPECT_EQ(Values<float>(result.inputs[0]), (std::vector<float>{1, 1, 1})) << target;
    }
  }
}

// Four windows of 3 × 3, two apart, which share rows and columns: on a GPU every point sums those that took
// it.
TEST(LowerIndex, MaxPoolingGradientAddsEveryWindow) {
  for (v1::DeviceType device : {v1::CUDA, v1::CPU}) {
    GraphMaker maker;
    const ValueId gradient = maker.Input(v1::F32, {1, 1, 2, 2}), image = maker.Input(v1::F32, {1, 1, 4, 4}),
                  taken = maker.Input(v1::I64, {1, 1, 2, 2});
    maker.Output(maker.Node("aten.max_pool2d_with_indices_backward.default",
                            {{"grad_output", T(gradient)},
                             {"self", T(image)},
                             {"kernel_size", maker.Ints({3, 3})},
                             {"stride", maker.Ints({2, 2})},
                             {"padding", maker.Ints({1, 1})},
                             {"dilation", maker.Ints({1, 1})},
                             {"ceil_mode", BoolArg{false}},
                             {"indices", T(taken)}},
                            v1::F32, {1, 1, 4, 4}));
    for (TensorType& type : maker.graph.values) type.device = device;
    const LoopGraph graph = Lower(maker);
    const bool is_call = graph.nodes.back().kind == LoopGraphNode::Kind::kCall;
    EXPECT_EQ(is_call, device == v1::CPU);
    if (is_call) continue;
    const auto sums = [&](const std::vector<int64_t>& positions) {
      return Values<float>(Eval(graph, {Bytes<float>({1, 2, 3, 4}), Bytes<float>(std::vector<float>(16)),
                                        Bytes<int64_t>(positions)})
                               .outputs[0]);
    };
    EXPECT_EQ(sums({5, 5, 5, 5}), (std::vector<float>{0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
    EXPECT_EQ(sums({0, 3, 12, 10}), (std::vector<float>{1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 4, 0, 3, 0, 0, 0}));
  }
}

// On a GPU zeros behind rows may lie in padding that the rows' own loops leave; another filling has memory of
// its own.
TEST(LowerIndex, PaddingsOfOneTensorKeepTheirFillings) {
  GraphMaker maker;
  const ValueId x = maker.Input(v1::F32, {2, 3});
  const ValueId y = maker.Node("aten.exp.default", {{"self", T(x)}}, v1::F32, {2, 3});
  const auto padded = [&](double value) {
    return maker.Node("aten.constant_pad_nd.default",
                      {{"self", T(y)}, {"pad", maker.Ints({0, 2})}, {"value", FloatArg{value}}}, v1::F32,
                      {2, 5});
  };
  for (double value : {0.0, 7.0}) maker.Output(padded(value));
  for (TensorType& type : maker.graph.values) type.device = v1::CUDA;
  const LoopEvalResult result = Eval(Lower(maker), {Bytes<float>({0, 0, 0, 0, 0, 0})});
  EXPECT_EQ(Values<float>(result.outputs[0]), (std::vector<float>{1, 1, 1, 0, 0, 1, 1, 1, 0, 0}));
  EXPECT_EQ(Values<float>(result.outputs[1]), (std::vector<float>{1, 1, 1, 7, 7, 1, 1, 1, 7, 7}));
}

// A channels-last image that a convolution reads stays channels-last when it is padded: it is not transposed.
TEST(LowerIndex, PaddedImagesKeepTheDeclaredLayout) {
  GraphMaker maker;
  const auto channels_last = [&](ValueId image) {
    TensorType& type = maker.graph.values[image];
    type.strides = ChannelsLastStrides(maker.graph.exprs, type.sizes);
  };
  const ValueId x = maker.Input(v1::F32, {1, 2, 2, 2});
  const ValueId padded = maker.Node(
      "aten.constant_pad_nd.default",
      {{"self", T(x)}, {"pad", maker.Ints({0, 1, 0, 1})}, {"value", FloatArg{5}}}, v1::F32, {1, 2, 3, 3});
  channels_last(x);
  channels_last(padded);
  maker.Output(padded);
  for (TensorType& type : maker.graph.values) type.device = v1::CUDA;
  const LoopGraph graph = Lower(maker);
  for (const LoopGraphNode& node : graph.nodes) EXPECT_EQ(node.kind, LoopGraphNode::Kind::kLoops);
  // Inside, below and beside, and no copy of them.
  EXPECT_EQ(graph.nodes.size(), 3u);
  const LoopEvalResult result = Eval(graph, {Bytes<float>({1, 2, 3, 4, 5, 6, 7, 8})});
  EXPECT_EQ(Values<float>(result.outputs[0]),
            (std::vector<float>{1, 3, 5, 5, 7, 5, 5, 5, 5, 2, 4, 5, 6, 8, 5, 5, 5, 5}));
}

TEST(LowerIndex, EmbeddingGradientAddsEveryToken) {
  for (v1::DeviceType device : {v1::CPU, v1::CUDA}) {
    GraphMaker maker;
    const ValueId gradient = maker.Input(v1::F32, {2, 2, 3}), tokens = maker.Input(v1::I64, {2, 2});
    maker.Output(maker.Node("aten.embedding_dense_backward.default",
                            {{"grad_output", T(gradient)},
                             {"indices", T(tokens)},
                             {"num_weights", maker.Int(4)},
                             {"padding_idx", maker.Int(1)}},
                            v1::F32, {4, 3}));
    for (TensorType& type : maker.graph.values) type.device = device;
    const LoopEvalResult result =
        Eval(Lower(maker),
             {Bytes<float>({1, 2, 3, 10, 20, 30, 5, 5, 5, 100, 200, 300}), Bytes<int64_t>({2, 0, 1, 2})});
    EXPECT_EQ(Values<float>(result.outputs[0]),
              (std::vector<float>{10, 20, 30, 0, 0, 0, 101, 202, 303, 0, 0, 0}));
  }
}

// Buffers that the program makes for a gemm and values summed into it.
size_t BuffersOfSumIntoGemm(absl::string_view target, bool used_again) {
  GraphMaker maker;
  const ValueId x = maker.Input(v1::F32, {3, 2}), y = maker.Input(v1::F32, {2, 4});
  const ValueId i = maker.Input(v1::I64, {5}), v = maker.Input(v1::F32, {5, 4});
  const ValueId gemm = maker.Node("kiln.gemm.default", {{"a", T(x)}, {"b", T(y)}}, v1::F32, {3, 4});
  std::vector<std::pair<std::string, Argument>> args = {{"self", T(gemm)}};
  if (target == "aten.index_add.default") {
    args.insert(args.end(), {{"dim", IntArg{0}}, {"index", T(i)}, {"source", T(v)}});
  } else {
    args.insert(args.end(),
                {{"indices", TensorListArg{{i}}}, {"values", T(v)}, {"accumulate", BoolArg{true}}});
  }
  maker.Output(maker.Node(std::string(target), std::move(args), v1::F32, {3, 4}));
  if (used_again) maker.Output(maker.Node("aten.exp.default", {{"self", T(gemm)}}, v1::F32, {3, 4}));
  const LoopGraph graph = Lower(maker);
  return std::count_if(graph.buffers.begin(), graph.buffers.end(),
                       [](const LoopBuffer& buffer) { return buffer.kind != LoopBuffer::Kind::kInput; });
}

TEST(LowerIndex, ScattersIntoWhatIsOfNoOtherUse) {
  for (const char* target : {"aten.index_put.default", "aten.index_add.default"}) {
    EXPECT_EQ(BuffersOfSumIntoGemm(target, false), 1u) << target;
    EXPECT_EQ(BuffersOfSumIntoGemm(target, true), 3u) << target;
  }
}

}  // namespace
}  // namespace kiln
