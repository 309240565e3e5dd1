#include "compiler/schedule/loop_context.h"

#include <algorithm>

#include "compiler/graph/expr_eval.h"
#include "compiler/graph/expr_leaves.h"
#include "compiler/graph/expr_proofs.h"
#include "compiler/target/device.h"

namespace kiln {
namespace {

constexpr int64_t kEstimateMax = int64_t{1} << 50;

}  // namespace

LoopContext::LoopContext(LoopGraph& graph, const Machine& machine) : graph_(graph), machine_(machine) {
  for (const LoopGraphNode& node : graph.nodes) {
    if (node.kind != LoopGraphNode::Kind::kLoops) continue;
    for (const LoopVar& var : node.loops.outer) next_var_ = std::max(next_var_, var.var + 1);
    for (const LoopVar& var : node.loops.inner) next_var_ = std::max(next_var_, var.var + 1);
  }
  memory_.resize(graph.buffers.size());
  for (uint32_t b = 0; b < graph.buffers.size(); ++b) {
    memory_[b] = b;
    const LoopBuffer& buffer = graph.buffers[b];
    if (buffer.shares >= 0) memory_[b] = memory_[buffer.shares];  // made before it
  }
}

LoopVar LoopContext::NewVar(ExprId extent) {
  LoopVar var;
  var.var = next_var_++;
  var.extent = extent;
  var.leaf = pool().Var(var.var, extent);
  return var;
}

std::optional<ExprId> LoopContext::Coefficient(ExprId index, ExprId leaf) {
  auto [it, added] = coefficients_.try_emplace({index, leaf}, std::nullopt);
  if (!added) return it->second;
  const std::vector<ExprId>& leaves = Leaves(index);
  std::optional<ExprId> result;
  if (std::find(leaves.begin(), leaves.end(), leaf) == leaves.end()) {
    result = pool().Const(0);
  } else if (auto affine = AsAffine(pool(), index, leaf); affine && !HasLoopLeaf(affine->coefficient)) {
    result = affine->coefficient;
  }
  coefficients_[{index, leaf}] = result;
  return result;
}

bool LoopContext::Equal(ExprId a, ExprId b) {
  if (a == b) return true;
  if (a > b) std::swap(a, b);
  auto it = equal_.find({a, b});
  if (it != equal_.end()) return it->second;
  bool equal = ProvablyEqual(pool(), a, b);
  equal_[{a, b}] = equal;
  return equal;
}

bool LoopContext::IsOne(ExprId id) {
  ExprRange range = pool().Range(id);
  return range.min == 1 && range.max == 1;
}

const std::vector<ExprId>& LoopContext::Leaves(ExprId id) {
  auto it = leaves_.find(id);
  if (it != leaves_.end()) return it->second;
  std::vector<ExprId> leaves = LeavesOf(pool(), id);
  return leaves_.emplace(id, std::move(leaves)).first->second;
}

bool LoopContext::HasLoopLeaf(ExprId id) {
  for (ExprId leaf : Leaves(id)) {
    if (pool().node(leaf).op != v1::EXPR_SYMBOL) return true;
  }
  return false;
}

bool LoopContext::HasIndirect(ExprId id) {
  for (ExprId leaf : Leaves(id)) {
    if (pool().node(leaf).op == v1::EXPR_INDIRECT) return true;
  }
  return false;
}

int64_t LoopContext::Estimate(ExprId id) {
  auto it = estimates_.find(id);
  if (it != estimates_.end()) return it->second;
  auto value = pool().Evaluate(id, [&](const ExprNode& leaf) -> int64_t {
    return leaf.op == v1::EXPR_SYMBOL ? EstimateOfSymbol(graph_.symbols, leaf.value) : 0;
  });
  int64_t result = value.ok() ? std::clamp<int64_t>(*value, -kEstimateMax, kEstimateMax) : 0;
  estimates_[id] = result;
  return result;
}

int64_t LoopContext::EstimateProduct(const std::vector<LoopVar>& vars) {
  int64_t product = 1;
  for (const LoopVar& var : vars) {
    int64_t extent = std::max<int64_t>(Estimate(var.extent), 0);
    product = extent != 0 && product > kEstimateMax / extent ? kEstimateMax : product * extent;
  }
  return product;
}

bool LoopContext::HasThreads(BufferId buffer) const { return IsGpu(graph_.buffers[buffer].device); }

int64_t LoopContext::EstimateBytes(BufferId buffer) {
  const LoopBuffer& data = graph_.buffers[buffer];
  return Estimate(data.span) * ByteSize(data.dtype);
}

}  // namespace kiln
