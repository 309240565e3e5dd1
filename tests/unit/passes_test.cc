// The passes together: their dumps, and what they say of wrong graphs.
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/channels_last.h"
#include "compiler/graph/verify_graph.h"
#include "compiler/passes/core_set.h"
#include "compiler/passes/decompose.h"
#include "compiler/passes/decomposition.h"
#include "compiler/passes/pipeline.h"
#include "compiler/passes/types.h"
#include "tests/unit/graph_maker.h"

namespace kiln {
namespace {

using Args = Maker::Args;

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
  for (const auto& [target, row] : Decompositions()) targets.emplace_back(target.text());
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
