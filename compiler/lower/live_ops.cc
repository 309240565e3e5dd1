#include "compiler/lower/live_ops.h"

#include "absl/container/flat_hash_map.h"
#include "compiler/graph/expr_leaves.h"

namespace kiln {
namespace {

bool HasIndex(LoopOpcode op) {
  return op == LoopOpcode::kLoad || op == LoopOpcode::kStore || op == LoopOpcode::kIndexExpr ||
         op == LoopOpcode::kCheckIndex;
}

}  // namespace

LiveOps KeepLiveOps(ExprPool& exprs, const LoopBody& body, absl::Span<const LoopOpId> roots) {
  const size_t count = body.size();
  std::vector<bool> live(count, false);
  bool indirect = false;
  for (LoopOpId id = 0; id < count; ++id) {
    indirect = indirect || body.op(id).op == LoopOpcode::kCheckIndex;
    // An index is checked though the element that it names has no place of its own, as of what is expanded.
    if (body.op(id).op == LoopOpcode::kStore || body.op(id).op == LoopOpcode::kCheckIndex) live[id] = true;
  }
  for (LoopOpId root : roots) live[root] = true;
  for (LoopOpId id = count; id-- > 0;) {
    if (!live[id]) continue;
    const LoopOpData& op = body.op(id);
    for (LoopOpId arg : op.args) live[arg] = true;
    if (!indirect || !HasIndex(op.op)) continue;
    for (ExprId leaf : LeavesOf(exprs, op.index)) {
      const ExprNode& node = exprs.node(leaf);
      if (node.op == v1::EXPR_INDIRECT && node.value < static_cast<int64_t>(count)) live[node.value] = true;
    }
  }

  LiveOps result;
  result.new_ids.resize(count, 0);
  bool renamed = false;
  absl::flat_hash_map<ExprId, ExprId> memo;
  auto rename = [&](ExprId leaf) -> ExprId {
    const ExprNode& node = exprs.node(leaf);
    if (node.op != v1::EXPR_INDIRECT || node.value >= static_cast<int64_t>(count)) return leaf;
    return exprs.Indirect(result.new_ids[node.value], body.op(node.value).index);
  };
  for (LoopOpId id = 0; id < count; ++id) {
    if (!live[id]) {
      renamed = true;
      continue;
    }
    LoopOpData op = body.op(id);
    result.new_ids[id] = static_cast<LoopOpId>(result.ops.size());
    for (LoopOpId& arg : op.args) arg = result.new_ids[arg];
    if (renamed && indirect && HasIndex(op.op)) {
      auto [it, fresh] = memo.try_emplace(op.index, op.index);
      const ExprId mapped = fresh ? Substitute(exprs, op.index, rename) : it->second;
      if (fresh) memo[op.index] = mapped;
      op.index = mapped;
    }
    result.ops.push_back(std::move(op));
  }
  return result;
}

}  // namespace kiln
