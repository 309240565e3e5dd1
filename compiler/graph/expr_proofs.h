// What the ranges of leaves prove of expressions: true when it holds for all their values, false when that is
// not known.
//
// Threads, limits: as an ExprPool's; a proof may add expressions to the pool.
#pragma once

#include "compiler/graph/expr.h"

namespace kiln {

bool ProvablyEqual(ExprPool& pool, ExprId a, ExprId b);
bool ProvablyLess(ExprPool& pool, ExprId a, ExprId b);
bool ProvablyLessEqual(ExprPool& pool, ExprId a, ExprId b);
bool ProvablyDivides(ExprPool& pool, ExprId divisor, ExprId a);

}  // namespace kiln
