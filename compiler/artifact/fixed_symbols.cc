#include "compiler/artifact/fixed_symbols.h"

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/graph/expr_leaves.h"

namespace kiln {
namespace {

// A symbol and what it equals.
struct Fact {
  ExprId symbol = 0;
  ExprId value = 0;
};

std::optional<Fact> FactOf(ExprPool& pool, ExprId guard) {
  const ExprNode node = pool.node(guard);
  if (node.op != v1::EXPR_EQ || node.args.size() != 2) return std::nullopt;
  ExprId difference = pool.Sub(node.args[0], node.args[1]);
  std::vector<ExprId> leaves = LeavesOf(pool, difference);
  for (auto leaf = leaves.rbegin(); leaf != leaves.rend(); ++leaf) {
    auto affine = AsAffine(pool, difference, *leaf);
    if (!affine) continue;
    std::optional<int64_t> factor = pool.AsConst(affine->coefficient);
    if (!factor || *factor == 0 || pool.node(*leaf).op != v1::EXPR_SYMBOL) continue;
    if (std::optional<int64_t> rest = pool.AsConst(affine->rest)) {
      if (*rest % *factor == 0) return Fact{*leaf, pool.Const(-(*rest / *factor))};
    } else if (*factor == 1 || *factor == -1) {
      ExprId other = *factor == 1 ? pool.Neg(affine->rest) : affine->rest;
      if (pool.node(other).op == v1::EXPR_SYMBOL) return Fact{*leaf, other};
    }
  }
  return std::nullopt;
}

class Rewriter {
 public:
  Rewriter(ExprPool& pool, Fact fact) : pool_(pool), fact_(fact) {}

  void Rewrite(ExprId& id) {
    auto [it, added] = done_.try_emplace(id, id);
    if (added) {
      ExprId result =
          Substitute(pool_, id, [&](ExprId leaf) { return leaf == fact_.symbol ? fact_.value : leaf; });
      done_[id] = result;
      id = result;
    } else {
      id = it->second;
    }
  }
  void Rewrite(std::vector<ExprId>& ids) {
    for (ExprId& id : ids) Rewrite(id);
  }

 private:
  ExprPool& pool_;
  Fact fact_;
  absl::flat_hash_map<ExprId, ExprId> done_;
};

void Apply(Graph& graph, Fact fact) {
  Rewriter rewriter(graph.exprs, fact);
  for (TensorType& type : graph.values) {
    rewriter.Rewrite(type.sizes);
    rewriter.Rewrite(type.strides);
    rewriter.Rewrite(type.offset);
  }
  for (GraphNode& node : graph.nodes) {
    for (auto& [name, argument] : node.args) {
      if (auto* integer = std::get_if<IntArg>(&argument)) rewriter.Rewrite(integer->value);
      if (auto* list = std::get_if<IntListArg>(&argument)) rewriter.Rewrite(list->values);
    }
  }
  for (GraphOutput& output : graph.outputs) {
    if (output.sym_int) rewriter.Rewrite(*output.sym_int);
    if (output.offset) rewriter.Rewrite(*output.offset);
  }
}

}  // namespace

int SubstituteFixedSymbols(Graph& graph) {
  int replaced = 0;
  std::vector<ExprId> guards = graph.guards;
  for (size_t i = 0; i < guards.size(); ++i) {
    std::optional<Fact> fact = FactOf(graph.exprs, guards[i]);
    if (!fact) continue;
    Apply(graph, *fact);
    Rewriter rewriter(graph.exprs, *fact);
    for (size_t j = i + 1; j < guards.size(); ++j) rewriter.Rewrite(guards[j]);
    ++replaced;
  }
  return replaced;
}

}  // namespace kiln
