// Expressions as functions of their leaves, which are symbols, variables and indirects: what an expression
// depends on, and the same with other leaves or in another pool.
//
// Threads, errors, limits: as an ExprPool's. Nothing here recurses: a caller's expression may be deep.
#pragma once

#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "compiler/graph/expr.h"

namespace kiln {

// All distinct leaves in order of first appearance.
std::vector<ExprId> LeavesOf(const ExprPool& pool, ExprId id);
bool DependsOn(const ExprPool& pool, ExprId id, ExprId leaf);

// All that `id` is made of and itself, ascending, so arguments first. `extents`: of variables and indirects
// too.
std::vector<ExprId> ReachableExprs(const ExprPool& pool, ExprId id, bool extents);

// Replaces leaves and simplifies again. The function returns the replacement, or the leaf itself.
ExprId Substitute(ExprPool& pool, ExprId id, absl::FunctionRef<ExprId(ExprId leaf)> replace);

// id == coefficient * leaf + rest with coefficient and rest free of `leaf`; nullopt otherwise.
struct AffineForm {
  ExprId coefficient;
  ExprId rest;
};
std::optional<AffineForm> AsAffine(ExprPool& pool, ExprId id, ExprId leaf);

// Copies `id` of another pool to `pool`; leaves keep their numbers and ranges.
ExprId ImportExpr(ExprPool& pool, const ExprPool& from, ExprId id);

}  // namespace kiln
