// Lowering, by what the loop graph computes (loop_eval.h) and by what it keeps out of memory.
#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/scalar_ops.h"
#include "compiler/lower/loop_recorder.h"
#include "compiler/lower/verify_loop_graph.h"
#include "compiler/support/kernel_abi.h"
#include "tests/unit/lower_testing.h"

namespace kiln {
namespace {

size_t LoopCount(const LoopGraph& graph) {
  size_t count = 0;
  for (const LoopGraphNode& node : graph.nodes) count += node.kind == LoopGraphNode::Kind::kLoops;
  return count;
}

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

TEST(Lower, LargeSumRunsInFixedChunks) {
  GraphMaker maker;
  const ValueId x = maker.Input(v1::F32, {40001});
  maker.Output(maker.Node("aten.sum.dim_IntList", {{"self", T(x)}, {"dim", maker.Ints({0})}}, v1::F32, {}));
  const LoopGraph graph = Lower(maker);
  EXPECT_EQ(LoopCount(graph), 2u);
  EXPECT_EQ(graph.nodes[0].loops.outer.size(), 1u);  // the chunks are parallel
  const LoopEvalResult result = Eval(graph, {Bytes(std::vector<float>(40001, 1))});
  EXPECT_EQ(Values<float>(result.outputs[0]), std::vector<float>{40001});
}

// The elements that the first pass visits, those past the end included.
int64_t PointsOfFirstPass(const LoopGraph& graph, int64_t symbol) {
  int64_t points = 1;
  for (const auto* loops : {&graph.nodes[0].loops.outer, &graph.nodes[0].loops.inner}) {
    for (const LoopVar& loop : *loops) {
      points *= graph.exprs.Evaluate(loop.extent, [&](const ExprNode&) { return symbol; }).value();
    }
  }
  return points;
}

TEST(Lower, ChunksOfALargeSumAreAlike) {
  for (const bool symbolic : {false, true}) {
    for (const int64_t rows : {0, 100, 8192, 8193, 12544, 20011}) {
      if (rows == 0 && !symbolic) continue;  // a sum of nothing known has no loops
      GraphMaker maker;
      const ExprId size =
          symbolic ? maker.graph.exprs.Symbol(0, {0, 1 << 20}) : maker.graph.exprs.Const(rows);
      if (symbolic) {
        maker.graph.symbols.emplace_back();
        maker.graph.symbols[0].set_kind(v1::SYMBOL_INT);
      }
      const ValueId x = maker.InputOf(maker.Type(v1::F32, {maker.graph.exprs.Const(8), size}));
      maker.Output(
          maker.Node("aten.sum.dim_IntList", {{"self", T(x)}, {"dim", maker.Ints({0, 1})}}, v1::F32, {}));
      const LoopGraph graph = Lower(maker);
      const int64_t points = PointsOfFirstPass(graph, rows);
      SCOPED_TRACE(absl::StrCat(rows, symbolic ? " symbolic" : ""));
      EXPECT_GE(points, 8 * rows);
      EXPECT_LE(points, 8 * (rows + (rows + 8191) / 8192));  // at most one a chunk lies past the end
      const std::vector<float> ones(8 * std::max<int64_t>(rows, 1), 1);
      const LoopEvalResult result = Eval(graph, {Bytes(ones)}, {rows});
      EXPECT_EQ(Values<float>(result.outputs[0])[0], 8 * rows);
    }
  }
}

TEST(Lower, ChunksOfKnownSizesHaveNoRestWhereTheSizeAllows) {
  GraphMaker maker;
  const ValueId image = maker.Input(v1::F32, {8, 112, 112});
  maker.Output(
      maker.Node("aten.sum.dim_IntList", {{"self", T(image)}, {"dim", maker.Ints({0, 1, 2})}}, v1::F32, {}));
  const LoopGraph graph = Lower(maker);
  EXPECT_EQ(PointsOfFirstPass(graph, 0), 8 * 112 * 112);
  EXPECT_FALSE(absl::StrContains(graph.ToString(), "where")) << graph.ToString();
}

TEST(Lower, ChunksOfASizeThatNoMemoryHoldsAreFoundAtOnce) {
  constexpr int64_t kPrime = (int64_t{1} << 61) - 1;  // which no number of chunks divides
  GraphMaker maker;
  const ValueId x = maker.Input(v1::U8, {kPrime});
  maker.Output(maker.Node("aten.amax.default", {{"self", T(x)}, {"dim", maker.Ints({0})}}, v1::U8, {}));
  const absl::StatusOr<LoopGraph> lowered = LowerGraph(maker.graph, {});
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  const int64_t points = PointsOfFirstPass(*lowered, 0);
  EXPECT_GE(points, kPrime);
  EXPECT_LE(points, kPrime + kPrime / 8192 + 1);
}

TEST(Lower, SymbolicSizesServeEveryLength) {
  GraphMaker maker;
  v1::Symbol symbol;
  symbol.set_kind(v1::SYMBOL_INT);
  maker.graph.symbols.push_back(symbol);
  const ExprId s0 = maker.graph.exprs.Symbol(0, {0, 1 << 20});
  const ValueId x = maker.InputOf(maker.Type(v1::F32, {s0, maker.graph.exprs.Const(3)}));
  maker.Output(maker.Node("aten.mean.dim", {{"self", T(x)}, {"dim", maker.Ints({0, 1})}}, v1::F32, {}));
  const LoopGraph graph = Lower(maker);
  for (int64_t rows : {1, 7, 20000}) {
    const LoopEvalResult result = Eval(graph, {Bytes(std::vector<float>(rows * 3, 2))}, {rows});
    EXPECT_EQ(Values<float>(result.outputs[0]), std::vector<float>{2}) << rows;
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

TEST(Lower, DropoutKeepsTheRightShareAndRepeatsWithItsSeed) {
  GraphMaker maker;
  const ValueId x = maker.Input(v1::F32, {20000});
  const ValueId out =
      maker.Node("aten.native_dropout.default",
                 {{"input", T(x)}, {"p", FloatArg{0.25}}, {"train", BoolArg{true}}}, v1::F32, {20000});
  const ValueId mask = maker.Value(maker.Type(v1::BOOL, maker.Sizes({20000})));
  maker.graph.nodes.back().results.push_back(mask);
  maker.Output(out);
  maker.Output(mask);
  const LoopGraph graph = Lower(maker);
  const BufferBytes ones = Bytes(std::vector<float>(20000, 1));
  const LoopEvalResult first = Eval(graph, {ones}, {}, 42);
  const std::vector<float> values = Values<float>(first.outputs[0]);
  const std::vector<uint8_t> kept = Values<uint8_t>(first.outputs[1]);
  int count = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_FLOAT_EQ(values[i], kept[i] ? 1 / 0.75f : 0);
    count += kept[i];
  }
  EXPECT_NEAR(count, 15000, 300);
  EXPECT_EQ(Eval(graph, {ones}, {}, 42).outputs[1], first.outputs[1]);
  EXPECT_NE(Eval(graph, {ones}, {}, 43).outputs[1], first.outputs[1]);

  LowerOptions options;
  options.fallback_random = true;
  EXPECT_EQ(Lower(maker, options).nodes[0].call.target, "aten.native_dropout.default");
}

// floor(w * count / 2^(32 n)) of the n = 2 or 3 words that a number of its own draws each, in 128 bits here.
TEST(Lower, RandomIntegersAreScaledWords) {
  constexpr int64_t kElements = 200, kSeed = 77;
  const auto drawn = [](int64_t element, uint64_t count) {
    const auto word = [&](int64_t number) {
      return static_cast<uint64_t>(RandomBits(kSeed, element, number));
    };
    unsigned __int128 scaled = 0;
    for (int64_t number = 0; number < (count >> 32 == 0 ? 2 : 3); ++number) {
      scaled = (static_cast<unsigned __int128>(word(number)) * count + scaled) >> 32;
    }
    return static_cast<uint64_t>(scaled);
  };
  const std::pair<int64_t, int64_t> spans[] = {{0, 1},
                                               {0, 7},
                                               {-5, 1000},
                                               {0, 3221225472},
                                               {0, (int64_t{1} << 32) - 1},
                                               {0, int64_t{1} << 32},
                                               {3, (int64_t{1} << 50) + 1},
                                               {0, INT64_MAX},
                                               {INT64_MIN, INT64_MAX}};
  for (const auto& [low, high] : spans) {
    GraphMaker maker;
    maker.Output(
        maker.Node("aten.randint.low",
                   {{"low", maker.Int(low)}, {"high", maker.Int(high)}, {"size", maker.Ints({kElements})}},
                   v1::I64, {kElements}));
    const std::vector<int64_t> values = Values<int64_t>(Eval(Lower(maker), {}, {}, kSeed).outputs[0]);
    const uint64_t count = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
    for (int64_t i = 0; i < kElements; ++i) {
      ASSERT_EQ(static_cast<uint64_t>(values[i]), static_cast<uint64_t>(low) + drawn(i, count))
          << low << " " << high;
    }
  }
}

TEST(Lower, RandomIntegersThatEagerRefusesAreTheCallers) {
  const auto status = [](int64_t low, int64_t high, v1::DType dtype) {
    GraphMaker maker;
    maker.Output(maker.Node("aten.randint.low",
                            {{"low", maker.Int(low)}, {"high", maker.Int(high)}, {"size", maker.Ints({4})}},
                            dtype, {4}));
    return LowerGraph(maker.graph, {}).status().code();
  };
  EXPECT_EQ(status(5, 5, v1::I64), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status(0, 257, v1::U8), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status(-1, 2, v1::U8), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status(0, 70000, v1::F16), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status(0, 256, v1::U8), absl::StatusCode::kOk);
  EXPECT_EQ(status(-128, 128, v1::I8), absl::StatusCode::kOk);
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

TEST(VerifyLoopGraph, NamesWhatIsWrong) {
  GraphMaker maker;
  const ValueId x = maker.Input(v1::F32, {4});
  maker.Output(maker.Node("aten.neg.default", {{"self", T(x)}}, v1::F32, {4}));
  const LoopGraph good = Lower(maker);
  ASSERT_TRUE(VerifyLoopGraph(good).ok());
  auto broken = [&](auto change) {
    LoopGraph graph = good;
    LoopBody body;
    for (LoopOpId id = 0; id < graph.nodes[0].loops.body.size(); ++id) {
      LoopOpData op = graph.nodes[0].loops.body.op(id);
      change(graph, op);
      body.Add(std::move(op));
    }
    graph.nodes[0].loops.body = std::move(body);
    return VerifyLoopGraph(graph);
  };
  EXPECT_TRUE(broken([](LoopGraph&, LoopOpData&) {}).ok());
  EXPECT_EQ(broken([](LoopGraph&, LoopOpData& op) { op.buffer = 9; }).code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(broken([](LoopGraph& graph, LoopOpData& op) {
                 op.index = graph.exprs.Var(99, graph.exprs.Const(4));
               }).ok());
  EXPECT_FALSE(broken([](LoopGraph&, LoopOpData& op) {
                 if (op.op == LoopOpcode::kNeg) op.dtype = v1::I64;
               }).ok());
  EXPECT_FALSE(broken([](LoopGraph&, LoopOpData& op) {
                 if (op.op == LoopOpcode::kNeg) op.args = {1};
               }).ok());
  EXPECT_FALSE(broken([](LoopGraph& graph, LoopOpData&) { graph.nodes[0].loops.outer.clear(); }).ok());
}

TEST(LoopRecorder, FoldsWhatChangesNothing) {
  ExprPool exprs;
  LoopRecorder ops(exprs);
  const LoopOpId x = ops.Load(0, v1::F32, exprs.Var(0, exprs.Const(8)));
  EXPECT_EQ(ops.Mul(x, ops.Constant(1, v1::F32)), x);
  EXPECT_EQ(ops.Div(x, ops.Constant(1, v1::F32)), x);
  EXPECT_EQ(ops.Sub(x, ops.Constant(0, v1::F32)), x);
  EXPECT_EQ(ops.Add(x, ops.Constant(-0.0, v1::F32)), x);
  EXPECT_NE(ops.Add(x, ops.Constant(0.0, v1::F32)), x);                       // -0.0 + 0.0 is 0.0
  EXPECT_NE(ops.Mul(x, ops.Constant(0, v1::F32)), ops.Constant(0, v1::F32));  // NaN * 0
  EXPECT_EQ(ops.Cast(x, v1::F32), x);
  EXPECT_EQ(ops.Load(0, v1::F32, exprs.Var(0, exprs.Const(8))), x);
  EXPECT_TRUE(ops.status().ok());
}

TEST(LoopRecorder, MixedTypesFail) {
  ExprPool exprs;
  LoopRecorder ops(exprs);
  ops.Add(ops.Constant(1, v1::F32), ops.ConstantInt(1));
  EXPECT_EQ(ops.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(LoopRecorder, IndicesThatCannotLeaveAreNotChecked) {
  ExprPool exprs;
  LoopRecorder ops(exprs);
  const ExprId i = exprs.Var(0, exprs.Const(8));
  EXPECT_EQ(ops.CheckedIndex(ops.IndexExpr(i), exprs.Const(8)), i);
  EXPECT_EQ(ops.CheckedIndex(ops.ConstantInt(-1), exprs.Const(8), v1::INDEX_FROM_EITHER_END), exprs.Const(7));
  EXPECT_EQ(exprs.node(ops.CheckedIndex(ops.ConstantInt(-1), exprs.Const(8))).op, v1::EXPR_INDIRECT);
  EXPECT_EQ(exprs.node(ops.CheckedIndex(ops.IndexExpr(i), exprs.Const(7))).op, v1::EXPR_INDIRECT);
}

// ---- convolutions on a GPU

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

}  // namespace
}  // namespace kiln
