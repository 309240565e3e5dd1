// Decomposition: what an operator becomes by its operands, and what is left.
#include "compiler/passes/decompose.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "compiler/graph/channels_last.h"
#include "compiler/passes/core_set.h"
#include "compiler/passes/pipeline.h"
#include "compiler/passes/types.h"
#include "compiler/support/compiler_limits.h"
#include "tests/unit/graph_maker.h"

namespace kiln {
namespace {

using Args = Maker::Args;

TEST(Decompose, KeepsResultsWithTheirTypes) {
  Maker m;
  ValueId x = m.Input({4, 8}, v1::BF16), w = m.Input({8}, v1::BF16);
  auto results =
      m.Nodes("aten.native_layer_norm.default",
              {{"input", T(x)}, {"normalized_shape", m.Ints({8})}, {"weight", T(w)}, {"eps", FloatArg{1e-5}}},
              {m.Type({4, 8}, v1::BF16), m.Type({4, 1}, v1::BF16), m.Type({4, 1}, v1::BF16)});
  for (ValueId result : results) m.Output(result);
  ASSERT_TRUE(RunPasses(m.graph, {}).ok());
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(m.graph.outputs[i].value, results[i]);
    EXPECT_EQ(m.graph.type(results[i]).dtype, v1::BF16);
  }
  for (const std::string& target : Targets(m.graph))
    EXPECT_NE(CoreClassOf(target), CoreClass::kNone) << target;
}

TEST(Decompose, LeavesWhatItDoesNotCover) {
  Maker m;
  ValueId x = m.Input({1, 2, 7, 7});
  m.Output(m.Node("aten._adaptive_avg_pool2d.default", {{"self", T(x)}, {"output_size", m.Ints({3, 3})}},
                  m.Type({1, 2, 3, 3})));
  ASSERT_TRUE(RunPasses(m.graph, {}).ok());
  EXPECT_EQ(Targets(m.graph), std::vector<std::string>{"aten._adaptive_avg_pool2d.default"});
}

// What writes a dimension as two stays where that would be more than a tensor has.
TEST(Decompose, StaysWithinTheRankOfTensors) {
  const auto left = [](const char* target, size_t rank, int64_t last, Maker::Args (*args)(Maker&, size_t)) {
    Maker m;
    std::vector<int64_t> sizes(rank, 1);
    const ValueId x = m.Input(sizes);
    sizes.back() = last;
    Maker::Args all = {{"self", T(x)}};
    for (auto& arg : args(m, rank)) all.push_back(std::move(arg));
    m.Output(m.Node(target, std::move(all), m.Type(sizes)));
    const absl::Status status = RunPasses(m.graph, {});
    EXPECT_TRUE(status.ok()) << status;
    return Targets(m.graph) == std::vector<std::string>{target};
  };
  for (const char* target : {"aten.repeat.default", "aten.tile.default"}) {
    const auto repeats = [](Maker& m, size_t rank) {
      std::vector<int64_t> repeats(rank, 1);
      repeats.back() = 2;
      return Maker::Args{{"repeats", m.Ints(repeats)}};
    };
    EXPECT_FALSE(left(target, kRankMax - 1, 2, repeats)) << target;
    EXPECT_TRUE(left(target, kRankMax, 2, repeats)) << target;
  }
  const auto interleave = [](Maker& m, size_t) {
    return Maker::Args{{"repeats", m.Int(2)}, {"dim", m.Int(-1)}};
  };
  EXPECT_FALSE(left("aten.repeat_interleave.self_int", kRankMax - 1, 2, interleave));
  EXPECT_TRUE(left("aten.repeat_interleave.self_int", kRankMax, 2, interleave));
}

TEST(Decompose, AGraphHasSoManyNodes) {
  for (const char* last : {"aten.exp.default", "aten.silu.default"}) {
    Maker m;
    ValueId x = m.Input({4});
    for (size_t n = 1; n < kGraphNodesMax; ++n) x = m.Node("aten.exp.default", {{"self", T(x)}}, m.Type({4}));
    m.Output(m.Node(last, {{"self", T(x)}}, m.Type({4})));
    const absl::Status status = Decompose(m.graph, {});
    if (std::string(last) == "aten.exp.default") {
      EXPECT_EQ(status, absl::OkStatus());
    } else {
      EXPECT_EQ(status, absl::InvalidArgumentError("the decomposed graph has more than 200000 nodes"));
    }
  }
}

// By groups of channels where oneDNN's padded windows of all would be too large for malloc to keep.
TEST(Decompose, GradientsOfDepthwiseConvolutionsPadFewChannelsAtATime) {
  struct Case {
    int64_t channels, window;
    bool channels_last;
    std::vector<int64_t> groups;
  };
  for (const Case& c :
       {Case{32, 7, true, {32}}, Case{640, 7, true, {640}}, Case{768, 7, false, {768}},
        Case{768, 5, true, {768}}, Case{768, 7, true, {160, 160, 160, 160, 128}},
        Case{752, 7, true, {160, 160, 160, 160, 112}}, Case{676, 7, true, {144, 144, 144, 144, 100}}}) {
    Maker m;
    const ExprId rows = m.graph.exprs.Symbol(0, {1, INT64_MAX});  // of the image: whatever their number
    const auto image = [&] {
      TensorType type = m.Type({4, c.channels, 7, 7});
      type.sizes[2] = rows;
      type.strides = c.channels_last ? ChannelsLastStrides(m.graph.exprs, type.sizes)
                                     : ContiguousStrides(m.graph.exprs, type.sizes);
      return type;
    };
    ValueId gradient = m.Input({}), input = m.Input({});
    m.graph.values[gradient] = m.graph.values[input] = image();
    ValueId weight = m.Input({c.channels, 1, c.window, c.window});
    auto results = m.Nodes("aten.convolution_backward.default",
                           {{"grad_output", T(gradient)},
                            {"input", T(input)},
                            {"weight", T(weight)},
                            {"bias_sizes", m.Ints({c.channels})},
                            {"stride", m.Ints({1, 1})},
                            {"padding", m.Ints({c.window / 2, c.window / 2})},
                            {"dilation", m.Ints({1, 1})},
                            {"transposed", BoolArg{false}},
                            {"output_padding", m.Ints({0, 0})},
                            {"groups", m.Int(c.channels)},
                            {"output_mask", BoolListArg{{true, true, true}}}},
                           {image(), m.Type({c.channels, 1, c.window, c.window}), m.Type({c.channels})});
    for (ValueId result : results) m.Output(result);
    ASSERT_TRUE(RunPasses(m.graph, {}).ok());
    std::vector<int64_t> groups;
    for (const GraphNode& node : m.graph.nodes) {
      if (node.target != "aten.convolution_backward.default") continue;
      groups.push_back(*m.graph.exprs.AsConst(std::get<IntArg>(*node.Find("groups")).value));
      for (const auto& [result, dim] : {std::pair(0, 1), std::pair(1, 0), std::pair(2, 0)}) {
        EXPECT_EQ(m.graph.exprs.AsConst(m.graph.type(node.results[result]).sizes[dim]), groups.back());
      }
    }
    EXPECT_EQ(groups, c.groups) << c.channels;
    EXPECT_EQ(m.graph.outputs[0].value, results[0]);
    EXPECT_TRUE(SameLayout(m.graph.exprs, m.graph.type(results[0]), image()));  // as declared
  }
}

// One question decides which sums are F32 and which images are summed in one pass of blocks, on every row.
TEST(Decompose, StatisticsOfChannelsAreF32WhereBlocksOfPointsAreSummed) {
  struct Case {
    const char *triple, *machine;
    int64_t elements_min;
  };
  for (const Case& c : {Case{"x86_64-linux-gnu", "", 1 << 19}, Case{"x86_64-linux-gnu", "renoir", 1 << 17},
                        Case{"aarch64-linux-gnu", "graviton2", 1 << 20}}) {
    v1::Target target;
    target.set_triple(c.triple);
    target.set_machine(c.machine);
    PassOptions options;
    options.machine = MachineOf(target);
    ASSERT_EQ(options.machine.name, c.machine);
    for (const bool large : {false, true}) {
      Maker m;
      const int64_t channels = c.elements_min / (large ? 4096 : 8192);
      const ValueId x = m.Input({1, channels, 64, 64});
      TensorType& image = m.graph.values[x];
      image.strides = ChannelsLastStrides(m.graph.exprs, image.sizes);
      const TensorType type = image;
      for (const ValueId result : m.Nodes("aten.native_batch_norm.default",
                                          {{"input", T(x)},
                                           {"training", BoolArg{true}},
                                           {"momentum", FloatArg{0.1}},
                                           {"eps", FloatArg{1e-5}}},
                                          {type, m.Type({channels}), m.Type({channels})}))
        m.Output(result);
      const absl::Status status = RunPasses(m.graph, options);
      ASSERT_TRUE(status.ok()) << status;
      bool wide = false, in_blocks = false;
      for (const GraphNode& node : m.graph.nodes) {
        for (const ValueId result : node.results) {
          wide = wide || m.graph.type(result).dtype == v1::F64;
          in_blocks = in_blocks || m.graph.type(result).rank() == 6;
        }
      }
      EXPECT_EQ(wide, !large) << c.machine << m.graph.ToString();
      EXPECT_EQ(in_blocks, large) << c.machine << m.graph.ToString();
    }
  }
}

// The library's kernel in F32 goes through the keys 64 at a time; gemms and a softmax wait for nothing.
TEST(Decompose, AttentionOfOneImageOnAGpuBecomesGemmsWhereKeysAreMany) {
  struct Case {
    int64_t images, keys;
    v1::DType dtype;
    v1::DeviceType device;
    bool logarithms, split;
  };
  for (const Case& c :
       {Case{1, 197, v1::F32, v1::CUDA, false, true}, Case{1, 64, v1::F32, v1::CUDA, false, false},
        Case{2, 197, v1::F32, v1::CUDA, false, false}, Case{1, 197, v1::BF16, v1::CUDA, false, false},
        Case{1, 197, v1::F32, v1::CPU, false, false}, Case{1, 197, v1::F32, v1::CUDA, true, false},
        Case{1, 4000, v1::F32, v1::CUDA, false, false}}) {
    for (const bool biased : {false, true}) {
      Maker m;
      // Each head's rows lie among those of the others, as a linear layer leaves them.
      const auto heads = [&] {
        TensorType type = m.Type({c.images, 12, c.keys, 64}, c.dtype);
        type.strides.clear();
        for (int64_t stride : {768 * c.keys, int64_t{64}, int64_t{768}, int64_t{1}})
          type.strides.push_back(m.graph.exprs.Const(stride));
        return type;
      };
      Args args;
      for (const char* name : {"query", "key", "value"}) {
        const ValueId input = m.Input({});
        m.graph.values[input] = heads();
        args.emplace_back(name, T(input));
      }
      if (biased) args.emplace_back("attn_bias", T(m.Input({c.images, 1, 1, c.keys}, c.dtype)));
      args.emplace_back("compute_log_sumexp", BoolArg{c.logarithms});
      const auto results =
          m.Nodes("aten._scaled_dot_product_efficient_attention.default", args,
                  {heads(), m.Type({c.images, 12, 0}), m.Type({}, v1::I64), m.Type({}, v1::I64)});
      m.Output(m.Node("aten.relu.default", {{"self", T(results[0])}}, heads()));
      for (TensorType& type : m.graph.values) type.device = c.device;
      ASSERT_TRUE(RunPasses(m.graph, {}).ok());
      const std::vector<std::string> targets = Targets(m.graph);
      EXPECT_EQ(std::count(targets.begin(), targets.end(), "kiln.gemm.default"), c.split ? 2 : 0);
      EXPECT_EQ(targets.size() == 2, !c.split);
      // A row that the bias hides is no division by zero.
      EXPECT_EQ(std::count(targets.begin(), targets.end(), "aten.where.self"), c.split && biased ? 1 : 0);
      EXPECT_EQ(std::count(targets.begin(), targets.end(), "aten.clone.default"),
                0);  // the result lies as declared
      for (const GraphNode& node : m.graph.nodes) {
        if (node.target != "kiln.gemm.default" ||
            m.graph.exprs.AsConst(m.graph.type(node.results[0]).sizes[2]) != 64)
          continue;
        EXPECT_EQ(m.graph.exprs.AsConst(m.graph.type(node.results[0]).strides[1]), 768);
      }
    }
  }
}

TEST(Decompose, KeepsRandomOperatorsUnderFallbackRandom) {
  for (bool fallback : {false, true}) {
    Maker m;
    ValueId x = m.Input({16});
    m.Output(m.Node("aten.bernoulli.p", {{"self", T(x)}, {"p", FloatArg{0.5}}}, m.Type({16})));
    PassOptions options;
    options.fallback_random = fallback;
    ASSERT_TRUE(RunPasses(m.graph, options).ok());
    const std::vector<std::string> targets = Targets(m.graph);
    EXPECT_EQ(std::count(targets.begin(), targets.end(), "aten.bernoulli.p"), fallback ? 1 : 0);
  }
}

}  // namespace
}  // namespace kiln
