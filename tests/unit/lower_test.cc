// Lowering, by what the loop graph computes (loop_eval.h) and by what it keeps out of memory.
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/lower_testing.h"

namespace kiln {
namespace {

TEST(Lower, PointwiseChainIsOneLoop) {
  GraphMaker maker;
  const ValueId x = maker.Input(v1::F32, {4}), y = maker.Input(v1::F32, {4});
  const ValueId cos = maker.Node("aten.cos.default", {{"self", T(x)}}, v1::F32, {4});
  const ValueId sin = maker.Node("aten.sin.default", {{"self", T(y)}}, v1::F32, {4});
  maker.Output(maker.Node("aten.add.Tensor", {{"self", T(cos)}, {"other", T(sin)}}, v1::F32, {4}));
  const LoopGraph graph = Lower(maker);
  EXPECT_EQ(LoopCount(graph), 1u);
  EXPECT_EQ(graph.buffers.size(), 3u);
  EXPECT_EQ(graph.nodes[0].loops.operators,
            (std::vector<std::string>{"aten.cos.default", "aten.sin.default", "aten.add.Tensor"}));
  const LoopEvalResult result = Eval(graph, {Bytes<float>({0, 1, 2, 3}), Bytes<float>({3, 2, 1, 0})});
  const std::vector<float> sums = Values<float>(result.outputs[0]);
  for (int i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(sums[i], std::cos(float(i)) + std::sin(float(3 - i)));
}

TEST(Lower, OperandsThatDoNotBroadcastNameTheNode) {
  GraphMaker maker;
  const ValueId x = maker.Input(v1::F32, {4}), y = maker.Input(v1::F32, {3});
  maker.Output(maker.Node("aten.add.Tensor", {{"self", T(x)}, {"other", T(y)}}, v1::F32, {4}));
  const absl::Status status = LowerGraph(maker.graph, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "node 0, aten.add.Tensor")) << status;
}

// What a view assumes of two sizes is a guard, unless the graph says so itself.
TEST(Lower, WhatTheGraphSaysIsNotAssumedAgain) {
  for (const bool says : {false, true}) {
    GraphMaker maker;
    Graph& graph = maker.graph;
    graph.symbols.resize(2);
    const ExprId rows = graph.exprs.Symbol(0, {2, 1 << 20}), all = graph.exprs.Symbol(1, {2, 1 << 20});
    const ExprId fits = graph.exprs.Eq(graph.exprs.Mul(rows, graph.exprs.Const(4)), all);
    if (says) graph.guards = {fits};
    const ValueId x = maker.InputOf(maker.Type(v1::F32, {rows, graph.exprs.Const(4)}));
    maker.Output(maker.NodeOf("aten.view.default", {{"self", T(x)}, {"size", maker.Ints({-1})}},
                              maker.Type(v1::F32, {all})));
    const LoopGraph lowered = Lower(maker);
    EXPECT_EQ(lowered.given, graph.guards);
    EXPECT_EQ(lowered.guards, says ? std::vector<ExprId>() : std::vector<ExprId>{fits});
  }
}

TEST(Lower, OnlyDimensionsOfSizeOneAreSqueezed) {
  for (const bool symbolic : {false, true}) {
    GraphMaker maker;
    Graph& graph = maker.graph;
    graph.symbols.resize(symbolic);
    const ExprId size = symbolic ? graph.exprs.Symbol(0, {1, 1 << 20}) : graph.exprs.Const(3);
    const ValueId x = maker.InputOf(maker.Type(v1::F32, {size, graph.exprs.Const(4)}));
    maker.Output(maker.Node("aten.squeeze.dims", {{"self", T(x)}, {"dim", maker.Ints({0})}}, v1::F32, {4}));
    const absl::StatusOr<LoopGraph> lowered = LowerGraph(graph, {});
    if (symbolic) {
      ASSERT_TRUE(lowered.ok()) << lowered.status();
      EXPECT_EQ(lowered->guards, std::vector<ExprId>{graph.exprs.Eq(size, graph.exprs.Const(1))});
    } else {
      EXPECT_EQ(lowered.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_TRUE(absl::StrContains(lowered.status().message(), "squeeze of a dimension of size 3"));
    }
  }
}

// One operator whose declared result is larger than its operands: refused where the sizes are known, a
// guard where they are not. Each also with the right size, which must be neither.
TEST(Lower, DeclaredSizesThatLeaveAnOperandAreRefusedUnderMasksToo) {
  for (const bool symbolic : {false, true}) {
    for (int which = 0; which < 6; ++which) {
      for (const bool wrong : {false, true}) {
        GraphMaker maker;
        Graph& graph = maker.graph;
        const ExprId seven = graph.exprs.Const(7), n = symbolic ? graph.exprs.Symbol(0, {2, 1 << 20}) : seven;
        if (symbolic) graph.symbols.emplace_back();
        auto size = [&](int64_t value) { return graph.exprs.Const(value); };
        const ExprId off = wrong ? graph.exprs.Add(n, size(2)) : n;  // where `n` is right
        auto input = [&](std::vector<ExprId> sizes) {
          return T(maker.InputOf(maker.Type(v1::F32, std::move(sizes))));
        };
        GraphMaker::Args args;
        std::vector<ExprId> sizes;
        const char* target = nullptr;
        switch (which) {
          case 0:  // the windows' mask says nothing about the channels
            target = "aten.max_pool2d_with_indices.default";
            args = {{"self", input({n, size(8), size(8)})},
                    {"kernel_size", maker.Ints({3, 3})},
                    {"padding", maker.Ints({1, 1})},
                    {"stride", maker.Ints({1, 1})}};
            sizes = {off, size(8), size(8)};
            break;
          case 1:  // neither does that of a split reduction about what is not reduced
            target = "aten.amax.default";
            if (symbolic) continue;  // only few results, known in number, are split
            args = {{"self", input({size(100001), n})}, {"dim", maker.Ints({0})}};
            sizes = {off};
            break;
          case 2:
            target = "aten.cat.default";
            args = {{"tensors", TensorListArg{{std::get<TensorArg>(input({n, n})).value,
                                               std::get<TensorArg>(input({n, n})).value}}},
                    {"dim", IntArg{size(0)}}};
            sizes = {graph.exprs.Add(n, off), n};
            break;
          case 3:
            target = "aten.slice_scatter.default";
            args = {{"self", input({size(9), n})},
                    {"src", input({size(4), n})},
                    {"dim", IntArg{size(0)}},
                    {"start", IntArg{size(1)}},
                    {"end", IntArg{size(5)}}};
            sizes = {size(9), off};
            break;
          case 4:
            target = "aten.reflection_pad1d.default";
            args = {{"self", input({size(3), n})}, {"padding", maker.Ints({1, 1})}};
            sizes = {size(3), graph.exprs.Add(off, size(2))};
            break;
          default:
            target = "aten.view.default";
            args = {{"self", input({n, size(4)})}, {"size", maker.Ints({-1})}};
            sizes = {graph.exprs.Mul(off, size(4))};
            break;
        }
        maker.Output(maker.NodeOf(target, args, maker.Type(v1::F32, sizes)));
        const absl::StatusOr<LoopGraph> lowered = LowerGraph(graph, {});
        SCOPED_TRACE(absl::StrCat(target, symbolic ? " symbolic" : "", wrong ? " wrong" : " right"));
        if (!wrong) {
          ASSERT_TRUE(lowered.ok()) << lowered.status();
          EXPECT_TRUE(lowered->guards.empty());
          continue;
        }
        if (lowered.ok()) {  // symbolic sizes may leave it to the call: then a guard must fail there
          bool fails = false;
          for (ExprId guard : lowered->guards) {
            auto holds = lowered->exprs.Evaluate(guard, [](const ExprNode&) { return int64_t{7}; });
            fails = fails || (holds.ok() && *holds == 0);
          }
          EXPECT_TRUE(symbolic && fails);
          continue;
        }
        EXPECT_EQ(lowered.status().code(), absl::StatusCode::kInvalidArgument);
        EXPECT_TRUE(absl::StrContains(lowered.status().message(), absl::StrCat("node 0, ", target)))
            << lowered.status();
      }
    }
  }
}

TEST(Lower, RefusesDeclaredStridesThatOverlap) {
  for (const int64_t stride : {32, 33, 0}) {
    GraphMaker maker;
    TensorType column = maker.Type(v1::F32, maker.Sizes({7, 1, 33}));
    column.strides = maker.Sizes({33, 1, 1});
    TensorType declared = maker.Type(v1::F32, maker.Sizes({7, 33}));
    declared.strides = maker.Sizes({stride, 1});
    maker.Output(maker.NodeOf("aten.view.default",
                              {{"self", T(maker.InputOf(column))}, {"size", maker.Ints({7, 33})}}, declared));
    const absl::Status status = LowerGraph(maker.graph, {}).status();
    if (stride != 32) {
      EXPECT_TRUE(status.ok()) << stride << status;
      continue;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(status.message(), "node 0, aten.view.default")) << status;
  }
}

TEST(Lower, ViewsOfBuffersCopyNothing) {
  GraphMaker maker;
  const ValueId x = maker.Input(v1::F32, {2, 3});
  TensorType transposed = maker.Type(v1::F32, maker.Sizes({3, 2}));
  transposed.strides = maker.Sizes({1, 3});
  const ValueId t =
      maker.NodeOf("aten.permute.default", {{"self", T(x)}, {"dims", maker.Ints({1, 0})}}, transposed);
  TensorType row = maker.Type(v1::F32, maker.Sizes({2}));
  row.strides = maker.Sizes({3});
  const ValueId selected = maker.NodeOf("aten.select.int",
                                        {{"self", T(t)},
                                         {"dim", IntArg{maker.graph.exprs.Const(0)}},
                                         {"index", IntArg{maker.graph.exprs.Const(-1)}}},
                                        row);
  maker.Output(selected);
  const LoopGraph graph = Lower(maker);
  EXPECT_TRUE(graph.nodes.empty());
  EXPECT_EQ(Values<float>(Eval(graph, {Bytes<float>({0, 1, 2, 3, 4, 5})}).outputs[0]),
            (std::vector<float>{2, 5}));
}

TEST(Lower, ReshapeOfTransposedValueLeavesNoDivision) {
  GraphMaker maker;
  const ValueId x = maker.Input(v1::F32, {2, 3, 4});
  const ValueId doubled =
      maker.Node("aten.mul.Tensor", {{"self", T(x)}, {"other", FloatArg{2}}}, v1::F32, {2, 3, 4});
  const ValueId swapped = maker.Node(
      "aten.permute.default", {{"self", T(doubled)}, {"dims", maker.Ints({1, 0, 2})}}, v1::F32, {3, 2, 4});
  const ValueId flat =
      maker.Node("aten.view.default", {{"self", T(swapped)}, {"size", maker.Ints({3, 8})}}, v1::F32, {3, 8});
  maker.Output(maker.Node("aten.add.Tensor", {{"self", T(flat)}, {"other", FloatArg{1}}}, v1::F32, {3, 8}));
  const LoopGraph graph = Lower(maker);
  EXPECT_FALSE(absl::StrContains(graph.ToString(), "//")) << graph.ToString();
  std::vector<float> input(24);
  for (int i = 0; i < 24; ++i) input[i] = i;
  const std::vector<float> values = Values<float>(Eval(graph, {Bytes(input)}).outputs[0]);
  for (int i = 0; i < 24; ++i) {
    const int row = i / 8, image = i % 8 / 4, column = i % 4;
    EXPECT_EQ(values[i], 2 * (image * 12 + row * 4 + column) + 1);
  }
}

TEST(Lower, TrailingCopiesSeeTheOldInputs) {
  GraphMaker maker;
  const ValueId a = maker.Input(v1::F32, {2}), b = maker.Input(v1::F32, {2});
  const ValueId sum = maker.Node("aten.add.Tensor", {{"self", T(a)}, {"other", T(b)}}, v1::F32, {2});
  // Values do not change: the source of the second copy is what `a` held before the first.
  const ValueId old = maker.Node("aten.clone.default", {{"self", T(a)}}, v1::F32, {2});
  maker.Node("aten.copy_.default", {{"self", T(a)}, {"src", T(b)}}, v1::F32, {2});
  maker.Node("aten.copy_.default", {{"self", T(b)}, {"src", T(old)}}, v1::F32, {2});
  maker.Output(sum);
  const LoopEvalResult result = Eval(Lower(maker), {Bytes<float>({1, 2}), Bytes<float>({10, 20})});
  EXPECT_EQ(Values<float>(result.outputs[0]), (std::vector<float>{11, 22}));
  EXPECT_EQ(Values<float>(result.inputs[0]), (std::vector<float>{10, 20}));
  EXPECT_EQ(Values<float>(result.inputs[1]), (std::vector<float>{1, 2}));
}

TEST(Lower, MutationThatReadsOtherElementsGoesThroughACopy) {
  GraphMaker maker;
  const ValueId a = maker.Input(v1::F32, {3});
  const ValueId flipped =
      maker.Node("aten.flip.default", {{"self", T(a)}, {"dims", maker.Ints({0})}}, v1::F32, {3});
  maker.Node("aten.copy_.default", {{"self", T(a)}, {"src", T(flipped)}}, v1::F32, {3});
  const LoopEvalResult result = Eval(Lower(maker), {Bytes<float>({1, 2, 3})});
  EXPECT_EQ(Values<float>(result.inputs[0]), (std::vector<float>{3, 2, 1}));
}

TEST(Lower, UserVisibleOutputsHaveTheTracedStrides) {
  for (bool visible : {true, false}) {
    GraphMaker maker;
    const ValueId x = maker.Input(v1::F32, {2, 3});
    TensorType padded = maker.Type(v1::F32, maker.Sizes({2, 3}));
    padded.strides = maker.Sizes({8, 2});  // not dense
    maker.Output(maker.NodeOf("aten.neg.default", {{"self", T(x)}}, padded), visible);
    const LoopGraph graph = Lower(maker);
    EXPECT_EQ(graph.outputs[0].view.strides == padded.strides, visible);
    EXPECT_EQ(Values<float>(Eval(graph, {Bytes<float>({1, 2, 3, 4, 5, 6})}).outputs[0]),
              (std::vector<float>{-1, -2, -3, -4, -5, -6}));
  }
}

TEST(Lower, CloneOfAnInputIsAnotherBuffer) {
  GraphMaker maker;
  const ValueId x = maker.Input(v1::F32, {2});
  maker.Output(maker.Node("aten.clone.default", {{"self", T(x)}}, v1::F32, {2}));
  const LoopGraph graph = Lower(maker);
  EXPECT_EQ(graph.buffers[graph.outputs[0].view.buffer].kind, LoopBuffer::Kind::kOwned);
}

TEST(Lower, UnknownOperatorsAreCallsWhateverTheirNames) {
  for (const char* target :
       {"aten.frobnicate.default", "aten.__frobnicate__.Scalar", "aten.frobnicate.left_out"}) {
    GraphMaker maker;
    const ValueId x = maker.Input(v1::F32, {2});
    const ValueId doubled = maker.Node("aten.add.Tensor", {{"self", T(x)}, {"other", T(x)}}, v1::F32, {2});
    maker.Output(maker.Node(target, {{"self", T(doubled)}}, v1::F32, {2}));
    const LoopGraph graph = Lower(maker);
    ASSERT_EQ(graph.nodes.size(), 2u);
    EXPECT_EQ(graph.nodes[1].call.target, target);
    EXPECT_EQ(graph.nodes[1].call.reason, "no lowering");
    EXPECT_EQ(graph.nodes[1].call.tensors.size(), 1u);
  }
}

TEST(Lower, HeavyValuesThatAreReusedAreComputedOnce) {
  auto exps = [](const char* op) {
    GraphMaker maker;
    const ValueId x = maker.Input(v1::F32, {4, 8});
    const ValueId e = maker.Node(op, {{"self", T(x)}}, v1::F32, {4, 8});
    const ValueId sum =
        maker.Node("aten.sum.dim_IntList",
                   {{"self", T(e)}, {"dim", maker.Ints({1})}, {"keepdim", BoolArg{true}}}, v1::F32, {4, 1});
    maker.Output(maker.Node("aten.div.Tensor", {{"self", T(e)}, {"other", T(sum)}}, v1::F32, {4, 8}));
    return LoopCount(Lower(maker));
  };
  EXPECT_EQ(exps("aten.exp.default"), 3u);  // exp, sum, div
  EXPECT_EQ(exps("aten.abs.default"), 2u);  // abs is repeated
}

// i * factor + summand: an index expression only where no i makes it wrap.
TEST(Lower, ArithmeticOfPositionsWraps) {
  constexpr int64_t kBig = 6364136223846793005;
  const auto lower = [](int64_t factor, int64_t summand) {
    GraphMaker maker;
    const ValueId i = maker.Node("aten.arange.start_step", {{"end", maker.Int(5)}}, v1::I64, {5});
    const ValueId product =
        maker.Node("aten.mul.Tensor", {{"self", T(i)}, {"other", maker.Int(factor)}}, v1::I64, {5});
    maker.Output(
        maker.Node("aten.add.Tensor", {{"self", T(product)}, {"other", maker.Int(summand)}}, v1::I64, {5}));
    return Lower(maker);
  };
  for (int64_t factor : {int64_t{3}, kBig, -kBig, INT64_MAX, INT64_MIN, int64_t{1} << 61, int64_t{1} << 60}) {
    for (int64_t summand : {int64_t{0}, int64_t{-7}, kBig, INT64_MAX, INT64_MIN}) {
      const LoopGraph graph = lower(factor, summand);
      const std::vector<int64_t> values = Values<int64_t>(Eval(graph, {}).outputs[0]);
      __int128 last = 0;
      for (int64_t i = 0; i < 5; ++i) {
        EXPECT_EQ(static_cast<uint64_t>(values[i]),
                  static_cast<uint64_t>(i) * static_cast<uint64_t>(factor) + static_cast<uint64_t>(summand));
        last = __int128{i} * factor + summand;
      }
      const bool wraps = last > INT64_MAX || last < INT64_MIN || __int128{4} * factor > INT64_MAX ||
                         __int128{4} * factor < INT64_MIN;
      EXPECT_TRUE(!wraps || graph.nodes[0].loops.body.size() > 2) << factor << " " << summand;
    }
  }
  EXPECT_EQ(lower(3, 1).nodes[0].loops.body.size(), 2u);  // the expression, and its store
}

TEST(LowerLibraryCall, LeavesOutResultsThatNothingReads) {
  for (const bool positions_read : {false, true}) {
    GraphMaker maker;
    const ValueId x = maker.Input(v1::F32, {4, 9});
    const ValueId values = maker.Node("aten.sort.default", {{"self", T(x)}}, v1::F32, {4, 9});
    const ValueId positions = maker.graph.NewValue(maker.Type(v1::I64, maker.Sizes({4, 9})));
    maker.graph.nodes.back().results.push_back(positions);
    maker.Output(values);
    if (positions_read) maker.Output(positions);
    const LoopGraph graph = Lower(maker);
    const CallNode& call = graph.nodes[0].call;
    ASSERT_EQ(call.results.size(), 2u);
    EXPECT_GE(call.results[0], 0);
    EXPECT_EQ(call.results[1] >= 0, positions_read);
  }
}

}  // namespace
}  // namespace kiln
