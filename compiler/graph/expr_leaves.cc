#include "compiler/graph/expr_leaves.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "compiler/graph/expr_algebra.h"

namespace kiln {
namespace {

bool IsLeafOp(v1::ExprOp op) {
  return op == v1::EXPR_SYMBOL || op == v1::EXPR_VAR || op == v1::EXPR_INDIRECT;
}

}  // namespace

std::vector<ExprId> ReachableExprs(const ExprPool& pool, ExprId id, bool extents) {
  std::vector<ExprId> found, stack = {id};
  absl::flat_hash_set<ExprId> seen = {id};
  auto visit = [&](ExprId next) {
    if (seen.insert(next).second) stack.push_back(next);
  };
  while (!stack.empty()) {
    ExprId at = stack.back();
    stack.pop_back();
    found.push_back(at);
    for (ExprId arg : pool.node(at).args) visit(arg);
    if (extents) {
      if (std::optional<ExprId> extent = pool.Extent(at)) visit(*extent);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

ExprId Substitute(ExprPool& pool, ExprId id, absl::FunctionRef<ExprId(ExprId leaf)> replace) {
  if (IsLeafOp(pool.node(id).op)) return replace(id);
  absl::flat_hash_map<ExprId, ExprId> done;
  for (ExprId at : ReachableExprs(pool, id, /*extents=*/false)) {
    ExprNode node = pool.node(at);
    ExprId result = at;
    if (IsLeafOp(node.op)) {
      result = replace(at);
    } else if (node.op != v1::EXPR_CONST) {
      bool changed = false;
      for (ExprId& arg : node.args) {
        ExprId next = done.at(arg);
        changed = changed || next != arg;
        arg = next;
      }
      if (changed) result = pool.Apply(node.op, node.args);
    }
    done[at] = result;
  }
  return done.at(id);
}

std::vector<ExprId> LeavesOf(const ExprPool& pool, ExprId id) {
  std::vector<ExprId> leaves, stack = {id};
  absl::flat_hash_set<ExprId> seen;
  while (!stack.empty()) {
    ExprId at = stack.back();
    stack.pop_back();
    if (!seen.insert(at).second) continue;
    if (IsLeafOp(pool.node(at).op)) leaves.push_back(at);
    const auto& args = pool.node(at).args;
    stack.insert(stack.end(), args.rbegin(), args.rend());
  }
  return leaves;
}

bool DependsOn(const ExprPool& pool, ExprId id, ExprId leaf) {
  if (id == leaf) return true;
  if (id < leaf || pool.node(id).args.empty()) return false;  // arguments are older than their users
  std::vector<ExprId> leaves = LeavesOf(pool, id);
  return std::find(leaves.begin(), leaves.end(), leaf) != leaves.end();
}

std::optional<AffineForm> AsAffine(ExprPool& pool, ExprId id, ExprId leaf) {
  if (!DependsOn(pool, id, leaf)) return AffineForm{kZeroExpr, id};
  if (id == leaf) return AffineForm{kUnitBase, kZeroExpr};
  absl::InlinedVector<ExprId, 8> coefficients, rest, terms = {id};
  if (pool.node(id).op == v1::EXPR_ADD) terms.assign(pool.node(id).args.begin(), pool.node(id).args.end());
  for (ExprId term : terms) {
    if (!DependsOn(pool, term, leaf)) {
      rest.push_back(term);
      continue;
    }
    absl::InlinedVector<ExprId, 4> factors = {term};
    if (pool.node(term).op == v1::EXPR_MUL)
      factors.assign(pool.node(term).args.begin(), pool.node(term).args.end());
    auto found = std::find(factors.begin(), factors.end(), leaf);
    if (found == factors.end()) return std::nullopt;
    factors.erase(found);
    for (ExprId factor : factors) {
      if (DependsOn(pool, factor, leaf)) return std::nullopt;
    }
    coefficients.push_back(pool.Product(factors));
  }
  return AffineForm{pool.Sum(coefficients), pool.Sum(rest)};
}

ExprId ImportExpr(ExprPool& pool, const ExprPool& from, ExprId id) {
  absl::flat_hash_map<ExprId, ExprId> done;
  for (ExprId at : ReachableExprs(from, id, /*extents=*/true)) {
    const ExprNode& node = from.node(at);
    ExprId result = kZeroExpr;
    switch (node.op) {
      case v1::EXPR_CONST: result = pool.Const(node.value); break;
      case v1::EXPR_SYMBOL: result = pool.Symbol(static_cast<uint32_t>(node.value), from.Range(at)); break;
      case v1::EXPR_VAR:
        result = pool.Var(static_cast<uint32_t>(node.value), done.at(*from.Extent(at)));
        break;
      case v1::EXPR_INDIRECT:
        result = pool.Indirect(static_cast<uint32_t>(node.value), done.at(*from.Extent(at)));
        break;
      default: {
        absl::InlinedVector<ExprId, 8> args;
        for (ExprId arg : node.args) args.push_back(done.at(arg));
        result = pool.Apply(node.op, args);
      }
    }
    done[at] = result;
  }
  return done.at(id);
}

}  // namespace kiln
