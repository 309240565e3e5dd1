#include "compiler/lower/index_reach.h"

#include "compiler/graph/expr_leaves.h"

namespace kiln {

std::optional<IndexReach> ReachOf(ExprPool& exprs, ExprId index) {
  IndexReach reach{index, index};
  for (ExprId leaf : LeavesOf(exprs, index)) {
    std::optional<ExprId> extent = exprs.Extent(leaf);
    if (!extent) continue;  // a symbol
    for (ExprId* end : {&reach.least, &reach.most}) {
      std::optional<AffineForm> affine = AsAffine(exprs, *end, leaf);
      if (!affine) return std::nullopt;
      ExprRange slope = exprs.Range(affine->coefficient);
      if (slope.min < 0 && slope.max > 0) return std::nullopt;
      bool last = (end == &reach.most) == (slope.min >= 0);  // where the variable is at its end
      *end = affine->rest;
      if (last) *end = exprs.Add(*end, exprs.Mul(affine->coefficient, exprs.Sub(*extent, exprs.Const(1))));
    }
  }
  return reach;
}

std::optional<ExprId> StaysInside(ExprPool& exprs, ExprId index, ExprId size) {
  std::optional<IndexReach> reach = ReachOf(exprs, index);
  if (!reach) return std::nullopt;
  ExprId inside = exprs.And(exprs.Le(exprs.Const(0), reach->least), exprs.Lt(reach->most, size));
  for (ExprId leaf : LeavesOf(exprs, index)) {
    if (std::optional<ExprId> extent = exprs.Extent(leaf)) {
      inside = exprs.Or(inside, exprs.Le(*extent, exprs.Const(0)));
    }
  }
  return inside;
}

}  // namespace kiln
