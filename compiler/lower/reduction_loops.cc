#include "compiler/lower/reduction_loops.h"

#include <algorithm>
#include <cmath>

#include "compiler/graph/dtype_range.h"
#include "compiler/graph/expr_proofs.h"
#include "compiler/ir/reduce_kinds.h"
#include "compiler/lower/strides.h"
#include "compiler/support/divisor.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

struct Split {
  size_t dim = 0;    // of inner_sizes; the dimensions before it become outer ones
  ExprId chunk = 0;  // elements of `dim` in a chunk
  ExprId chunks = 0;
};

// Chunks of one length, at most `most`, so that threads get equal shares and hardly an element lies past the
// end. A known size is cut without a rest where a few more chunks than are needed, at most twice as many, do
// that.
void CutEvenly(ExprPool& exprs, ExprId size, int64_t most, Split* split) {
  split->chunks = exprs.Max(exprs.CeilDiv(size, exprs.Const(most)), exprs.Const(1));
  split->chunk = exprs.CeilDiv(size, split->chunks);
  const auto known = exprs.AsConst(size);
  if (!known || *known < 1) return;
  const int64_t chunk = DivisorUpTo(*known, most);
  const int64_t least = (*known - 1) / most + 1;
  if (*known / chunk - least > least) return;
  split->chunk = exprs.Const(chunk);
  split->chunks = exprs.Const(*known / chunk);
}

bool PlanSplit(ExprPool& exprs, const TensorType& type, const Reduction& reduction, Split* split) {
  constexpr int64_t kChunk = 8192;
  if (!reduction.may_split) return false;
  if (!cost::LeavesThreadsIdle(exprs.AsConst(exprs.Product(type.sizes)))) return false;
  if (!cost::PaysSplitSum(exprs.Range(exprs.Product(reduction.inner_sizes)).max)) return false;
  int64_t inner = 1;
  for (size_t dim = reduction.inner_sizes.size(); dim-- > 0;) {
    const auto size = exprs.AsConst(reduction.inner_sizes[dim]);
    if (size.has_value() && *size > 0 && *size <= kChunk / inner) {
      inner *= *size;
      continue;
    }
    split->dim = dim;
    CutEvenly(exprs, reduction.inner_sizes[dim], std::max<int64_t>(kChunk / inner, 1), split);
    return true;
  }
  return false;
}

LoopOpId Identity(LoopRecorder& ops, v1::ReduceKind kind, v1::DType dtype) {
  const bool real = IsFloat(dtype);
  switch (kind) {
    case v1::REDUCE_PROD: return ops.ConstantInt(1, dtype);
    case v1::REDUCE_ALL: return ops.True();
    case v1::REDUCE_MAX:
    case v1::REDUCE_MIN: {
      const bool max = kind == v1::REDUCE_MAX;
      if (real) return ops.Constant(max ? -HUGE_VAL : HUGE_VAL, dtype);
      const auto top = static_cast<int64_t>(IntegersEnd(dtype) - 1);
      const bool starts_at_zero = dtype == v1::BOOL || IsUnsignedInteger(dtype);
      return ops.ConstantInt(!max ? top : starts_at_zero ? 0 : -top - 1, dtype);
    }
    default: return ops.ConstantInt(0, dtype);
  }
}

LoweredTensor ReduceOnce(LoweringContext& context, const TensorType& type, const Reduction& reduction,
                         InnerFn value, ValueFn finish) {
  const std::vector<ExprId>& sizes = reduction.inner_sizes;
  if (std::count(sizes.begin(), sizes.end(), context.Const(1)) == sizes.size()) {
    const std::vector<ExprId> inner(sizes.size(), context.Const(0));
    return context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
      const LoopOpId element = ops.Cast(value(ops, index, inner), reduction.compute);
      return finish(ops, IsArgReduce(reduction.kind) ? ops.ConstantInt(0) : element);
    });
  }
  const BufferView view = context.out().Whole(
      context.out().AddBuffer(type.dtype, type.device, type.sizes, PreferredStrides(context.exprs(), type)));
  context.loops().EmitReduced(
      view, sizes,
      [&](LoopRecorder& ops, Index outer, Index inner) {
        const LoopOpId element = ops.Cast(value(ops, outer, inner), reduction.compute);
        return finish(ops, ops.Reduce(reduction.kind, element));
      },
      reduction.gemm);
  return WithView(type, view);
}

}  // namespace

LoweredTensor Reduce(LoweringContext& context, const TensorType& type, const Reduction& reduction,
                     InnerFn value, ValueFn finish) {
  ExprPool& exprs = context.exprs();
  Split split;
  if (!PlanSplit(exprs, type, reduction, &split)) return ReduceOnce(context, type, reduction, value, finish);

  // First pass: one partial result for each point of the leading inner dimensions and each chunk.
  const size_t rank = type.rank();
  const std::vector<ExprId>& inner_sizes = reduction.inner_sizes;
  const ExprId length = inner_sizes[split.dim], chunk = split.chunk;
  TensorType partial;
  partial.dtype = reduction.compute;
  partial.device = type.device;
  partial.sizes = type.sizes;
  partial.sizes.insert(partial.sizes.end(), inner_sizes.begin(), inner_sizes.begin() + split.dim);
  partial.sizes.push_back(split.chunks);
  partial.strides = ContiguousStrides(exprs, partial.sizes);
  Reduction first = reduction;
  first.inner_sizes.assign(inner_sizes.begin() + split.dim, inner_sizes.end());
  first.inner_sizes[0] = chunk;
  const bool ragged = !ProvablyDivides(exprs, chunk, length);
  LoweredTensor partials = ReduceOnce(
      context, partial, first,
      [&](LoopRecorder& ops, Index outer, Index inner) {
        std::vector<ExprId> index(outer.begin() + rank, outer.end() - 1);
        const ExprId position = exprs.Add(exprs.Mul(outer.back(), chunk), inner[0]);
        index.push_back(position);
        index.insert(index.end(), inner.begin() + 1, inner.end());
        if (!ragged) return ops.Cast(value(ops, outer.first(rank), index), reduction.compute);
        const LoopOpId mask = IndexLess(ops, position, length);
        ops.OpenMask(mask);
        const LoopOpId element = ops.Cast(value(ops, outer.first(rank), index), reduction.compute);
        ops.CloseMask();
        return ops.Where(mask, element, Identity(ops, reduction.kind, reduction.compute));
      },
      [](LoopRecorder&, LoopOpId reduced) { return reduced; });

  // Second pass over the partial results, in order.
  Reduction second = reduction;
  second.inner_sizes.assign(partial.sizes.begin() + rank, partial.sizes.end());
  return ReduceOnce(
      context, type, second,
      [&](LoopRecorder& ops, Index outer, Index inner) {
        std::vector<ExprId> index(outer.begin(), outer.end());
        index.insert(index.end(), inner.begin(), inner.end());
        return context.loops().Load(ops, partials, index);
      },
      finish);
}

}  // namespace kiln
