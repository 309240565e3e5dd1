// The arithmetic behind ExprPool: polynomials over atoms, division with remainder, and proofs of
// bounds. Internal to compiler/graph.
//
// An *atom* is any expression that is not a sum, a product or a constant. A *base* is a product of
// atoms without a coefficient (one atom, or an EXPR_MUL), or `kUnitBase`, the constant 1.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "compiler/graph/expr.h"

namespace kiln {

inline constexpr ExprId kZeroExpr = 0;
inline constexpr ExprId kUnitBase = 1;

struct Term {
  int64_t coefficient;
  ExprId base;
};
using Poly = absl::InlinedVector<Term, 6>;

// Saturating arithmetic on bounds.
int64_t SaturatingAdd(int64_t a, int64_t b);
int64_t SaturatingMul(int64_t a, int64_t b);
ExprRange AddRanges(ExprRange a, ExprRange b);
ExprRange MulRanges(ExprRange a, ExprRange b);
ExprRange FloorDivRange(ExprRange a, ExprRange b);
ExprRange ModRange(ExprRange a, ExprRange b);
int64_t FloorDivInt(int64_t a, int64_t b);  // b != 0, not INT64_MIN / -1
int64_t FloorModInt(int64_t a, int64_t b);

class ExprAlgebra {
 public:
  explicit ExprAlgebra(ExprPool* pool) : pool_(*pool) {}

  Poly ToPoly(ExprId id);
  // Sorts, merges and interns. An arithmetic overflow gives nullopt.
  std::optional<ExprId> FromPoly(Poly poly);
  ExprId Sum(absl::Span<const ExprId> terms);
  ExprId Multiply(ExprId a, ExprId b);
  ExprId FloorDiv(ExprId a, ExprId b);
  ExprId Mod(ExprId a, ExprId b);

  // The largest value that `id` can be proved not to exceed. INT64_MAX: nothing is known.
  int64_t UpperBound(ExprId id);
  int64_t LowerBound(ExprId id);

 private:
  struct Division {
    ExprId quotient;
    ExprId remainder;
  };

  using Atoms = absl::InlinedVector<ExprId, 8>;

  Atoms AtomsToEliminate(const Poly& poly);
  // What `slope * atom` is at most, as `slope` times the result; nullopt: nothing is known.
  std::optional<ExprId> BoundOf(ExprId atom, ExprId slope);
  // `poly` with the atom, which it must be linear in, at its bound.
  std::optional<ExprId> Eliminate(const Poly& poly, ExprId atom);

  Term ToTerm(ExprId id);
  ExprId FromTerm(Term term);
  absl::Span<const ExprId> Factors(const ExprId& base) const;
  ExprId MakeBase(absl::InlinedVector<ExprId, 4> factors);
  std::optional<Term> MultiplyTerms(Term a, Term b);
  std::optional<Term> DivideTerms(Term a, Term b);  // exactly
  Term CommonFactor(Term a, Term b);
  int Degree(ExprId base) const;
  int Compare(ExprId a, ExprId b) const;         // order of bases in a sum
  int CompareFactors(ExprId a, ExprId b) const;  // order of atoms in a product
  bool SortAndMerge(Poly* poly);                 // false: overflow
  bool CombineDivMod(Poly* poly);                // (x // c)*c + x % c → x; true when changed

  // a == quotient * b + remainder, as much in the quotient as divides. b may not be negative.
  Division Divide(ExprId a, ExprId b);
  std::optional<Division> DivideByTerm(const Poly& a, Term b);
  std::optional<Division> DivideBySum(const Poly& a, const Poly& b);
  // k with k*b <= r < (k+1)*b.
  std::optional<int64_t> Wraps(ExprId r, ExprId b);
  // r == g*y + s and b == g*c with s in [0, g): splits a division by b into one by c.
  struct Split {
    ExprId factor, quotient, rest, divisor;
  };
  std::optional<Split> SplitByFactor(ExprId r, ExprId b);
  ExprId FloorDivRest(ExprId r, ExprId b);
  ExprId ModRest(ExprId r, ExprId b);
  ExprId Raw(v1::ExprOp op, ExprId a, ExprId b);

  ExprPool& pool_;
};

}  // namespace kiln
