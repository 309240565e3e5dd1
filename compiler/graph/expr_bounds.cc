// Ranges and proofs of bounds.
#include <algorithm>

#include "compiler/graph/expr_algebra.h"
#include "compiler/support/compiler_limits.h"

namespace kiln {
namespace {

int EliminationRank(v1::ExprOp op) {
  switch (op) {
    case v1::EXPR_INDIRECT: return 0;
    case v1::EXPR_VAR: return 1;
    case v1::EXPR_MOD: return 2;
    case v1::EXPR_SYMBOL: return 4;
    default: return 3;
  }
}

}  // namespace

int64_t SaturatingAdd(int64_t a, int64_t b) {
  int64_t sum;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return a > 0 ? INT64_MAX : INT64_MIN;
}

int64_t SaturatingMul(int64_t a, int64_t b) {
  int64_t product;
  if (!__builtin_mul_overflow(a, b, &product)) return product;
  return (a > 0) == (b > 0) ? INT64_MAX : INT64_MIN;
}

int64_t FloorDivInt(int64_t a, int64_t b) {
  int64_t q = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}

int64_t FloorModInt(int64_t a, int64_t b) {
  if (b == -1) return 0;
  int64_t r = a % b;
  return (r != 0 && (r < 0) != (b < 0)) ? r + b : r;
}

ExprRange AddRanges(ExprRange a, ExprRange b) {
  // An end that is already saturated means "no bound" and stays so.
  ExprRange sum;
  sum.min = a.min == INT64_MIN || b.min == INT64_MIN ? INT64_MIN : SaturatingAdd(a.min, b.min);
  sum.max = a.max == INT64_MAX || b.max == INT64_MAX ? INT64_MAX : SaturatingAdd(a.max, b.max);
  return sum;
}

ExprRange MulRanges(ExprRange a, ExprRange b) {
  auto times = [](int64_t x, int64_t y) {
    // 0 times "no bound" is 0.
    return SaturatingMul(x, y);
  };
  int64_t ends[] = {times(a.min, b.min), times(a.min, b.max), times(a.max, b.min), times(a.max, b.max)};
  return {*std::min_element(ends, ends + 4), *std::max_element(ends, ends + 4)};
}

ExprRange FloorDivRange(ExprRange a, ExprRange b) {
  if (b.min == 0) b.min = 1;  // a zero divisor has no value
  if (b.max == 0) b.max = -1;
  if (b.min > b.max || (b.min < 0 && b.max > 0)) return {};
  auto divide = [](int64_t x, int64_t y) {
    if (x == INT64_MIN) return y > 0 ? INT64_MIN : INT64_MAX;
    if (x == INT64_MAX) return y > 0 ? INT64_MAX : INT64_MIN;
    return FloorDivInt(x, y);
  };
  int64_t ends[] = {divide(a.min, b.min), divide(a.min, b.max), divide(a.max, b.min), divide(a.max, b.max)};
  return {*std::min_element(ends, ends + 4), *std::max_element(ends, ends + 4)};
}

ExprRange ModRange(ExprRange a, ExprRange b) {
  if (b.max == INT64_MIN) return {INT64_MIN, 0};
  ExprRange range{0, 0};
  if (b.max > 0) range.max = b.max == INT64_MAX ? INT64_MAX : b.max - 1;
  if (b.min < 0) range.min = b.min == INT64_MIN ? INT64_MIN : b.min + 1;
  if (a.min >= 0) range.max = std::min(range.max, a.max);
  if (a.max <= 0) range.min = std::max(range.min, a.min);
  return range;
}

// Eliminates one atom after another: where the coefficient of an atom has a known sign, the atom
// is replaced by its bound on the side that makes the whole larger. A variable's upper bound is
// its symbolic extent less one, so s1*v0 + v1 - s0*s1 comes out as -1.
// What has a symbolic bound goes before what that bound is made of; latest variable first.
ExprAlgebra::Atoms ExprAlgebra::AtomsToEliminate(const Poly& poly) {
  Atoms atoms;
  for (Term term : poly) {
    for (ExprId factor : Factors(term.base)) {
      if (std::find(atoms.begin(), atoms.end(), factor) == atoms.end()) atoms.push_back(factor);
    }
  }
  std::sort(atoms.begin(), atoms.end(), [this](ExprId a, ExprId b) {
    int rank_a = EliminationRank(pool_.nodes_[a].op), rank_b = EliminationRank(pool_.nodes_[b].op);
    return rank_a != rank_b ? rank_a < rank_b : CompareFactors(a, b) > 0;
  });
  return atoms;
}

std::optional<ExprId> ExprAlgebra::BoundOf(ExprId atom, ExprId slope) {
  const ExprRange sign = pool_.ranges_[slope], bounds = pool_.ranges_[atom];
  if (sign.min >= 0) {
    std::optional<ExprId> extent = pool_.Extent(atom);
    const ExprNode& node = pool_.nodes_[atom];
    if (node.op == v1::EXPR_MOD && pool_.ranges_[node.args[1]].min >= 0) extent = node.args[1];
    if (extent) return pool_.Sub(*extent, kUnitBase);
    if (bounds.max != INT64_MAX) return pool_.Const(bounds.max);
  } else if (sign.max <= 0 && bounds.min != INT64_MIN) {
    return pool_.Const(bounds.min);
  }
  return std::nullopt;
}

std::optional<ExprId> ExprAlgebra::Eliminate(const Poly& poly, ExprId atom) {
  Poly coefficient, rest;
  for (Term term : poly) {
    std::optional<Term> part = DivideTerms(term, {1, atom});
    if (!part) {
      rest.push_back(term);
      continue;
    }
    absl::Span<const ExprId> factors = Factors(part->base);
    if (std::find(factors.begin(), factors.end(), atom) != factors.end()) return std::nullopt;
    coefficient.push_back(*part);
  }
  std::optional<ExprId> slope = FromPoly(coefficient), remainder = FromPoly(rest);
  if (!slope || !remainder) return std::nullopt;
  const std::optional<ExprId> bound = BoundOf(atom, *slope);
  if (!bound) return std::nullopt;
  return pool_.Add(pool_.Mul(*slope, *bound), *remainder);
}

int64_t ExprAlgebra::UpperBound(ExprId id) {
  int64_t numeric = pool_.ranges_[id].max;
  if (pool_.nodes_[id].op != v1::EXPR_ADD && pool_.nodes_[id].op != v1::EXPR_MUL &&
      pool_.nodes_[id].op != v1::EXPR_VAR) {
    return numeric;
  }
  if (pool_.opaque_.contains(id)) return numeric;
  if (auto found = pool_.upper_bounds_.find(id); found != pool_.upper_bounds_.end()) return found->second;

  int64_t best = numeric;
  ExprId current = id;
  for (int step = 0; step < kExprEliminationsMax; ++step) {
    const Poly poly = ToPoly(current);
    if (poly.size() > kExprProofTermsMax) break;
    std::optional<ExprId> next;
    for (ExprId atom : AtomsToEliminate(poly)) {
      next = Eliminate(poly, atom);
      if (next) break;
    }
    if (next) current = *next;
    best = std::min(best, pool_.ranges_[current].max);
    if (!next || pool_.AsConst(current) || !pool_.status_.ok()) break;
  }
  pool_.upper_bounds_.emplace(id, best);
  return best;
}

int64_t ExprAlgebra::LowerBound(ExprId id) {
  int64_t numeric = pool_.ranges_[id].min;
  v1::ExprOp op = pool_.nodes_[id].op;
  if (op != v1::EXPR_ADD && op != v1::EXPR_MUL) return numeric;
  int64_t upper = UpperBound(pool_.Neg(id));
  return upper <= INT64_MIN + 1 || upper == INT64_MAX ? numeric : std::max(numeric, -upper);
}

}  // namespace kiln
