// Numbers that only a call knows: where they come from, and what must hold of them.
#include "compiler/lower/lowering_context.h"
#include "compiler/lower/node_arguments.h"

namespace kiln {
namespace {

absl::Status LowerSymbol(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  LoopGraphNode made;
  made.kind = LoopGraphNode::Kind::kLet;
  made.let.symbol = static_cast<uint32_t>(args.Int("symbol", 0));
  if (node.target == Op::kSymbolOfNumber) {
    made.let.number = args.Expr("number", context.Const(0));
  } else {
    made.let.item = context.memory().Materialize(context.MutableValue(args.TensorValue("self")));
  }
  context.out().nodes.push_back(std::move(made));
  return context.status();
}

// The call that gives the tensor has bound it.
absl::Status LowerSymbolOfSize(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  if (context.IsBound(static_cast<uint32_t>(args.Int("symbol", 0)))) return absl::OkStatus();
  return absl::UnimplementedError(
      "unsupported: a size that only a call knows, of what is no library call's result");
}

absl::Status LowerAssertScalar(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  ExprPool& exprs = context.exprs();
  const ExprId holds = exprs.Ne(args.Expr("self", context.Const(1)), context.Const(0));
  if (exprs.AsConst(holds) == 1) return context.status();
  LoopGraphNode made;
  made.kind = LoopGraphNode::Kind::kCheck;
  made.check = {holds, args.String("assert_msg", "")};
  context.out().nodes.push_back(std::move(made));
  return context.status();
}

}  // namespace

void RegisterSymbols(LoweringTable& table) {
  table[Op::kSymbolOfItem] = LowerSymbol;
  table[Op::kSymbolOfNumber] = LowerSymbol;
  table[Op::kSymbolOfSize] = LowerSymbolOfSize;
  table[Op::kAssertScalar] = LowerAssertScalar;
}

}  // namespace kiln
