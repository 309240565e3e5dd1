// The passes one by one: what they remove, what they must keep, and what they say about wrong graphs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/channels_last.h"
#include "compiler/graph/dtype_range.h"
#include "compiler/graph/verify_graph.h"
#include "compiler/passes/algebra.h"
#include "compiler/passes/common_subexpressions.h"
#include "compiler/passes/core_set.h"
#include "compiler/passes/decompose.h"
#include "compiler/passes/decomposition.h"
#include "compiler/passes/pinned_layouts.h"
#include "compiler/passes/pipeline.h"
#include "compiler/passes/remove_no_ops.h"
#include "compiler/passes/types.h"
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

// The library's kernel in F32 goes through the keys 64 at a time; products and a softmax wait for nothing.
TEST(Decompose, AttentionOfOneImageOnAGpuBecomesProductsWhereKeysAreMany) {
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
      EXPECT_EQ(std::count(targets.begin(), targets.end(), "aten.bmm.default"), c.split ? 2 : 0);
      EXPECT_EQ(targets.size() == 2, !c.split);
      // A row that the bias hides is no division by zero.
      EXPECT_EQ(std::count(targets.begin(), targets.end(), "aten.where.self"), c.split && biased ? 1 : 0);
      EXPECT_EQ(std::count(targets.begin(), targets.end(), "aten.clone.default"),
                0);  // the result lies as declared
      for (const GraphNode& node : m.graph.nodes) {
        if (node.target != "aten.bmm.default" ||
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

// Eager draws what nobody reads, too: the next draw is another.
TEST(RemoveDeadCode, KeepsDrawsThatNobodyReadsUnderFallbackRandom) {
  for (bool fallback : {false, true}) {
    Maker m;
    ValueId x = m.Input({16});
    m.Node("aten.bernoulli.p", {{"self", T(x)}, {"p", FloatArg{0.5}}}, m.Type({16}));
    m.Output(m.Node("aten.neg.default", {{"self", T(x)}}, m.Type({16})));
    PassOptions options;
    options.fallback_random = fallback;
    ASSERT_TRUE(RunPasses(m.graph, options).ok());
    EXPECT_EQ(m.graph.nodes.size(), fallback ? 2u : 1u);
  }
}

TEST(CheckNumbers, RefusesByNameWhatEagerRefuses) {
  const auto fill = [](const char* target, const char* argument, Argument number, v1::DType dtype) {
    Maker m;
    ValueId x = m.Input({4}, dtype);
    m.Output(m.Node(absl::StrCat("aten.", target), {{"self", T(x)}, {argument, number}}, m.Type({4}, dtype)));
    return RunPasses(m.graph, {});
  };
  const absl::Status real = fill("clamp_min.default", "min", FloatArg{-1e9}, v1::F16);
  EXPECT_EQ(real.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(real.message().find("clamp_min: min = -1e+09"), std::string::npos) << real;
  EXPECT_TRUE(fill("clamp_min.default", "min", FloatArg{-65504}, v1::F16).ok());
  EXPECT_TRUE(fill("clamp_min.default", "min", FloatArg{-1e9}, v1::BF16).ok());
  EXPECT_TRUE(fill("leaky_relu.default", "negative_slope", FloatArg{1e9}, v1::F16).ok());
  EXPECT_FALSE(fill("leaky_relu.default", "negative_slope", FloatArg{1e39}, v1::F16).ok());
  EXPECT_TRUE(fill("mul.Scalar", "other", FloatArg{1e39}, v1::F16).ok());
}

TEST(CheckNumbers, RefusesWhatAnOperatorIsNotDefinedFor) {
  const auto passes = [](const char* target, const char* argument, double number) {
    Maker m;
    ValueId x = m.Input({4});
    m.Output(
        m.Node(absl::StrCat("aten.", target), {{"self", T(x)}, {argument, FloatArg{number}}}, m.Type({4})));
    return RunPasses(m.graph, {});
  };
  EXPECT_TRUE(passes("celu.default", "alpha", -1).ok() && passes("bernoulli.p", "p", 1).ok());
  const absl::Status zero = passes("celu.default", "alpha", 0);
  EXPECT_EQ(zero.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(zero.message().find("celu: alpha = 0"), std::string::npos) << zero;
  EXPECT_FALSE(passes("bernoulli.p", "p", 1.25).ok() || passes("bernoulli.p", "p", -0.5).ok());
}

TEST(CheckDTypes, RefusesByNameWhatEagerRefuses) {
  const auto norm = [](v1::DType input, v1::DType weight, v1::DType bias) {
    Maker m;
    ValueId x = m.Input({2, 4}, input), w = m.Input({4}, weight), b = m.Input({4}, bias);
    m.Output(m.Node("aten.native_layer_norm.default",
                    {{"input", T(x)},
                     {"normalized_shape", IntListArg{{m.graph.exprs.Const(4)}}},
                     {"weight", T(w)},
                     {"bias", T(b)},
                     {"eps", FloatArg{1e-5}}},
                    m.Type({2, 4}, input)));
    return RunPasses(m.graph, {});
  };
  for (v1::DType same : {v1::F32, v1::F64, v1::BF16}) EXPECT_TRUE(norm(same, same, same).ok());
  EXPECT_TRUE(norm(v1::BF16, v1::F32, v1::F32).ok());
  const absl::Status mixed = norm(v1::F32, v1::F64, v1::F64);
  EXPECT_EQ(mixed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(mixed.message().find("weight is f64 beside input of f32"), std::string::npos) << mixed;
  EXPECT_FALSE(norm(v1::BF16, v1::F32, v1::BF16).ok() || norm(v1::F32, v1::BF16, v1::BF16).ok());
}

TEST(CheckDTypes, WantsNumbersOfOneOperandOrOfEither) {
  const auto sub = [](v1::DType self, v1::DType other, v1::DType result) {
    Maker m;
    ValueId x = m.Input({4}, self), y = m.Input({4}, other);
    m.Output(m.Node("aten.sub.Tensor", {{"self", T(x)}, {"other", T(y)}}, m.Type({4}, result)));
    return RunPasses(m.graph, {});
  };
  EXPECT_TRUE(sub(v1::U8, v1::F32, v1::F32).ok());
  EXPECT_NE(sub(v1::F32, v1::BOOL, v1::F32).message().find("sub.Tensor: other is bool"), std::string::npos);
  EXPECT_FALSE(sub(v1::BOOL, v1::F32, v1::F32).ok() || sub(v1::BOOL, v1::BOOL, v1::BOOL).ok());
  const auto pow = [](v1::DType self, v1::DType exponent, v1::DType result) {
    Maker m;
    ValueId x = m.Input({4}, self), y = m.Input({4}, exponent);
    m.Output(m.Node("aten.pow.Tensor_Tensor", {{"self", T(x)}, {"exponent", T(y)}}, m.Type({4}, result)));
    return RunPasses(m.graph, {});
  };
  EXPECT_TRUE(pow(v1::BOOL, v1::F32, v1::F32).ok() && pow(v1::F32, v1::BOOL, v1::F32).ok());
  EXPECT_FALSE(pow(v1::BOOL, v1::BOOL, v1::BOOL).ok());
  const auto frac = [](v1::DType dtype) {
    Maker m;
    m.Output(m.Node("aten.frac.default", {{"self", T(m.Input({4}, dtype))}}, m.Type({4}, dtype)));
    return RunPasses(m.graph, {});
  };
  EXPECT_TRUE(frac(v1::F32).ok() && frac(v1::BF16).ok());
  EXPECT_FALSE(frac(v1::I64).ok() || frac(v1::BOOL).ok());
}

TEST(DTypeRange, AsTorchConverts) {
  for (auto [dtype, end] :
       {std::pair(v1::I8, int64_t{1} << 7), {v1::I16, int64_t{1} << 15}, {v1::I32, int64_t{1} << 31}}) {
    EXPECT_TRUE(Converts(end - 1, dtype) && Converts(-end, dtype));
    EXPECT_FALSE(Converts(end, dtype) || Converts(-end - 1, dtype));
    EXPECT_FALSE(Converts(static_cast<double>(end) - 0.5, dtype) || Converts(std::nan(""), dtype));
  }
  EXPECT_TRUE(Converts(int64_t{-255}, v1::U8) && Converts(int64_t{255}, v1::U8));
  EXPECT_FALSE(Converts(int64_t{-256}, v1::U8) || Converts(int64_t{256}, v1::U8) || Converts(-0.5, v1::U8));
  EXPECT_TRUE(Converts(0x1p63, v1::I64) && !Converts(0x1.1p63, v1::I64) && Converts(-0x1p63, v1::I64));
  EXPECT_TRUE(Converts(65504.0, v1::F16) && !Converts(65504.5, v1::F16) &&
              !Converts(int64_t{65505}, v1::F16));
  EXPECT_TRUE(Converts(std::nan(""), v1::F16) && Converts(-HUGE_VAL, v1::F32) && Converts(1e300, v1::BOOL));
  EXPECT_TRUE(AllConvert(v1::I64, v1::F32) && AllConvert(v1::BF16, v1::F32) && AllConvert(v1::I8, v1::U8));
  EXPECT_FALSE(AllConvert(v1::F32, v1::F16) || AllConvert(v1::U8, v1::I8) || AllConvert(v1::F32, v1::I64));
}

// A saved activation is the activation, not a copy of it.
TEST(RemoveNoOps, DetachSharesMemory) {
  Maker m;
  ValueId x = m.Input({4});
  ValueId y = m.Node("aten.relu.default", {{"self", T(x)}}, m.Type({4}));
  ValueId saved = m.Node("aten.detach.default", {{"self", T(y)}}, m.Type({4}));
  m.Output(y);
  m.Output(saved);
  ASSERT_TRUE(RunPasses(m.graph, {}).ok());
  EXPECT_EQ(Targets(m.graph), std::vector<std::string>{"aten.relu.default"});
  EXPECT_EQ(m.graph.outputs[0].value, m.graph.outputs[1].value);
}

TEST(RemoveNoOps, ClonesStayWhereTheirMemoryIsVisible) {
  Maker m;
  ValueId x = m.Input({4});
  ValueId inner = m.Node("aten.clone.default", {{"self", T(x)}}, m.Type({4}));
  m.Output(m.Node("aten.exp.default", {{"self", T(inner)}}, m.Type({4})));
  ValueId outer = m.Node("aten.clone.default", {{"self", T(x)}}, m.Type({4}));
  m.Output(m.Node("aten.view.default", {{"self", T(outer)}, {"size", m.Ints({2, 2})}}, m.Type({2, 2})));
  ASSERT_TRUE(RemoveNoOps(m.graph).ok());
  EXPECT_EQ(Targets(m.graph),
            (std::vector<std::string>{"aten.exp.default", "aten.clone.default", "aten.view.default"}));
}

// Swapping two inputs: each copy_ must read what was there before the other one wrote.
TEST(RemoveNoOps, ClonesThatAreCopiedIntoInputsStay) {
  Maker m;
  ValueId a = m.Input({4}), b = m.Input({4});
  ValueId old_a = m.Node("aten.clone.default", {{"self", T(a)}}, m.Type({4}));
  m.Node("aten.copy_.default", {{"self", T(a)}, {"src", T(b)}}, m.Type({4}));
  m.Node("aten.copy_.default", {{"self", T(b)}, {"src", T(old_a)}}, m.Type({4}));
  ASSERT_TRUE(RunPasses(m.graph, {}).ok());
  EXPECT_EQ(Targets(m.graph),
            (std::vector<std::string>{"aten.clone.default", "aten.copy_.default", "aten.copy_.default"}));
}

TEST(RemoveNoOps, SquareTransposesAreNoIdentity) {
  Maker m;
  ValueId x = m.Input({4, 4});
  m.Output(m.Node("aten.permute.default", {{"self", T(x)}, {"dims", m.Ints({1, 0})}}, m.Type({4, 4})));
  ASSERT_TRUE(RemoveNoOps(m.graph).ok());
  EXPECT_EQ(m.graph.nodes.size(), 1u);
}

TEST(CommonSubexpressions, MergesEqualsButNotRandomOnes) {
  Maker m;
  ValueId x = m.Input({4});
  auto twice = [&](const char* target, const Args& args) {
    ValueId a = m.Node(target, args, m.Type({4})), b = m.Node(target, args, m.Type({4}));
    m.Output(m.Node("aten.add.Tensor", {{"self", T(a)}, {"other", T(b)}}, m.Type({4})));
  };
  twice("aten.exp.default", {{"self", T(x)}});
  twice("aten.rand.default", {{"size", m.Ints({4})}, {"dtype", DTypeArg{v1::F32}}});
  ASSERT_TRUE(MergeCommonSubexpressions(m.graph).ok());
  const std::vector<std::string> targets = Targets(m.graph);
  EXPECT_EQ(std::count(targets.begin(), targets.end(), "aten.exp.default"), 1);
  EXPECT_EQ(std::count(targets.begin(), targets.end(), "aten.rand.default"), 2);
}

TEST(CommonSubexpressions, ScalarsOfDifferentKindsDiffer) {
  Maker m;
  ValueId x = m.Input({4}, v1::I64);
  m.Output(m.Node("aten.mul.Tensor", {{"self", T(x)}, {"other", m.Int(2)}}, m.Type({4}, v1::I64)));
  m.Output(m.Node("aten.mul.Tensor", {{"self", T(x)}, {"other", FloatArg{2.0}}}, m.Type({4})));
  ASSERT_TRUE(MergeCommonSubexpressions(m.graph).ok());
  EXPECT_EQ(m.graph.nodes.size(), 2u);
}

// A caller may write to one of two outputs.
TEST(CommonSubexpressions, OutputsStayApart) {
  Maker m;
  ValueId x = m.Input({4});
  m.Output(m.Node("aten.exp.default", {{"self", T(x)}}, m.Type({4})));
  m.Output(m.Node("aten.exp.default", {{"self", T(x)}}, m.Type({4})));
  ASSERT_TRUE(MergeCommonSubexpressions(m.graph).ok());
  EXPECT_NE(m.graph.outputs[0].value, m.graph.outputs[1].value);
}

// A copy of the graph's own stands for one output at most.
TEST(CommonSubexpressions, OutputsStayApartThatEqualACopyOfTheGraphsOwn) {
  Maker m;
  const ValueId x = m.Input({4});
  const auto copy = [&] { return m.Node("aten.clone.default", {{"self", T(x)}}, m.Type({4})); };
  const ValueId own = copy(), first = copy(), second = copy();
  m.Output(m.Node("aten.exp.default", {{"self", T(own)}}, m.Type({4})));
  m.Output(first);
  m.Output(m.Node("aten.view.default", {{"self", T(second)}, {"size", m.Ints({2, 2})}}, m.Type({2, 2})));
  ASSERT_TRUE(MergeCommonSubexpressions(m.graph).ok());
  const std::vector<ValueId> owners = MemoryOwners(m.graph);
  EXPECT_NE(owners[m.graph.outputs[1].value], owners[m.graph.outputs[2].value]);
  EXPECT_EQ(std::count_if(m.graph.nodes.begin(), m.graph.nodes.end(),
                          [](const GraphNode& node) { return node.target == "aten.clone.default"; }),
            2);
}

// ---- memory

TEST(Memory, OutputsAreRelatedByWhatTheyAreViewsOf) {
  Maker m;
  const ValueId x = m.Input({4, 4});
  const auto turn = [&](ValueId value) {
    return m.Node("aten.permute.default", {{"self", T(value)}, {"dims", m.Ints({1, 0})}}, m.Type({4, 4}));
  };
  const ValueId y = m.Node("aten.relu.default", {{"self", T(x)}}, m.Type({4, 4}));
  const ValueId z = m.Node("aten.clone.default", {{"self", T(turn(y))}}, m.Type({4, 4}));
  for (const ValueId value : {y, turn(turn(y)), z, turn(x), x}) m.Output(value);
  RelateOutputs(m.graph);
  std::vector<ValueId> memory;
  for (const GraphOutput& output : m.graph.outputs) memory.push_back(output.memory);
  EXPECT_EQ(memory, (std::vector<ValueId>{y, y, z, x, x}));
  const std::vector<bool> shared = SharedByOutputs(m.graph);
  EXPECT_TRUE(shared[y]);
  EXPECT_FALSE(shared[z]);
}

TEST(Memory, WhatIsReadByStorageKeepsItsLayoutAndItsOwnMemory) {
  for (const char* reader : {"aten.as_strided.default", "aten.as_strided_copy.default", "aten.view.dtype",
                             "aten.as_strided_scatter.default", "mine.reads.default", "aten.exp.default"}) {
    Maker m;
    const ValueId x = m.Input({4, 4});
    const ValueId copy = m.Node("aten.clone.default", {{"self", T(x)}}, m.Type({4, 4}));
    const ValueId part =
        m.Node("aten.view.default", {{"self", T(copy)}, {"size", m.Ints({16})}}, m.Type({16}));
    const ValueId read = m.Node(reader, {{"self", T(part)}}, m.Type({16}));
    m.Output(m.Node("aten.exp.default", {{"self", T(read)}}, m.Type({16})));
    const bool reads = std::string(reader) != "aten.exp.default";
    const std::vector<bool> pinned = PinnedLayouts(m.graph);
    EXPECT_EQ(pinned[copy], reads) << reader;
    EXPECT_EQ(pinned[part], reads) << reader;
    EXPECT_FALSE(pinned[x]) << reader;
    ASSERT_TRUE(RemoveNoOps(m.graph).ok());
    EXPECT_EQ(Targets(m.graph)[0] == "aten.clone.default", reads) << reader;
  }
}

TEST(Algebra, DoubleTransposesAndOnesVanish) {
  Maker m;
  ValueId x = m.Input({4, 8});
  ValueId one = m.Node("aten.mul.Tensor", {{"self", T(x)}, {"other", m.Int(1)}}, m.Type({4, 8}));
  TensorType turned = m.Type({8, 4});
  std::swap(turned.strides[0], turned.strides[1]);
  turned.strides = {m.graph.exprs.Const(1), m.graph.exprs.Const(8)};
  ValueId t = m.Node("aten.permute.default", {{"self", T(one)}, {"dims", m.Ints({1, 0})}}, turned);
  ValueId back = m.Node("aten.permute.default", {{"self", T(t)}, {"dims", m.Ints({1, 0})}}, m.Type({4, 8}));
  m.Output(m.Node("aten.exp.default", {{"self", T(back)}}, m.Type({4, 8})));
  ASSERT_TRUE(SimplifyAlgebra(m.graph).ok());
  EXPECT_EQ(Targets(m.graph), std::vector<std::string>{"aten.exp.default"});
}

// -0 + 0 is 0: not the same bits.
TEST(Algebra, AddingZeroStays) {
  Maker m;
  ValueId x = m.Input({4});
  ValueId sum = m.Node("aten.add.Tensor", {{"self", T(x)}, {"other", m.Int(0)}}, m.Type({4}));
  m.Output(m.Node("aten.exp.default", {{"self", T(sum)}}, m.Type({4})));
  ASSERT_TRUE(SimplifyAlgebra(m.graph).ok());
  EXPECT_EQ(m.graph.nodes.size(), 2u);
}

// A product, or an input, plus values that are summed into `fill`s.
Maker SumOfScatter(double fill, bool accumulate, bool used_twice, bool product = true) {
  Maker m;
  const ValueId a = m.Input({8, 4}), b = m.Input({4, 4}), values = m.Input({3, 4});
  const ValueId x = product ? m.Node("aten.mm.default", {{"self", T(a)}, {"mat2", T(b)}}, m.Type({8, 4})) : a;
  const ValueId index = m.Input({3}, v1::I64);
  const ValueId full =
      m.Node("aten.full.default", {{"size", m.Ints({8, 4})}, {"fill_value", FloatArg{fill}}}, m.Type({8, 4}));
  const ValueId put = m.Node("aten._unsafe_index_put.default",
                             {{"self", T(full)},
                              {"indices", TensorListArg{{index}}},
                              {"values", T(values)},
                              {"accumulate", BoolArg{accumulate}}},
                             m.Type({8, 4}));
  m.Output(m.Node("aten.add.Tensor", {{"self", T(put)}, {"other", T(x)}}, m.Type({8, 4})));
  if (used_twice) m.Output(m.Node("aten.exp.default", {{"self", T(put)}}, m.Type({8, 4})));
  return m;
}

TEST(Algebra, SumsIntoTheOtherAddend) {
  Maker m = SumOfScatter(0, true, false);
  ASSERT_TRUE(SimplifyAlgebra(m.graph).ok());
  ASSERT_EQ(Targets(m.graph),
            (std::vector<std::string>{"aten.mm.default", "aten._unsafe_index_put.default"}));
  EXPECT_EQ(std::get<TensorArg>(*m.graph.nodes[1].Find("self")).value, m.graph.nodes[0].results[0]);
}

// An element of 2^25 plus a thousand ones one by one stays 2^25.
TEST(Algebra, SumsIntoProductsOnly) {
  Maker m = SumOfScatter(0, true, false, false);
  ASSERT_TRUE(SimplifyAlgebra(m.graph).ok());
  EXPECT_EQ(Targets(m.graph), (std::vector<std::string>{"aten.full.default", "aten._unsafe_index_put.default",
                                                        "aten.add.Tensor"}));
}

TEST(Algebra, SumsIntoTheOtherAddendOnlyWhatStartsAtZeroAndIsSummed) {
  for (Maker m : {SumOfScatter(1, true, false), SumOfScatter(0, false, false), SumOfScatter(0, true, true)}) {
    const size_t nodes = m.graph.nodes.size();
    ASSERT_TRUE(SimplifyAlgebra(m.graph).ok());
    EXPECT_EQ(m.graph.nodes.size(), nodes);
  }
}

TEST(Pipeline, DumpsAfterPassesThatChangedTheGraphOnly) {
  Maker m;
  ValueId x = m.Input({4});
  m.Output(m.Node("aten.silu.default", {{"self", T(x)}}, m.Type({4})));
  std::vector<std::string> dumped;
  std::vector<PassTime> times;
  PassOptions options;
  options.dump = [&](absl::string_view pass, const std::string&) { dumped.emplace_back(pass); };
  options.times = &times;
  ASSERT_TRUE(RunPasses(m.graph, options).ok());
  EXPECT_EQ(dumped, std::vector<std::string>{"decompose"});
  EXPECT_GT(times.size(), 4u);
}

// ---- the caller's mistakes

absl::Status RunOne(std::string target, const std::function<Args(Maker&)>& args,
                    const std::vector<int64_t>& sizes) {
  Maker m;
  Args list = args(m);
  m.Output(m.Node(std::move(target), std::move(list), m.Type(sizes)));
  return RunPasses(m.graph, {});
}

TEST(PassErrors, NameTheNodeAndTheFault) {
  struct Case {
    absl::Status status;
    const char* part;
  };
  const Case cases[] = {
      {RunOne("aten._softmax.default",
              [](Maker& m) { return Args{{"self", T(m.Input({4, 8}))}, {"dim", m.Int(2)}}; }, {4, 8}),
       "dimension 2 is out of range for rank 2"},
      {RunOne("aten.silu.default", [](Maker&) { return Args{}; }, {4}), "argument 'self' is missing"},
      {RunOne("aten.silu.default", [](Maker&) { return Args{{"self", BoolArg{true}}}; }, {4}), "wrong kind"},
      {RunOne("aten.hardshrink.default",
              [](Maker& m) { return Args{{"self", T(m.Input({4}))}, {"lambd", StringArg{"x"}}}; }, {4}),
       "argument 'lambd'"},
      {RunOne("aten.lerp.Scalar",
              [](Maker& m) {
                return Args{{"self", T(m.Input({4}))}, {"end", T(m.Input({3}))}, {"weight", FloatArg{0.3}}};
              },
              {4}),
       "do not broadcast"},
      {RunOne("aten.silu.default", [](Maker& m) { return Args{{"self", T(m.Input({4}))}}; }, {5}),
       "declared result"},
      {RunOne("aten.reshape.default",
              [](Maker& m) { return Args{{"self", T(m.Input({4}))}, {"shape", m.Ints({5})}}; }, {5}),
       "number of elements"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(c.status.code(), absl::StatusCode::kInvalidArgument) << c.status;
    EXPECT_NE(std::string(c.status.message()).find("node 0 (aten."), std::string::npos) << c.status;
    EXPECT_NE(std::string(c.status.message()).find(c.part), std::string::npos) << c.status;
  }
}

// Of one that would go by groups of channels.
TEST(PassErrors, GradientsOfDepthwiseConvolutionsWithWrongOperands) {
  const auto run = [](const std::vector<int64_t>& gradient_sizes, const std::vector<int64_t>& result) {
    Maker m;
    TensorType image = m.Type({4, 768, 7, 7});
    image.strides = ChannelsLastStrides(m.graph.exprs, image.sizes);
    const ValueId input = m.Input({});
    m.graph.values[input] = image;
    Args args = {{"input", T(input)}, {"weight", T(m.Input({768, 1, 7, 7}))}, {"groups", m.Int(768)}};
    if (!gradient_sizes.empty()) args.emplace_back("grad_output", T(m.Input(gradient_sizes)));
    const auto results = m.Nodes("aten.convolution_backward.default", args,
                                 {m.Type(result), m.Type({768, 1, 7, 7}), m.Type({768})});
    for (ValueId value : results) m.Output(value);
    return Decompose(m.graph, {});
  };
  EXPECT_TRUE(run({4, 768, 7, 7}, {4, 768, 7, 7}).ok());
  EXPECT_TRUE(run({4, 768, 49}, {4, 768, 7, 7}).ok());  // left to the library, which says what is wrong
  EXPECT_EQ(run({}, {4, 768, 7, 7}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(run({4, 768, 7, 7}, {}).code(), absl::StatusCode::kInvalidArgument);
}

// Every row of the table with arguments at random: an answer or the caller's error, never a crash or a
// broken graph.
TEST(PassErrors, EveryDecompositionStandsRandomArguments) {
  static constexpr const char* kNames[] = {"self",
                                           "input",
                                           "other",
                                           "dim",
                                           "dims",
                                           "size",
                                           "grad_output",
                                           "grad_out",
                                           "grad_in",
                                           "weight",
                                           "bias",
                                           "target",
                                           "mask",
                                           "normalized_shape",
                                           "mean",
                                           "rstd",
                                           "output_mask",
                                           "eps",
                                           "momentum",
                                           "training",
                                           "train",
                                           "running_mean",
                                           "running_var",
                                           "save_mean",
                                           "save_invstd",
                                           "N",
                                           "C",
                                           "HxW",
                                           "group",
                                           "reduction",
                                           "ignore_index",
                                           "total_weight",
                                           "index",
                                           "indices",
                                           "values",
                                           "source",
                                           "src",
                                           "start",
                                           "end",
                                           "step",
                                           "keepdim",
                                           "dtype",
                                           "correction",
                                           "p",
                                           "tensors",
                                           "repeats",
                                           "shifts",
                                           "kernel_size",
                                           "stride",
                                           "padding",
                                           "dilation",
                                           "output_size",
                                           "scale_factors",
                                           "input_sizes",
                                           "dim1",
                                           "dim2",
                                           "offset",
                                           "output",
                                           "num_weights",
                                           "padding_idx",
                                           "fill_value",
                                           "s",
                                           "exponent",
                                           "min",
                                           "max",
                                           "alpha",
                                           "beta",
                                           "value",
                                           "vec",
                                           "mat",
                                           "split_size",
                                           "split_sizes",
                                           "diagonal",
                                           "n",
                                           "steps",
                                           "low",
                                           "high",
                                           "upscale_factor",
                                           "lambd",
                                           "threshold",
                                           "length",
                                           "min_val",
                                           "max_val",
                                           "negative_slope",
                                           "scale",
                                           "input_scale",
                                           "is_result",
                                           "self_or_result",
                                           "condition",
                                           "dimension",
                                           "tensor1",
                                           "tensor2",
                                           "std",
                                           "from",
                                           "to",
                                           "k",
                                           "vec1",
                                           "vec2",
                                           "scales_h",
                                           "scales_w",
                                           "a",
                                           "rounding_mode",
                                           "approximate"};
  std::mt19937 random(20261121);
  auto pick = [&](int n) { return static_cast<int>(random() % n); };
  const int64_t kSizes[] = {0, 1, 2, 3, 4, 8, 7};
  const v1::DType kTypes[] = {v1::F32, v1::F32, v1::BF16, v1::I64, v1::BOOL, v1::U8, v1::F64};
  std::vector<std::string> targets;
  for (const auto& [target, row] : Decompositions()) targets.push_back(target);
  std::sort(targets.begin(), targets.end());
  int covered = 0;
  for (const std::string& target : targets) {
    for (int round = 0; round < 60; ++round) {
      Maker m;
      const int rank = pick(5);
      std::vector<int64_t> sizes(rank);
      for (int64_t& size : sizes) size = kSizes[pick(7)];
      std::vector<ValueId> tensors;
      for (int i = 0; i < 4; ++i) {
        std::vector<int64_t> other = sizes;
        if (pick(3) == 0) other.resize(pick(5), 2);
        tensors.push_back(m.Input(other, kTypes[pick(7)]));
      }
      Args args;
      for (const char* name : kNames) {
        const int64_t small = pick(9) - 3;
        switch (pick(9)) {
          case 0: break;
          case 1:
          case 2:
          case 3: args.push_back({name, T(tensors[pick(4)])}); break;
          case 4: args.push_back({name, m.Int(pick(20) == 0 ? INT64_MAX : small)}); break;
          case 5: args.push_back({name, m.Ints({small, pick(4), 1, 2})}); break;
          case 6: args.push_back({name, FloatArg{small * 0.5}}); break;
          case 7: args.push_back({name, BoolListArg{{true, true, pick(2) == 0}}}); break;
          default:
            args.push_back({name, TensorListArg{{tensors[pick(4)], kNoValue, tensors[pick(4)]}}});
            break;
        }
      }
      std::vector<TensorType> types;
      for (int i = 0; i < 1 + pick(5); ++i) types.push_back(m.Type(sizes, kTypes[pick(7)]));
      for (ValueId result : m.Nodes(target, args, types)) m.Output(result);
      const absl::Status status = Decompose(m.graph, {});
      covered += status.ok();
      ASSERT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << target << ": " << status;
      if (!status.ok()) continue;
      const absl::Status valid = VerifyGraph(m.graph);
      ASSERT_TRUE(valid.ok()) << target << ": " << valid << "\n" << m.graph.ToString();
    }
  }
  EXPECT_GT(covered, 100);  // not all are refused at the door
}

}  // namespace
}  // namespace kiln
