// Loop graphs: what the recorder folds and refuses as they are made, and what the verifier finds.
#include "compiler/lower/loop_recorder.h"
#include "compiler/lower/verify_loop_graph.h"
#include "tests/unit/lower_testing.h"

namespace kiln {
namespace {

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

}  // namespace
}  // namespace kiln
