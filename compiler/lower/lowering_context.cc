#include "compiler/lower/lowering_context.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compiler/lower/index_reach.h"
#include "compiler/lower/live_ops.h"
#include "compiler/lower/strides.h"
#include "compiler/support/status_macros.h"

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

LoweringContext::LoweringContext(const Graph& graph, const ValueFacts& facts, const LowerOptions& options)
    : graph_(graph), facts_(facts), options_(options) {
  out_.exprs = graph.exprs;
  out_.symbols = graph.symbols;
  out_.inputs = graph.inputs;
  out_.given = graph.guards;
  one_ = Const(1);
  values_.resize(graph.values.size());
  own_memory_.resize(graph.values.size(), false);
}

void LoweringContext::Fail(const absl::Status& status) {
  if (status_.ok() && !status.ok()) status_ = status;
}

// ---- values

const TensorType& LoweringContext::ResultType(const GraphNode& node, size_t result) {
  static const TensorType* none = new TensorType;
  if (result >= node.results.size()) {
    Invalid(absl::StrCat("result ", result, " is missing"));
    return *none;
  }
  return graph_.type(node.results[result]);
}

void LoweringContext::SetResult(const GraphNode& node, LoweredTensor tensor, size_t result) {
  if (result >= node.results.size()) return;
  const TensorType& type = graph_.type(node.results[result]);
  if (type.dtype == v1::DTYPE_UNSPECIFIED) return;
  if (tensor.rank() != type.rank() || tensor.dtype != type.dtype) {
    Invalid(absl::StrCat("the result is declared ", DTypeName(type.dtype), " of rank ", type.rank(),
                         " but is ", DTypeName(tensor.dtype), " of rank ", tensor.rank()));
    return;
  }
  values_[node.results[result]] = std::move(tensor);
}

void LoweringContext::CheckSize(ExprId have, ExprId want) {
  const auto a = exprs().AsConst(have), b = exprs().AsConst(want);
  if (a.has_value() && b.has_value() && *a != *b) {
    Invalid(absl::StrCat("a size of ", *a, " where ", *b, " is declared"));
  } else if (!exprs().ProvablyEqual(have, want) && !Require(exprs().Eq(have, want))) {
    Invalid(absl::StrCat("a size of ", exprs().ToString(have), " where ", exprs().ToString(want),
                         " is declared"));
  }
}

void LoweringContext::CheckSizes(const std::vector<ExprId>& have, const std::vector<ExprId>& want) {
  if (have.size() != want.size()) return Invalid("the result's rank does not fit");
  for (size_t dim = 0; dim < have.size(); ++dim) CheckSize(have[dim], want[dim]);
}

// ---- building

ExprId LoweringContext::CanonicalVar(size_t dim, ExprId extent) {
  auto [it, fresh] = canonical_vars_.try_emplace(std::make_pair(dim, extent), 0);
  if (fresh) it->second = NewVar(extent).leaf;
  return it->second;
}

LoopVar LoweringContext::NewVar(ExprId extent) {
  LoopVar var;
  var.var = next_var_++;
  var.extent = extent;
  var.leaf = exprs().Var(var.var, extent);
  return var;
}

LoweringContext::Domain LoweringContext::NewDomain(const std::vector<ExprId>& sizes) {
  Domain domain;
  for (ExprId size : sizes) {
    if (IsOne(size)) {
      domain.index.push_back(Const(0));
      continue;
    }
    domain.loops.push_back(NewVar(size));
    domain.index.push_back(domain.loops.back().leaf);
  }
  return domain;
}

