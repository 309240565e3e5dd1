#include "compiler/lower/slicing.h"

#include "compiler/graph/expr_proofs.h"

namespace kiln {

ExprId WrappedIndex(ExprPool& exprs, ExprId index, ExprId size) {
  const ExprRange range = exprs.Range(index);
  if (range.min >= 0) return index;
  if (range.max < 0) return exprs.Add(index, size);
  return exprs.Where(exprs.Lt(index, exprs.Const(0)), exprs.Add(index, size), index);
}

ExprId ClampedIndex(ExprPool& exprs, ExprId index, ExprId size) {
  ExprId wrapped = WrappedIndex(exprs, index, size);
  if (!ProvablyLessEqual(exprs, exprs.Const(0), wrapped)) wrapped = exprs.Max(wrapped, exprs.Const(0));
  return ProvablyLessEqual(exprs, wrapped, size) ? wrapped : exprs.Min(wrapped, size);
}

}  // namespace kiln
