#include "compiler/lower/verify_loop_graph.h"

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/expr_leaves.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

absl::Status Wrong(absl::string_view what) { return absl::InternalError(what); }

bool HasIndex(LoopOpcode op) {
  return op == LoopOpcode::kLoad || op == LoopOpcode::kStore || op == LoopOpcode::kIndexExpr ||
         op == LoopOpcode::kCheckIndex;
}

class NodeVerifier {
 public:
  NodeVerifier(const LoopGraph& graph, const LoopNode& node) : graph_(graph), node_(node) {}

  absl::Status Run() {
    for (const std::vector<LoopVar>* loops : {&node_.outer, &node_.inner}) {
      for (const LoopVar& loop : *loops) {
        if (graph_.exprs.node(loop.leaf).op != v1::EXPR_VAR) return Wrong("a loop without a variable");
        if (!vars_.insert(loop.leaf).second) return Wrong("two loops with one variable");
      }
    }
    bool stores = false;
    for (LoopOpId id = 0; id < node_.body.size(); ++id) {
      const LoopOpData& op = node_.body.op(id);
      if (absl::Status status = CheckOp(id, op); !status.ok()) {
        return Wrong(absl::StrCat("op ", id, " (", InfoOf(op.op).name, "): ",
                                  absl::string_view(status.message().data(), status.message().size())));
      }
      stores = stores || op.op == LoopOpcode::kStore;
    }
    return stores ? absl::OkStatus() : Wrong("nothing is stored");
  }

 private:
  v1::DType Type(LoopOpId id) const { return node_.body.op(id).dtype; }

  absl::Status CheckOp(LoopOpId id, const LoopOpData& op) {
    const LoopOpInfo& info = InfoOf(op.op);
    if (info.arity >= 0 && op.args.size() != static_cast<size_t>(info.arity))
      return Wrong("number of operands");
    for (LoopOpId arg : op.args) {
      if (arg >= id) return Wrong("an operand that comes later");
    }
    if (HasIndex(op.op)) KILN_RETURN_IF_ERROR(CheckIndexExpr(id, op.index));
    if (op.op == LoopOpcode::kLoad || op.op == LoopOpcode::kStore) return CheckMemory(op);
    if (op.op == LoopOpcode::kCheckIndex) {
      if (op.args.empty() || op.args.size() > 2 || Type(op.args[0]) != v1::I64) return Wrong("operands");
      return CheckMask(op, 1);
    }
    if (op.op == LoopOpcode::kCast || info.op_class == LoopOpClass::kLeaf) return absl::OkStatus();
    return CheckValue(op, info);
  }

