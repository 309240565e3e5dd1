#include "compiler/graph/expr_proofs.h"

#include "compiler/graph/expr_algebra.h"

namespace kiln {

bool ProvablyEqual(ExprPool& pool, ExprId a, ExprId b) {
  if (a == b) return true;
  if (pool.Range(a).max < pool.Range(b).min || pool.Range(b).max < pool.Range(a).min) return false;
  return pool.Sub(a, b) == kZeroExpr;
}

bool ProvablyLess(ExprPool& pool, ExprId a, ExprId b) {
  if (a == b) return false;
  if (pool.Range(a).max < pool.Range(b).min) return true;
  if (pool.Range(a).min >= pool.Range(b).max) return false;
  if (pool.AsConst(b) && !pool.Extent(a).has_value() && pool.node(a).op != v1::EXPR_ADD &&
      pool.node(a).op != v1::EXPR_MUL) {
    return false;
  }
  return ExprAlgebra(&pool).UpperBound(pool.Sub(a, b)) < 0;
}

bool ProvablyLessEqual(ExprPool& pool, ExprId a, ExprId b) {
  if (a == b || pool.Range(a).max <= pool.Range(b).min) return true;
  if (pool.Range(a).min > pool.Range(b).max) return false;
  return ExprAlgebra(&pool).UpperBound(pool.Sub(a, b)) <= 0;
}

bool ProvablyDivides(ExprPool& pool, ExprId divisor, ExprId a) { return pool.Mod(a, divisor) == kZeroExpr; }

}  // namespace kiln
