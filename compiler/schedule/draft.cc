#include "compiler/schedule/draft.h"

#include <algorithm>

#include "compiler/graph/expr_leaves.h"
#include "compiler/ir/reduce_kinds.h"

namespace kiln {
namespace {

bool ReadsInnerValue(const DraftOp& op) { return op.cls != kOuterClass && op.data.op != LoopOpcode::kReduce; }

// The extent that an EXPR_INDIRECT leaf was made with.
ExprId IndirectExtent(ExprPool& pool, ExprId leaf) {
  if (auto extent = pool.Extent(leaf)) return *extent;
  int64_t max = pool.Range(leaf).max;
  return pool.Const(max == INT64_MAX ? max : max + 1);
}

}  // namespace

bool HasIndex(const LoopOpData& op) {
  return op.op == LoopOpcode::kLoad || op.op == LoopOpcode::kStore || op.op == LoopOpcode::kIndexExpr ||
         op.op == LoopOpcode::kCheckIndex;
}

void AppendDependencies(LoopContext& context, const LoopOpData& op, std::vector<LoopOpId>* out) {
  out->insert(out->end(), op.args.begin(), op.args.end());
  if (!HasIndex(op)) return;
  for (ExprId leaf : context.Leaves(op.index)) {
    const ExprNode& node = context.pool().node(leaf);
    if (node.op == v1::EXPR_INDIRECT) out->push_back(static_cast<LoopOpId>(node.value));
  }
}

Draft MakeDraft(LoopContext& context, uint32_t node_position) {
  const LoopNode& node = context.graph().nodes[node_position].loops;
  ExprPool& pool = context.pool();
  Draft draft;
  draft.nodes = {node_position};
  draft.gemm = node.gemm;
  LeafMap replacement;
  auto keep = [&](const std::vector<LoopVar>& vars, std::vector<LoopVar>* out) {
    for (const LoopVar& var : vars) {
      if (context.IsOne(var.extent)) {
        replacement[var.leaf] = pool.Const(0);
      } else {
        out->push_back(var);
      }
    }
  };
  keep(node.outer, &draft.outer);
  if (!node.inner.empty()) {
    DraftClass cls;
    keep(node.inner, &cls.vars);
    cls.ordered = node.ordered;
    draft.classes.push_back(std::move(cls));
  }
  LoopOpId base = context.NewOps(node.body.size());
  for (LoopOpId id = 0; id < node.body.size(); ++id) {
    DraftOp op;
    op.id = base + id;
    op.data = node.body.op(id);
    for (LoopOpId& arg : op.data.args) arg += base;
    if (HasIndex(op.data)) {
      for (ExprId leaf : std::vector<ExprId>(context.Leaves(op.data.index))) {
        const ExprNode& leaf_node = pool.node(leaf);
        if (leaf_node.op != v1::EXPR_INDIRECT) continue;
        LoopOpId target = base + static_cast<LoopOpId>(leaf_node.value);
        replacement[leaf] = pool.Indirect(target, IndirectExtent(pool, leaf));
      }
    }
    if (op.data.op == LoopOpcode::kReduce && !draft.classes.empty() &&
        IsArgReduce(static_cast<v1::ReduceKind>(op.data.mode))) {
      draft.classes[0].ordered = true;
    }
    draft.ops.push_back(std::move(op));
  }
  SubstituteVars(context, draft, replacement);
  AssignClass(context, draft, draft.classes.empty() ? kOuterClass : 0);
  return draft;
}

void AssignClass(LoopContext& context, Draft& draft, int cls) {
  if (cls == kOuterClass) {
    for (DraftOp& op : draft.ops) op.cls = kOuterClass;
    return;
  }
  absl::flat_hash_map<LoopOpId, size_t> position;
  std::vector<LoopOpId> dependencies;
  std::vector<char> reads_reduction(draft.ops.size(), 0);
  for (size_t i = 0; i < draft.ops.size(); ++i) {
    DraftOp& op = draft.ops[i];
    position[op.id] = i;
    bool inner = op.data.op == LoopOpcode::kReduce || op.data.op == LoopOpcode::kScan;
    dependencies.clear();
    AppendDependencies(context, op.data, &dependencies);
    for (LoopOpId dependency : dependencies) {
      const DraftOp& arg = draft.ops[position.at(dependency)];
      inner = inner || ReadsInnerValue(arg);
      if (arg.data.op == LoopOpcode::kReduce || reads_reduction[position.at(dependency)])
        reads_reduction[i] = 1;
    }
    if (!inner && HasIndex(op.data)) {
      for (ExprId leaf : context.Leaves(op.data.index)) {
        for (const LoopVar& var : draft.classes[cls].vars) inner = inner || leaf == var.leaf;
      }
    }
    // An accumulating store runs once per inner point even where neither value nor index varies.
    if (op.data.op == LoopOpcode::kStore && op.data.mode == v1::STORE_ACCUMULATE && !reads_reduction[i]) {
      inner = true;
    }
    op.cls = inner ? cls : kOuterClass;
  }
}

std::vector<DraftAccess> Accesses(const Draft& draft) {
  std::vector<DraftAccess> accesses;
  for (size_t i = 0; i < draft.ops.size(); ++i) {
    const LoopOpData& op = draft.ops[i].data;
    if (op.op != LoopOpcode::kLoad && op.op != LoopOpcode::kStore) continue;
    DraftAccess access;
    access.buffer = op.buffer;
    access.index = op.index;
    access.cls = draft.ops[i].cls;
    access.store = op.op == LoopOpcode::kStore;
    access.accumulate = access.store && op.mode == v1::STORE_ACCUMULATE;
    access.masked = op.args.size() > (access.store ? 1 : 0);
    access.position = i;
    accesses.push_back(access);
  }
  return accesses;
}

void SubstituteVars(LoopContext& context, Draft& draft, const LeafMap& replacement) {
  if (replacement.empty()) return;
  absl::flat_hash_map<ExprId, ExprId> done;
  for (DraftOp& op : draft.ops) {
    if (!HasIndex(op.data)) continue;
    auto [it, added] = done.try_emplace(op.data.index, op.data.index);
    if (added) {
      bool affected = false;
      for (ExprId leaf : context.Leaves(op.data.index)) affected = affected || replacement.contains(leaf);
      if (affected) {
        ExprId result = Substitute(context.pool(), op.data.index, [&](ExprId leaf) {
          auto found = replacement.find(leaf);
          return found == replacement.end() ? leaf : found->second;
        });
        done[op.data.index] = result;
      }
    }
    op.data.index = done[op.data.index];
  }
}

}  // namespace kiln
