#include "compiler/graph/expr_algebra.h"

#include <algorithm>
#include <numeric>

#include "compiler/support/compiler_limits.h"

namespace kiln {
namespace {

int LeafRank(v1::ExprOp op) {
  switch (op) {
    case v1::EXPR_SYMBOL: return 0;
    case v1::EXPR_VAR: return 1;
    case v1::EXPR_INDIRECT: return 2;
    default: return 3;
  }
}

}  // namespace

absl::Span<const ExprId> ExprAlgebra::Factors(const ExprId& base) const {
  if (base == kUnitBase) return {};
  const ExprNode& node = pool_.nodes_[base];
  if (node.op == v1::EXPR_MUL && !pool_.opaque_.contains(base)) return node.args;
  return absl::MakeConstSpan(&base, 1);
}

int ExprAlgebra::Degree(ExprId base) const { return static_cast<int>(Factors(base).size()); }

int ExprAlgebra::CompareFactors(ExprId a, ExprId b) const {
  if (a == b) return 0;
  const ExprNode& x = pool_.nodes_[a];
  const ExprNode& y = pool_.nodes_[b];
  int rank_x = LeafRank(x.op), rank_y = LeafRank(y.op);
  if (rank_x != rank_y) return rank_x - rank_y;
  if (rank_x < 3 && x.value != y.value) return x.value < y.value ? -1 : 1;
  if (pool_.hashes_[a] != pool_.hashes_[b]) return pool_.hashes_[a] < pool_.hashes_[b] ? -1 : 1;
  return a < b ? -1 : 1;
}

int ExprAlgebra::Compare(ExprId a, ExprId b) const {
  if (a == b) return 0;
  absl::Span<const ExprId> x = Factors(a), y = Factors(b);
  if (x.size() != y.size()) return x.size() > y.size() ? -1 : 1;
  for (size_t i = 0; i < x.size(); ++i) {
    if (int order = CompareFactors(x[i], y[i]); order != 0) return order;
  }
  return 0;
}

Term ExprAlgebra::ToTerm(ExprId id) {
  const ExprNode& node = pool_.nodes_[id];
  if (node.op == v1::EXPR_CONST) return {node.value, kUnitBase};
  if (node.op != v1::EXPR_MUL || pool_.opaque_.contains(id)) return {1, id};
  std::optional<int64_t> coefficient = pool_.AsConst(node.args[0]);
  if (!coefficient) return {1, id};
  absl::InlinedVector<ExprId, 4> factors(node.args.begin() + 1, node.args.end());
  return {*coefficient, MakeBase(std::move(factors))};
}

ExprId ExprAlgebra::MakeBase(absl::InlinedVector<ExprId, 4> factors) {
  if (factors.empty()) return kUnitBase;
  if (factors.size() == 1) return factors[0];
  std::sort(factors.begin(), factors.end(), [this](ExprId a, ExprId b) { return CompareFactors(a, b) < 0; });
  ExprRange range{1, 1};
  for (ExprId factor : factors) range = MulRanges(range, pool_.ranges_[factor]);
  return pool_.Intern(v1::EXPR_MUL, 0, factors, range);
}

ExprId ExprAlgebra::FromTerm(Term term) {
  if (term.base == kUnitBase) return pool_.Const(term.coefficient);
  if (term.coefficient == 1) return term.base;
  absl::InlinedVector<ExprId, 4> args = {pool_.Const(term.coefficient)};
  for (ExprId factor : Factors(term.base)) args.push_back(factor);
  ExprRange range = MulRanges({term.coefficient, term.coefficient}, pool_.ranges_[term.base]);
  return pool_.Intern(v1::EXPR_MUL, 0, args, range);
}

Poly ExprAlgebra::ToPoly(ExprId id) {
  Poly poly;
  if (id == kZeroExpr) return poly;
  if (pool_.nodes_[id].op == v1::EXPR_ADD && !pool_.opaque_.contains(id)) {
    absl::InlinedVector<ExprId, 8> args(pool_.nodes_[id].args.begin(), pool_.nodes_[id].args.end());
    for (ExprId arg : args) poly.push_back(ToTerm(arg));
  } else {
    poly.push_back(ToTerm(id));
  }
  return poly;
}

bool ExprAlgebra::SortAndMerge(Poly* poly) {
  std::sort(poly->begin(), poly->end(), [this](Term a, Term b) { return Compare(a.base, b.base) < 0; });
  size_t out = 0;
  for (size_t i = 0; i < poly->size();) {
    Term term = (*poly)[i++];
    while (i < poly->size() && (*poly)[i].base == term.base) {
      if (__builtin_add_overflow(term.coefficient, (*poly)[i++].coefficient, &term.coefficient)) return false;
    }
    if (term.coefficient != 0) (*poly)[out++] = term;
  }
  poly->resize(out);
  return true;
}

std::optional<ExprId> ExprAlgebra::FromPoly(Poly poly) {
  if (!SortAndMerge(&poly)) return std::nullopt;
  while (CombineDivMod(&poly)) {
    if (!SortAndMerge(&poly)) return std::nullopt;
  }
  if (poly.empty()) return kZeroExpr;
  if (poly.size() == 1) return FromTerm(poly[0]);
  if (poly.size() > kExprTermsMax) return std::nullopt;
  absl::InlinedVector<ExprId, 8> args;
  ExprRange range{0, 0};
  for (Term term : poly) {
    args.push_back(FromTerm(term));
    range = AddRanges(range, pool_.ranges_[args.back()]);
  }
  return pool_.Intern(v1::EXPR_ADD, 0, args, range);
}

bool ExprAlgebra::CombineDivMod(Poly* poly) {
  if (poly->size() < 2 || pool_.depth_ > 8) return false;
  for (size_t i = 0; i < poly->size(); ++i) {
    Term term = (*poly)[i];
    absl::InlinedVector<ExprId, 4> factors;
    for (ExprId factor : Factors(term.base)) factors.push_back(factor);
    for (ExprId factor : factors) {
      if (pool_.nodes_[factor].op != v1::EXPR_MOD) continue;
      ExprId dividend = pool_.nodes_[factor].args[0], divisor = pool_.nodes_[factor].args[1];
      std::optional<Term> others = DivideTerms(term, {1, factor});
      Poly by = ToPoly(divisor);
      ++pool_.depth_;
      Poly quotient = ToPoly(FloorDiv(dividend, divisor));
      --pool_.depth_;
      if (!others || by.size() != 1 || quotient.size() != 1) continue;
      std::optional<Term> wanted = MultiplyTerms(*others, by[0]);
      if (wanted) wanted = MultiplyTerms(*wanted, quotient[0]);
      if (!wanted) continue;
      for (size_t j = 0; j < poly->size(); ++j) {
        if (j == i || (*poly)[j].base != wanted->base) continue;
        if ((*poly)[j].coefficient != wanted->coefficient) break;
        Poly changed;
        for (size_t k = 0; k < poly->size(); ++k) {
          if (k != i && k != j) changed.push_back((*poly)[k]);
        }
        for (Term part : ToPoly(dividend)) {
          std::optional<Term> product = MultiplyTerms(*others, part);
          if (!product) return false;
          changed.push_back(*product);
        }
        *poly = std::move(changed);
        return true;
      }
    }
  }
  return false;
}

ExprId ExprAlgebra::Sum(absl::Span<const ExprId> terms) {
  Poly poly;
  bool large = false;
  for (ExprId term : terms) {
    Poly part = ToPoly(term);
    poly.insert(poly.end(), part.begin(), part.end());
    if (poly.size() > kExprTermsMax && !SortAndMerge(&poly)) large = true;
    if (large || poly.size() > kExprTermsMax) break;
  }
  if (!large && poly.size() <= kExprTermsMax) {
    if (std::optional<ExprId> sum = FromPoly(std::move(poly))) return *sum;
  }
  ExprRange range{0, 0};
  for (ExprId term : terms) range = AddRanges(range, pool_.ranges_[term]);
  ExprId id = pool_.Intern(v1::EXPR_ADD, 0, terms, range);
  if (pool_.nodes_[id].op == v1::EXPR_ADD) pool_.opaque_.insert(id);
  return id;
}

std::optional<Term> ExprAlgebra::MultiplyTerms(Term a, Term b) {
  Term product;
  if (__builtin_mul_overflow(a.coefficient, b.coefficient, &product.coefficient)) return std::nullopt;
  if (a.base == kUnitBase || b.base == kUnitBase) {
    product.base = a.base == kUnitBase ? b.base : a.base;
    return product;
  }
  if (Degree(a.base) + Degree(b.base) > kExprDegreeMax) return std::nullopt;
  absl::InlinedVector<ExprId, 4> factors;
  for (ExprId factor : Factors(a.base)) factors.push_back(factor);
  for (ExprId factor : Factors(b.base)) factors.push_back(factor);
  product.base = MakeBase(std::move(factors));
  return product;
}

ExprId ExprAlgebra::Multiply(ExprId a, ExprId b) {
  if (a == kZeroExpr || b == kZeroExpr) return kZeroExpr;
  if (a == kUnitBase) return b;
  if (b == kUnitBase) return a;
  Poly x = ToPoly(a), y = ToPoly(b);
  if (x.size() * y.size() <= kExprExpandedTermsMax || x.size() == 1 || y.size() == 1) {
    Poly product;
    bool fits = true;
    for (Term p : x) {
      for (Term q : y) {
        std::optional<Term> term = MultiplyTerms(p, q);
        fits = fits && term.has_value();
        if (fits) product.push_back(*term);
      }
    }
    if (fits) {
      if (std::optional<ExprId> id = FromPoly(std::move(product))) return *id;
    }
  }
  ExprId id = Raw(v1::EXPR_MUL, a, b);
  if (pool_.nodes_[id].op == v1::EXPR_MUL) pool_.opaque_.insert(id);
  return id;
}

std::optional<Term> ExprAlgebra::DivideTerms(Term a, Term b) {
  if (b.coefficient == 0 || b.coefficient == -1) return std::nullopt;
  if (a.coefficient % b.coefficient != 0) return std::nullopt;
  if (b.base == kUnitBase) return Term{a.coefficient / b.coefficient, a.base};
  absl::InlinedVector<ExprId, 4> rest;
  for (ExprId factor : Factors(a.base)) rest.push_back(factor);
  for (ExprId factor : Factors(b.base)) {
    auto found = std::find(rest.begin(), rest.end(), factor);
    if (found == rest.end()) return std::nullopt;
    rest.erase(found);
  }
  return Term{a.coefficient / b.coefficient, MakeBase(std::move(rest))};
}

Term ExprAlgebra::CommonFactor(Term a, Term b) {
  absl::InlinedVector<ExprId, 4> left, common;
  for (ExprId factor : Factors(b.base)) left.push_back(factor);
  for (ExprId factor : Factors(a.base)) {
    auto found = std::find(left.begin(), left.end(), factor);
    if (found == left.end()) continue;
    // Only a factor that cannot be negative may be cancelled from a divisor.
    if (pool_.ranges_[factor].min >= 0) common.push_back(factor);
    left.erase(found);
  }
  int64_t coefficient = 1;
  if (a.coefficient != INT64_MIN && b.coefficient != INT64_MIN) {
    coefficient = std::gcd(a.coefficient, b.coefficient);
  }
  return {coefficient, MakeBase(std::move(common))};
}

ExprId ExprAlgebra::Raw(v1::ExprOp op, ExprId a, ExprId b) {
  ExprRange x = pool_.ranges_[a], y = pool_.ranges_[b], range;
  if (op == v1::EXPR_MUL) range = MulRanges(x, y);
  if (op == v1::EXPR_FLOORDIV) range = FloorDivRange(x, y);
  if (op == v1::EXPR_MOD) range = ModRange(x, y);
  return pool_.Intern(op, 0, {a, b}, range);
}

}  // namespace kiln
