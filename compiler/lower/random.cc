// Random numbers: Philox by position, the same in every back-end. The graph draws one seed; each
// random operator has a number of its own, so forward recomputation and other operators never share bits.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "compiler/lower/lowering_context.h"

namespace kiln {
namespace {

// Draws 32 random bits for the element at `index`.
LoopOpId Bits(LoweringContext& context, LoopRecorder& ops, Index index, const TensorType& type,
              uint32_t number) {
  std::vector<ExprId> terms = {context.Const(0)};
  const std::vector<ExprId> strides = ContiguousStrides(context.exprs(), type.sizes);
  for (size_t dim = 0; dim < index.size(); ++dim)
    terms.push_back(context.exprs().Mul(index[dim], strides[dim]));
  const LoopOpId seed = ops.Load(context.SeedBuffer(), v1::I64, context.Const(0));
  return ops.RandBits(seed, ops.IndexExpr(context.exprs().Sum(terms)), ops.ConstantInt(number));
}

// [0, 1) with the 24 bits that an F32 holds.
LoopOpId Uniform(LoopRecorder& ops, LoopOpId bits, v1::DType dtype) {
  const v1::DType compute = ComputeType(dtype);
  const LoopOpId high = ops.Binary(LoopOpcode::kShiftRight, bits, ops.ConstantInt(8));
  return ops.Mul(ops.Cast(high, compute), ops.Constant(1.0 / (1 << 24), compute));
}

bool UseLibrary(LoweringContext& context, const GraphNode& node) {
  return context.options().fallback_random || context.Has(node, "generator");
}

absl::Status CallLibrary(LoweringContext& context, const GraphNode& node) {
  return context.Call(node, "random", false);
}

absl::Status LowerRand(LoweringContext& context, const GraphNode& node) {
  if (UseLibrary(context, node)) return CallLibrary(context, node);
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  const uint32_t number = context.NextRandomOp();
  context.SetResult(node, context.Pointwise(type, [&](LoopRecorder& ops, Index index) {
    return Uniform(ops, Bits(context, ops, index, type, number), type.dtype);
  }));
  return context.status();
}

// Box-Muller on two draws.
absl::Status LowerRandn(LoweringContext& context, const GraphNode& node) {
  if (UseLibrary(context, node)) return CallLibrary(context, node);
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  const uint32_t first = context.NextRandomOp(), second = context.NextRandomOp();
  context.SetResult(node, context.Pointwise(type, [&](LoopRecorder& ops, Index index) {
    const v1::DType compute = ComputeType(type.dtype);
    const LoopOpId u = Uniform(ops, Bits(context, ops, index, type, first), compute);
    const LoopOpId v = Uniform(ops, Bits(context, ops, index, type, second), compute);
    const LoopOpId positive = ops.Sub(ops.Constant(1, compute), u);  // (0, 1]
    const LoopOpId radius = ops.Unary(
        LoopOpcode::kSqrt, ops.Mul(ops.Constant(-2, compute), ops.Unary(LoopOpcode::kLog, positive)));
    const LoopOpId angle = ops.Mul(ops.Constant(2 * M_PI, compute), v);
    return ops.Mul(radius, ops.Unary(LoopOpcode::kCos, angle));
  }));
  return context.status();
}

absl::Status LowerRandint(LoweringContext& context, const GraphNode& node) {
  if (UseLibrary(context, node)) return CallLibrary(context, node);
  const TensorType& type = context.ResultType(node);
  const ExprId low = context.Expr(node, "low", context.Const(0));
  const ExprId range = context.exprs().Sub(context.Expr(node, "high", context.Const(0)), low);
  if (!context.status().ok()) return context.status();
  const uint32_t number = context.NextRandomOp();
  context.SetResult(node, context.Pointwise(type, [&](LoopRecorder& ops, Index index) {
    const LoopOpId bits = Bits(context, ops, index, type, number);
    const LoopOpId in_range = ops.Binary(LoopOpcode::kRemainder, bits, ops.IndexExpr(range));
    return ops.Cast(ops.Add(in_range, ops.IndexExpr(low)), ComputeType(type.dtype));
  }));
  return context.status();
}

// 1 with probability p: a number, or a tensor of the result's shape.
absl::Status LowerBernoulli(LoweringContext& context, const GraphNode& node) {
  if (UseLibrary(context, node)) return CallLibrary(context, node);
  const TensorType& type = context.ResultType(node);
  const Argument* chance = node.Find(node.target == "aten.bernoulli.default" ? "self" : "p");
  if (!context.status().ok()) return context.status();
  static const Argument* half = new Argument(FloatArg{0.5});
  if (chance == nullptr) chance = half;
  const uint32_t number = context.NextRandomOp();
  context.SetResult(node, context.Pointwise(type, [&](LoopRecorder& ops, Index index) {
    const LoopOpId u = Uniform(ops, Bits(context, ops, index, type, number), v1::F32);
    const LoopOpId p = context.Operand(ops, *chance, index, type.sizes, v1::F32);
    return ops.Cast(ops.Compare(LoopOpcode::kLt, u, p), ComputeType(type.dtype));
  }));
  return context.status();
}

absl::Status LowerDropout(LoweringContext& context, const GraphNode& node) {
  if (context.options().fallback_random) return CallLibrary(context, node);
  const LoweredTensor input = context.Tensor(node, "input");
  const double p = context.Float(node, "p", 0.5);
  const bool train = context.Bool(node, "train", true);
  const TensorType type = context.ResultType(node, 0), mask_type = context.ResultType(node, 1);
  if (!context.status().ok()) return context.status();
  const uint32_t number = context.NextRandomOp();
  TensorType kept_type = mask_type;
  if (kept_type.dtype == v1::DTYPE_UNSPECIFIED) kept_type = type;
  kept_type.dtype = v1::BOOL;
  LoweredTensor mask = context.Pointwise(kept_type, [&](LoopRecorder& ops, Index index) {
    if (!train || p == 0) return ops.True();
    const LoopOpId u = Uniform(ops, Bits(context, ops, index, kept_type, number), v1::F32);
    return ops.Not(ops.Compare(LoopOpcode::kLt, u, ops.Constant(p, v1::F32)));
  });
  // The mask is drawn once: what the backward pass reads is what the output was made with.
  if (mask_type.dtype != v1::DTYPE_UNSPECIFIED && context.Uses(node.results[1]) > 0) context.Realise(mask);
  context.SetResult(
      node,
      context.Pointwise(type,
                        [&](LoopRecorder& ops, Index index) {
                          const v1::DType compute = ComputeType(type.dtype);
                          const LoopOpId x = context.Load(ops, input, index);
                          if (!train) return x;
                          const LoopOpId kept = ops.Cast(context.Load(ops, mask, index), compute);
                          return ops.Mul(ops.Mul(x, kept), ops.Constant(p == 1 ? 0 : 1 / (1 - p), compute));
                        }),
      0);
  if (mask_type.dtype == v1::BOOL) context.SetResult(node, std::move(mask), 1);
  return context.status();
}

}  // namespace

void RegisterRandom(LoweringTable& table) {
  table["aten.rand.default"] = LowerRand;
  table["aten.rand_like.default"] = LowerRand;
  table["aten.randn.default"] = LowerRandn;
  table["aten.randn_like.default"] = LowerRandn;
  table["aten.randint.default"] = LowerRandint;
  table["aten.randint.low"] = LowerRandint;
  table["aten.randint_like.default"] = LowerRandint;
  table["aten.randint_like.low_dtype"] = LowerRandint;
  table["aten.bernoulli.default"] = LowerBernoulli;
  table["aten.bernoulli.p"] = LowerBernoulli;
  table["aten.native_dropout.default"] = LowerDropout;
}

}  // namespace kiln
