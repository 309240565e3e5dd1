// Large reductions, in chunks that threads share and that are alike.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/lower_testing.h"

namespace kiln {
namespace {

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

}  // namespace
}  // namespace kiln
