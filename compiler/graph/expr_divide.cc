// Floor division and modulo: the rules that remove them from indices.
#include <algorithm>

#include "compiler/graph/expr_algebra.h"
#include "compiler/support/compiler_limits.h"

namespace kiln {
namespace {

constexpr int kDivisionSteps = 64;

}  // namespace

std::optional<ExprAlgebra::Division> ExprAlgebra::DivideByTerm(const Poly& a, Term b) {
  Poly quotient, remainder;
  for (Term term : a) {
    if (term.base == kUnitBase && b.base == kUnitBase) {
      quotient.push_back({FloorDivInt(term.coefficient, b.coefficient), kUnitBase});
      remainder.push_back({FloorModInt(term.coefficient, b.coefficient), kUnitBase});
    } else if (std::optional<Term> whole = DivideTerms(term, b)) {
      quotient.push_back(*whole);
    } else {
      remainder.push_back(term);
    }
  }
  std::optional<ExprId> q = FromPoly(std::move(quotient)), r = FromPoly(std::move(remainder));
  if (!q || !r) return std::nullopt;
  return Division{*q, *r};
}

std::optional<ExprAlgebra::Division> ExprAlgebra::DivideBySum(const Poly& a, const Poly& b) {
  // The first term has the highest degree. Whatever the order finds is exact.
  Term lead = b[0];
  if (lead.base == kUnitBase) return std::nullopt;
  Poly quotient, rest = a;
  for (int step = 0; step < kDivisionSteps && !rest.empty(); ++step) {
    size_t at = 0;
    std::optional<Term> part;
    for (; at < rest.size() && !part; ++at) part = DivideTerms(rest[at], lead);
    if (!part) break;
    quotient.push_back(*part);
    for (Term term : b) {
      std::optional<Term> product = MultiplyTerms(*part, term);
      if (!product || product->coefficient == INT64_MIN) return std::nullopt;
      rest.push_back({-product->coefficient, product->base});
    }
    if (!SortAndMerge(&rest) || rest.size() > 32) return std::nullopt;
  }
  std::optional<ExprId> q = FromPoly(std::move(quotient)), r = FromPoly(std::move(rest));
  if (!q || !r || *q == kZeroExpr) return std::nullopt;
  // A remainder that does not fall away would only make the expression longer.
  if (*r != kZeroExpr) {
    std::optional<ExprId> divisor = FromPoly(b);
    if (!divisor || !Wraps(*r, *divisor)) return std::nullopt;
  }
  return Division{*q, *r};
}

ExprAlgebra::Division ExprAlgebra::Divide(ExprId a, ExprId b) {
  Poly x = ToPoly(a), y = ToPoly(b);
  std::optional<Division> division;
  if (y.size() == 1) division = DivideByTerm(x, y[0]);
  if (y.size() > 1) division = DivideBySum(x, y);
  return division.value_or(Division{kZeroExpr, a});
}

std::optional<int64_t> ExprAlgebra::Wraps(ExprId r, ExprId b) {
  ExprRange x = pool_.ranges_[r], y = pool_.ranges_[b];
  if (y.IsPoint() && y.min > 0) {
    int64_t k = FloorDivInt(x.min, y.min);
    if (x.min > INT64_MIN && x.max < INT64_MAX && FloorDivInt(x.max, y.min) == k) return k;
  }
  int64_t least = std::max<int64_t>(y.min, 1);  // of the divisor
  if (x.min >= 0 && x.max < least) return 0;
  if (x.max < 0 && x.min >= -least) return -1;
  if (LowerBound(r) >= 0) {
    if (UpperBound(pool_.Sub(r, b)) < 0) return 0;
  } else if (UpperBound(r) < 0) {
    if (LowerBound(r) >= -least || LowerBound(pool_.Add(r, b)) >= 0) return -1;
  }
  return std::nullopt;
}

std::optional<ExprAlgebra::Split> ExprAlgebra::SplitByFactor(ExprId r, ExprId b) {
  Poly divisor = ToPoly(b);
  if (divisor.size() != 1) return std::nullopt;
  Poly terms = ToPoly(r);
  if (terms.size() > 16) return std::nullopt;
  absl::InlinedVector<Term, 4> candidates;
  for (Term term : terms) {
    if (term.base == kUnitBase) continue;
    Term common = CommonFactor(term, divisor[0]);
    if (common.coefficient == 1 && common.base == kUnitBase) continue;
    auto same = [&](Term seen) { return seen.base == common.base && seen.coefficient == common.coefficient; };
    if (std::none_of(candidates.begin(), candidates.end(), same)) candidates.push_back(common);
  }
  for (Term g : candidates) {
    std::optional<Term> reduced = DivideTerms(divisor[0], g);
    if (!reduced) continue;
    std::optional<Division> division = DivideByTerm(terms, g);
    if (!division || division->quotient == kZeroExpr) continue;
    ExprId factor = FromTerm(g);
    std::optional<int64_t> k = Wraps(division->remainder, factor);
    if (!k) continue;
    return Split{factor, pool_.Add(division->quotient, pool_.Const(*k)),
                 pool_.Sub(division->remainder, pool_.Mul(pool_.Const(*k), factor)), FromTerm(*reduced)};
  }
  return std::nullopt;
}

// r // b where no term of r is divisible by b.
ExprId ExprAlgebra::FloorDivRest(ExprId r, ExprId b) {
  if (std::optional<int64_t> k = Wraps(r, b)) return pool_.Const(*k);
  if (std::optional<Split> split = SplitByFactor(r, b)) return FloorDiv(split->quotient, split->divisor);
  Poly terms = ToPoly(r);
  bool shifted = terms.size() == 2 && terms[1].base == kUnitBase;
  if (!terms.empty() && terms[0].coefficient == 1 && (terms.size() == 1 || shifted)) {
    ExprNode inner = pool_.nodes_[terms[0].base];
    if (inner.op == v1::EXPR_FLOORDIV) {
      ExprId dividend = inner.args[0];
      if (shifted) {
        dividend = pool_.Add(dividend, pool_.Mul(inner.args[1], pool_.Const(terms[1].coefficient)));
      }
      if (pool_.ranges_[inner.args[1]].min >= 0) return FloorDiv(dividend, pool_.Mul(inner.args[1], b));
    }
    if (inner.op == v1::EXPR_MOD && !shifted && pool_.ranges_[inner.args[1]].min >= 0) {
      Division division = Divide(inner.args[1], b);
      if (division.remainder == kZeroExpr) return Mod(FloorDiv(inner.args[0], b), division.quotient);
    }
  }
  return Raw(v1::EXPR_FLOORDIV, r, b);
}

ExprId ExprAlgebra::ModRest(ExprId r, ExprId b) {
  if (std::optional<int64_t> k = Wraps(r, b)) return pool_.Sub(r, pool_.Mul(pool_.Const(*k), b));
  if (std::optional<Split> split = SplitByFactor(r, b)) {
    return pool_.Add(pool_.Mul(split->factor, Mod(split->quotient, split->divisor)), split->rest);
  }
  // A modulo inside is idle where its modulus is a multiple of b.
  Poly terms = ToPoly(r);
  for (size_t i = 0; i < terms.size(); ++i) {
    ExprNode inner = pool_.nodes_[terms[i].base];
    if (inner.op != v1::EXPR_MOD || pool_.ranges_[inner.args[1]].min < 0) continue;
    ExprId coefficient = pool_.Const(terms[i].coefficient);
    if (Divide(pool_.Mul(coefficient, inner.args[1]), b).remainder != kZeroExpr) continue;
    ExprId without = pool_.Sub(r, FromTerm(terms[i]));
    return Mod(pool_.Add(without, pool_.Mul(coefficient, inner.args[0])), b);
  }
  return Raw(v1::EXPR_MOD, r, b);
}

ExprId ExprAlgebra::FloorDiv(ExprId a, ExprId b) {
  std::optional<int64_t> x = pool_.AsConst(a), y = pool_.AsConst(b);
  if (y == 1) return a;
  if (y == 0) return Raw(v1::EXPR_FLOORDIV, a, b);
  if (x && y && !(*x == INT64_MIN && *y == -1)) return pool_.Const(FloorDivInt(*x, *y));
  if (a == kZeroExpr) return a;
  if (a == b) return kUnitBase;
  if (y && *y < 0 && *y != INT64_MIN) return FloorDiv(pool_.Neg(a), pool_.Const(-*y));
  if (pool_.ranges_[b].min < 0 || pool_.depth_ > kExprRuleDepthMax) return Raw(v1::EXPR_FLOORDIV, a, b);

  std::pair<uint64_t, int> key{uint64_t{a} << 32 | b, v1::EXPR_FLOORDIV};
  if (auto found = pool_.divisions_.find(key); found != pool_.divisions_.end()) return found->second;
  ++pool_.depth_;
  Division division = Divide(a, b);
  ExprId result = division.quotient;
  if (division.remainder != kZeroExpr) result = pool_.Add(result, FloorDivRest(division.remainder, b));
  --pool_.depth_;
  pool_.divisions_.emplace(key, result);
  return result;
}

ExprId ExprAlgebra::Mod(ExprId a, ExprId b) {
  std::optional<int64_t> x = pool_.AsConst(a), y = pool_.AsConst(b);
  if (y == 0) return Raw(v1::EXPR_MOD, a, b);
  if (y == 1 || y == -1 || a == kZeroExpr || a == b) return kZeroExpr;
  if (x && y) return pool_.Const(FloorModInt(*x, *y));
  if (y && *y < 0 && *y != INT64_MIN) return pool_.Neg(Mod(pool_.Neg(a), pool_.Const(-*y)));
  if (pool_.ranges_[b].min < 0 || pool_.depth_ > kExprRuleDepthMax) return Raw(v1::EXPR_MOD, a, b);

  std::pair<uint64_t, int> key{uint64_t{a} << 32 | b, v1::EXPR_MOD};
  if (auto found = pool_.divisions_.find(key); found != pool_.divisions_.end()) return found->second;
  ++pool_.depth_;
  ExprId remainder = Divide(a, b).remainder;
  ExprId result = remainder == kZeroExpr ? kZeroExpr : ModRest(remainder, b);
  --pool_.depth_;
  pool_.divisions_.emplace(key, result);
  return result;
}

}  // namespace kiln
