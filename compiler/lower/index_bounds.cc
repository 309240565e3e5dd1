#include "compiler/lower/index_bounds.h"

#include "compiler/graph/expr_leaves.h"

namespace kiln {

std::optional<IndexBounds> BoundsOf(ExprPool& exprs, ExprId index) {
  IndexBounds bounds{index, index};
  for (ExprId leaf : LeavesOf(exprs, index)) {
    std::optional<ExprId> extent = exprs.Extent(leaf);
    if (!extent) continue;  // a symbol
    for (ExprId* end : {&bounds.least, &bounds.most}) {
      std::optional<AffineForm> affine = AsAffine(exprs, *end, leaf);
      if (!affine) return std::nullopt;
      ExprRange slope = exprs.Range(affine->coefficient);
      if (slope.min < 0 && slope.max > 0) return std::nullopt;
      bool last = (end == &bounds.most) == (slope.min >= 0);  // where the variable is at its end
      *end = affine->rest;
      if (last) *end = exprs.Add(*end, exprs.Mul(affine->coefficient, exprs.Sub(*extent, exprs.Const(1))));
    }
  }
  return bounds;
}

std::optional<ExprId> IsInBounds(ExprPool& exprs, ExprId index, ExprId size) {
  std::optional<IndexBounds> bounds = BoundsOf(exprs, index);
  if (!bounds) return std::nullopt;
  ExprId inside = exprs.And(exprs.Le(exprs.Const(0), bounds->least), exprs.Lt(bounds->most, size));
  for (ExprId leaf : LeavesOf(exprs, index)) {
    if (std::optional<ExprId> extent = exprs.Extent(leaf)) {
      inside = exprs.Or(inside, exprs.Le(*extent, exprs.Const(0)));
    }
  }
  return inside;
}

}  // namespace kiln
