#include "compiler/lower/gemm_loops.h"

#include <algorithm>

#include "compiler/graph/dtype_range.h"
#include "compiler/graph/expr_leaves.h"
#include "compiler/lower/reduction_loops.h"
#include "compiler/lower/strides.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

LoopOpId Scaled(LoopRecorder& ops, LoopOpId value, double factor, v1::DType compute) {
  return factor == 1 ? value : ops.Mul(value, ops.Constant(factor, compute));
}

// A kernel's tensor cores take 16 bits: F16 and BF16 values that are known to have no more, as
// schedule/gemm_threads.h reads them off.
bool HasDigitsOf(v1::DType dtype, const VirtualBody& body) {
  if (dtype == v1::F32) return true;
  const LoopOpData& value = body.ops[body.result];
  if (value.op != LoopOpcode::kCast) return false;
  const v1::DType from = body.ops[value.args[0]].dtype;
  return from == dtype || HoldsIntegersOf(dtype, from);
}

bool IsPure(const ExprPool& exprs, const VirtualBody& body) {
  return std::none_of(body.ops.begin(), body.ops.end(), [&](const LoopOpData& op) {
    if (op.op == LoopOpcode::kCheckIndex) return true;
    if (op.op != LoopOpcode::kLoad && op.op != LoopOpcode::kIndexExpr) return false;
    const auto leaves = LeavesOf(exprs, op.index);
    return std::any_of(leaves.begin(), leaves.end(),
                       [&](ExprId leaf) { return exprs.node(leaf).op == v1::EXPR_INDIRECT; });
  });
}

// The weights' terms have to lie beside each other; each is read once, the rows' for all columns.
bool IsMadeWhereRead(LoweringContext& context, const Gemm& gemm, ValueId factor) {
  const LoweredTensor& tensor = context.value(factor);
  if (tensor.body == nullptr || !HasDigitsOf(tensor.dtype, *tensor.body)) return false;
  const VirtualBody& body = *tensor.body;
  const bool weights = factor == gemm.b;
  if (weights && context.exprs().AsConst(tensor.strides[0]) != 1) return false;
  return IsPure(context.exprs(), body) &&
         cost::PaysMakingFactor({body.ops.size(), body.loads, body.heavy}, weights);
}

// In the compute type of the result.
LoweredTensor Product(LoweringContext& context, const Gemm& gemm, const TensorType& type) {
  const LoweredTensor a = context.value(gemm.a), b = context.value(gemm.b);
  context.checks().CheckSizes({a.sizes[0], b.sizes[1], b.sizes[0]},
                              {type.sizes[0], type.sizes[1], a.sizes[1]});
  const v1::DType compute = ComputeType(type.dtype);
  return Reduce(
      context, type, {.compute = compute, .inner_sizes = {a.sizes[1]}, .may_split = false, .gemm = true},
      [&](LoopRecorder& ops, Index outer, Index inner) {
        const LoopOpId left = context.loops().Load(ops, a, {outer[0], inner[0]});
        return ops.Mul(left, context.loops().Load(ops, b, {inner[0], outer[1]}));
      },
      [&](LoopRecorder& ops, LoopOpId sum) { return Scaled(ops, sum, *gemm.alpha, compute); });
}

}  // namespace

bool PlaceFactors(LoweringContext& context, const Gemm& gemm) {
  for (const ValueId factor : {gemm.a, gemm.b}) {
    if (!context.IsDefined(factor)) return false;
    if (IsMadeWhereRead(context, gemm, factor)) continue;
    const BufferView& view = context.memory().Materialize(context.MutableValue(factor));
    const TensorType& traced = context.graph().type(factor);
    if (context.out().Reinterprets(view) ||
        !SameLayout(context.exprs(), traced.sizes, view.strides, traced.strides))
      return false;
  }
  return true;
}

absl::Status LowerGemmByLoops(LoweringContext& context, const GraphNode& node, const Gemm& gemm) {
  const TensorType type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (gemm.c == kNoValue || *gemm.beta == 0) {
    context.SetResult(node, Product(context, gemm, type));
    return context.status();
  }
  if (!context.IsDefined(gemm.c)) return absl::InvalidArgumentError("a gemm with an undefined summand");
  const v1::DType compute = ComputeType(type.dtype);
  TensorType wide = type;
  wide.dtype = compute;
  const LoweredTensor sum = Product(context, gemm, wide), c = context.value(gemm.c);
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    const LoopOpId added = ops.Cast(context.loops().LoadBroadcast(ops, c, index, type.sizes), compute);
    return ops.Add(context.loops().Load(ops, sum, index), Scaled(ops, added, *gemm.beta, compute));
  }));
  return context.status();
}

}  // namespace kiln