  absl::Status CheckIndexExpr(LoopOpId id, ExprId expr) {
    if (expr >= graph_.exprs.size()) return Wrong("an expression of another pool");
    for (ExprId leaf : LeavesOf(graph_.exprs, expr)) {
      const ExprNode& node = graph_.exprs.node(leaf);
      if (node.op == v1::EXPR_VAR && !vars_.contains(leaf)) return Wrong("a variable of no loop");
      if (node.op != v1::EXPR_INDIRECT) continue;
      if (node.value < 0 || node.value >= id ||
          node_.body.op(static_cast<LoopOpId>(node.value)).op != LoopOpcode::kCheckIndex) {
        return Wrong("an index from an unchecked value");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckMask(const LoopOpData& op, size_t position) {
    if (op.args.size() > position + 1) return Wrong("number of operands");
    if (op.args.size() > position && Type(op.args[position]) != v1::BOOL)
      return Wrong("a mask that is not BOOL");
    return absl::OkStatus();
  }

  absl::Status CheckMemory(const LoopOpData& op) {
    if (op.buffer >= graph_.buffers.size()) return Wrong("an unknown buffer");
    if (graph_.buffers[op.buffer].dtype != op.dtype) return Wrong("another type than its buffer's");
    if (op.op == LoopOpcode::kLoad) return CheckMask(op, 0);
    if (op.args.empty() || Type(op.args[0]) != op.dtype) return Wrong("a value of another type");
    return CheckMask(op, 1);
  }

  absl::Status CheckValue(const LoopOpData& op, const LoopOpInfo& info) {
    const size_t first = op.op == LoopOpcode::kWhere ? 1 : 0;
    if (op.args.size() <= first) return Wrong("number of operands");
    if (first == 1 && Type(op.args[0]) != v1::BOOL) return Wrong("a condition that is not BOOL");
    const v1::DType type = Type(op.args[first]);
    for (size_t i = first; i < op.args.size(); ++i) {
      if (Type(op.args[i]) != type) return Wrong("operands of different types");
    }
    if (IsHalf(type) || IsHalf(op.dtype)) return Wrong("16-bit floats exist in memory only");
    switch (info.op_class) {
      case LoopOpClass::kFloat:
        return IsFloat(type) && op.dtype == type ? absl::OkStatus() : Wrong("not a float");
      case LoopOpClass::kInteger:
        return !IsFloat(type) && op.dtype == type ? absl::OkStatus() : Wrong("not an integer");
      case LoopOpClass::kCompare:
        return op.dtype == v1::BOOL ? absl::OkStatus() : Wrong("a result that is not BOOL");
      case LoopOpClass::kLogical:
        return op.dtype == v1::BOOL && type == v1::BOOL ? absl::OkStatus() : Wrong("not BOOL");
      case LoopOpClass::kArith:
      case LoopOpClass::kSelect:
        return op.dtype == type ? absl::OkStatus() : Wrong("a result of another type");
      default: return absl::OkStatus();
    }
  }

  const LoopGraph& graph_;
  const LoopNode& node_;
  absl::flat_hash_set<ExprId> vars_;
};

absl::Status CheckView(const LoopGraph& graph, const BufferView& view) {
  if (view.buffer >= graph.buffers.size()) return Wrong("a view of an unknown buffer");
  if (view.sizes.size() != view.strides.size()) return Wrong("a view whose sizes and strides differ in rank");
  if (ByteSize(view.dtype) != ByteSize(graph.buffers[view.buffer].dtype))
    return Wrong("a view of another width");
  return absl::OkStatus();
}

absl::Status CheckCall(const LoopGraph& graph, const CallNode& call) {
  for (const BufferView& view : call.tensors) KILN_RETURN_IF_ERROR(CheckView(graph, view));
  for (const SizeBind& bind : call.binds) {
    if (bind.symbol >= graph.symbols.size() || bind.result >= call.results.size() || call.into_results)
      return Wrong("a symbol that no result has as its size");
  }
  for (int64_t result : call.results) {
    if (result < -1 || result >= static_cast<int64_t>(graph.buffers.size()))
      return Wrong("an unknown result");
  }
  return absl::OkStatus();
}

absl::Status CheckNode(const LoopGraph& graph, const LoopGraphNode& node) {
  switch (node.kind) {
    case LoopGraphNode::Kind::kLoops: return NodeVerifier(graph, node.loops).Run();
    case LoopGraphNode::Kind::kCall: return CheckCall(graph, node.call);
    case LoopGraphNode::Kind::kSeeds:
      return node.seeds.buffer < graph.buffers.size() ? absl::OkStatus() : Wrong("an unknown buffer");
    case LoopGraphNode::Kind::kLet:
      if (node.let.symbol >= graph.symbols.size()) return Wrong("an unknown symbol");
      return node.let.number ? absl::OkStatus() : CheckView(graph, node.let.item);
    case LoopGraphNode::Kind::kCheck:
      return node.check.condition < graph.exprs.size() ? absl::OkStatus() : Wrong("an unknown expression");
  }
  return Wrong("an unknown kind of node");
}

}  // namespace

absl::Status VerifyLoopGraph(const LoopGraph& graph) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (absl::Status status = CheckNode(graph, graph.nodes[i]); !status.ok()) {
      return StatusWrap(status, absl::StrCat("loop graph node ", i));
    }
  }
  for (const LoopGraphOutput& output : graph.outputs) {
    if (output.kind != LoopGraphOutput::Kind::kView) continue;
    if (absl::Status status = CheckView(graph, output.view); !status.ok())
      return StatusWrap(status, "loop graph output");
  }
  return absl::OkStatus();
}

}  // namespace kiln
