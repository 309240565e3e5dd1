#include "compiler/lower/loop_writer.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "compiler/graph/expr_leaves.h"
#include "compiler/lower/live_ops.h"
#include "compiler/lower/strides.h"

namespace kiln {
namespace {

bool IsHeavy(LoopOpcode op) {
  const uint32_t number = static_cast<uint32_t>(op);
  const bool transcendental =
      number >= static_cast<uint32_t>(LoopOpcode::kExp) && number <= static_cast<uint32_t>(LoopOpcode::kPow);
  const bool longer = number >= static_cast<uint32_t>(LoopOpcode::kLgamma) &&
                      number <= static_cast<uint32_t>(LoopOpcode::kSoftmaxExp);
  return transcendental || longer || op == LoopOpcode::kRandBits;
}

}  // namespace

LoopWriter::LoopWriter(const Graph& graph, LoopGraph& out, LoweringChecks& checks, bool round_values)
    : graph_(graph), out_(out), checks_(checks), round_values_(round_values), one_(out.exprs.Const(1)) {}

ExprId LoopWriter::CanonicalVar(size_t dim, ExprId extent) {
  auto [it, fresh] = canonical_vars_.try_emplace(std::make_pair(dim, extent), 0);
  if (fresh) it->second = NewVar(extent).leaf;
  return it->second;
}

LoopVar LoopWriter::NewVar(ExprId extent) {
  LoopVar var;
  var.var = next_var_++;
  var.extent = extent;
  var.leaf = out_.exprs.Var(var.var, extent);
  return var;
}

LoopWriter::Domain LoopWriter::NewDomain(const std::vector<ExprId>& sizes) {
  Domain domain;
  for (ExprId size : sizes) {
    if (size == one_) {
      domain.index.push_back(out_.exprs.Const(0));
      continue;
    }
    domain.loops.push_back(NewVar(size));
    domain.index.push_back(domain.loops.back().leaf);
  }
  return domain;
}

// Divisions of sizes alone cost nothing. Without recursion: a caller's expression may be deep.
bool LoopWriter::HasDivision(ExprId root) {
  std::vector<ExprId> pending = {root};
  while (!pending.empty()) {
    const ExprId expr = pending.back();
    const ExprNode& node = out_.exprs.node(expr);
    if (has_division_.contains(expr)) {
      pending.pop_back();
      continue;
    }
    if (node.op == v1::EXPR_FLOORDIV || node.op == v1::EXPR_MOD || node.op == v1::EXPR_CEILDIV) {
      bool varies = false;
      for (ExprId leaf : LeavesOf(out_.exprs, expr))
        varies = varies || out_.exprs.node(leaf).op != v1::EXPR_SYMBOL;
      has_division_[expr] = varies;
      continue;
    }
    bool known = true, divides = false;
    for (ExprId arg : node.args) {
      auto found = has_division_.find(arg);
      if (found == has_division_.end()) {
        pending.push_back(arg);
        known = false;
      } else {
        divides = divides || found->second;
      }
    }
    if (known) has_division_[expr] = divides;
  }
  return has_division_[root];
}

LoweredTensor LoopWriter::FinishVirtual(const TensorType& type, LoopRecorder& ops, LoopOpId result,
                                        std::vector<ExprId> vars) {
  checks_.Fail(ops.status());
  ops.AddOrigin(node_);
  auto body = std::make_shared<VirtualBody>();
  LiveOps live = KeepLiveOps(out_.exprs, ops.body(), {result});
  body->ops = std::move(live.ops);
  body->result = live.new_ids[result];
  body->vars = std::move(vars);
  body->origins = ops.TakeOrigins();
  for (const LoopOpData& op : body->ops) {
    if (op.op == LoopOpcode::kLoad) ++body->loads;
    body->heavy = body->heavy || IsHeavy(op.op);
    if (op.op == LoopOpcode::kLoad || op.op == LoopOpcode::kIndexExpr) {
      body->divides = body->divides || HasDivision(op.index);
    }
  }
  LoweredTensor tensor;
  tensor.dtype = type.dtype;
  tensor.device = type.device;
  tensor.sizes = type.sizes;
  tensor.strides = type.strides;
  tensor.body = std::move(body);
  return tensor;
}

LoweredTensor LoopWriter::Pointwise(const TensorType& type, PointFn fn) {
  std::vector<ExprId> vars(type.rank(), 0), index(type.rank(), out_.exprs.Const(0));
  for (size_t dim = 0; dim < type.rank(); ++dim) {
    if (type.sizes[dim] == one_) continue;
    vars[dim] = index[dim] = CanonicalVar(dim, type.sizes[dim]);
  }
  LoopRecorder ops(out_.exprs);
  LoopOpId result = fn(ops, index);
  // Where the value is defined, not where it is used: it has the same bits in memory, in a kernel that has it
  // at hand, and where the backward computes it again.
  if (ops.status().ok()) {
    result = ops.Cast(result, ComputeType(type.dtype));
    if (round_values_) result = ops.RoundTo(result, type.dtype);
  }
  return FinishVirtual(type, ops, result, std::move(vars));
}

LoopOpId LoopWriter::Load(LoopRecorder& ops, const LoweredTensor& tensor, Index index) {
  if (tensor.dtype == v1::DTYPE_UNSPECIFIED) return ops.Fail("an undefined tensor is used");
  if (index.size() != tensor.rank()) {
    ops.Fail(absl::StrCat("a tensor of rank ", tensor.rank(), " is used as one of rank ", index.size()));
    return ops.Constant(0, tensor.dtype);
  }
  checks_.CheckIndex(ops, index, tensor.sizes);
  if (tensor.is_strided()) {
    const BufferView& view = *tensor.view;
    const v1::DType stored = out_.buffers[view.buffer].dtype;
    if (stored == view.dtype) return ops.Load(view.buffer, stored, FlatIndex(out_.exprs, view, index));
    return ops.Bitcast(ops.Load(view.buffer, stored, FlatIndex(out_.exprs, view, index)), view.dtype);
  }
  const VirtualBody& body = *tensor.body;
  // Dimensions of size 1 have no variable; their index is 0.
  std::vector<ExprId> vars, values;
  for (size_t dim = 0; dim < index.size(); ++dim) {
    if (body.vars[dim] == 0) continue;
    vars.push_back(body.vars[dim]);
    values.push_back(index[dim]);
  }
  ops.AddOrigins(body.origins);
  return ops.Inline(body.ops, body.result, vars, values);
}

LoopOpId LoopWriter::LoadBroadcast(LoopRecorder& ops, const LoweredTensor& tensor, Index index,
                                   const std::vector<ExprId>& sizes) {
  return Load(ops, tensor, BroadcastIndex(ops, tensor.sizes, index, sizes));
}

void LoopWriter::SortByStride(const std::vector<ExprId>& strides, const std::vector<ExprId>& index,
                              std::vector<LoopVar>& loops) {
  std::vector<ExprId> sizes;
  for (size_t dim = 0; dim < index.size(); ++dim) {
    auto loop =
        std::find_if(loops.begin(), loops.end(), [&](const LoopVar& var) { return var.leaf == index[dim]; });
    sizes.push_back(loop == loops.end() ? one_ : loop->extent);
  }
  const auto order = DenseOrder(out_.exprs, sizes, strides);
  if (!order) return;
  std::vector<LoopVar> sorted;
  for (auto dim = order->rbegin(); dim != order->rend(); ++dim) {
    for (const LoopVar& var : loops) {
      if (var.leaf == index[*dim]) sorted.push_back(var);
    }
  }
  if (sorted.size() == loops.size()) loops = std::move(sorted);
}

void LoopWriter::EmitLoops(LoopRecorder& ops, std::vector<LoopVar> outer, std::vector<LoopVar> inner,
                           Inner kind) {
  checks_.Fail(ops.status());
  if (!checks_.status().ok()) return;
  LoopGraphNode node;
  node.kind = LoopGraphNode::Kind::kLoops;
  node.loops.outer = std::move(outer);
  node.loops.inner = std::move(inner);
  node.loops.ordered = kind.ordered;
  node.loops.gemm = kind.gemm;
  for (LoopOpData& op : KeepLiveOps(out_.exprs, ops.body(), {}).ops) node.loops.body.Add(std::move(op));
  for (uint32_t origin : ops.TakeOrigins()) {
    if (origin >= graph_.nodes.size()) continue;
    node.loops.origins.push_back(graph_.nodes[origin].origin);
    node.loops.operators.emplace_back(graph_.nodes[origin].target.text());
  }
  out_.nodes.push_back(std::move(node));
}

void LoopWriter::EmitStores(const BufferView& target, PointFn fn) {
  EmitReduced(target, {}, [&](LoopRecorder& ops, Index index, Index) { return fn(ops, index); });
}

void LoopWriter::EmitReduced(const BufferView& target, const std::vector<ExprId>& inner_sizes, InnerFn value,
                             bool gemm) {
  Domain inner = NewDomain(inner_sizes);
  Domain outer = NewDomain(target.sizes);
  SortByStride(target.strides, outer.index, outer.loops);
  LoopRecorder ops(out_.exprs);
  ops.AddOrigin(node_);
  const LoopOpId result = value(ops, outer.index, inner.index);
  ops.Store(target.buffer, target.dtype, FlatIndex(out_.exprs, target, outer.index), result);
  EmitLoops(ops, std::move(outer.loops), std::move(inner.loops), {.gemm = gemm});
}

void LoopWriter::EmitOrdered(const std::vector<ExprId>& outer_sizes, const std::vector<ExprId>& inner_sizes,
                             absl::FunctionRef<void(LoopRecorder&, Index, Index)> body) {
  Domain outer = NewDomain(outer_sizes);
  Domain inner = NewDomain(inner_sizes);
  LoopRecorder ops(out_.exprs);
  ops.AddOrigin(node_);
  body(ops, outer.index, inner.index);
  const bool ordered = !inner.loops.empty();
  EmitLoops(ops, std::move(outer.loops), std::move(inner.loops), {.ordered = ordered});
}

std::vector<ExprId> BroadcastIndex(LoopRecorder& ops, const std::vector<ExprId>& operand_sizes, Index index,
                                   const std::vector<ExprId>& sizes) {
  ExprPool& exprs = ops.exprs();
  std::vector<ExprId> mapped(operand_sizes.size(), exprs.Const(0));
  if (operand_sizes.size() > index.size() || index.size() != sizes.size()) {
    ops.Fail("operands cannot be broadcast to the result");
    return mapped;
  }
  const size_t skip = index.size() - operand_sizes.size();
  for (size_t dim = 0; dim < operand_sizes.size(); ++dim) {
    const ExprId have = operand_sizes[dim], want = sizes[skip + dim];
    if (have == want) {
      mapped[dim] = index[skip + dim];
      continue;
    }
    const auto known = exprs.AsConst(have);
    if (known == 1) continue;
    if (known.has_value() && exprs.AsConst(want).has_value()) {
      ops.Fail(absl::StrCat("size ", *known, " cannot be broadcast to ", *exprs.AsConst(want)));
    }
    mapped[dim] = index[skip + dim];
  }
  return mapped;
}

}  // namespace kiln