// Divisions of sizes alone cost nothing. Without recursion: a caller's expression may be deep.
bool LoweringContext::HasDivision(ExprId root) {
  std::vector<ExprId> pending = {root};
  while (!pending.empty()) {
    const ExprId expr = pending.back();
    const ExprNode& node = exprs().node(expr);
    if (has_division_.contains(expr)) {
      pending.pop_back();
      continue;
    }
    if (node.op == v1::EXPR_FLOORDIV || node.op == v1::EXPR_MOD || node.op == v1::EXPR_CEILDIV) {
      bool varies = false;
      for (ExprId leaf : exprs().Leaves(expr)) varies = varies || exprs().node(leaf).op != v1::EXPR_SYMBOL;
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

LoweredTensor LoweringContext::FinishVirtual(const TensorType& type, LoopRecorder& ops, LoopOpId result,
                                             std::vector<ExprId> vars) {
  Fail(ops.status());
  ops.AddOrigin(node_index_);
  auto body = std::make_shared<VirtualBody>();
  LiveOps live = KeepLiveOps(exprs(), ops.body(), {result});
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

LoweredTensor LoweringContext::Pointwise(const TensorType& type, PointFn fn) {
  std::vector<ExprId> vars(type.rank(), 0), index(type.rank(), Const(0));
  for (size_t dim = 0; dim < type.rank(); ++dim) {
    if (IsOne(type.sizes[dim])) continue;
    vars[dim] = index[dim] = CanonicalVar(dim, type.sizes[dim]);
  }
  LoopRecorder ops(exprs());
  LoopOpId result = fn(ops, index);
  // Where the value is defined, not where it is used: it has the same bits in memory, in a kernel that has it
  // at hand, and where the backward computes it again.
  if (ops.status().ok()) {
    result = ops.Cast(result, ComputeType(type.dtype));
    if (options_.round_values) result = ops.RoundTo(result, type.dtype);
  }
  return FinishVirtual(type, ops, result, std::move(vars));
}

void LoweringContext::CheckIndex(LoopRecorder& ops, Index index, const std::vector<ExprId>& sizes) {
  if (ops.masked_out()) return;
  for (size_t dim = 0; dim < index.size() && dim < sizes.size(); ++dim) {
    const auto extent = exprs().Extent(index[dim]);
    if (extent == sizes[dim]) continue;
    // An operator opens a mask to keep the indices that it compares inside.
    if (ops.MaskNames(index[dim])) continue;
    const auto loop = extent.has_value() ? exprs().AsConst(*extent) : std::nullopt;
    const auto size = exprs().AsConst(sizes[dim]);
    if (loop.has_value() && size.has_value()) {
      if (*loop > *size) ops.Fail(absl::StrCat("a dimension of size ", *size, " is read as one of ", *loop));
      continue;
    }
    const auto inside = StaysInside(exprs(), index[dim], sizes[dim]);
    if (inside.has_value() && !Require(*inside)) {
      ops.Fail(absl::StrCat("index ", exprs().ToString(index[dim]), " of a dimension of size ",
                            exprs().ToString(sizes[dim])));
    }
  }
}

LoopOpId LoweringContext::Load(LoopRecorder& ops, const LoweredTensor& tensor, Index index) {
  if (tensor.dtype == v1::DTYPE_UNSPECIFIED) return ops.Fail("an undefined tensor is used");
  if (index.size() != tensor.rank()) {
    ops.Fail(absl::StrCat("a tensor of rank ", tensor.rank(), " is used as one of rank ", index.size()));
    return ops.Constant(0, tensor.dtype);
  }
  CheckIndex(ops, index, tensor.sizes);
  if (tensor.is_strided()) {
    const BufferView& view = *tensor.view;
    const v1::DType stored = out_.buffers[view.buffer].dtype;
    if (stored == view.dtype) return ops.Load(view.buffer, stored, FlatIndex(exprs(), view, index));
    return ops.Bitcast(ops.Load(view.buffer, stored, FlatIndex(exprs(), view, index)), view.dtype);
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

LoopOpId LoweringContext::LoadBroadcast(LoopRecorder& ops, const LoweredTensor& tensor, Index index,
                                        const std::vector<ExprId>& sizes) {
  return Load(ops, tensor, BroadcastIndex(ops, tensor.sizes, index, sizes));
}

}  // namespace kiln
