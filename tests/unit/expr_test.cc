#include "compiler/graph/expr.h"

#include "compiler/graph/expr_leaves.h"
#include "compiler/graph/expr_proofs.h"
#include "compiler/support/compiler_limits.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

constexpr ExprRange kSize{2, INT64_MAX};

class ExprTest : public ::testing::Test {
 protected:
  ExprId C(int64_t value) { return pool.Const(value); }
  ExprId S(uint32_t symbol) { return pool.Symbol(symbol, kSize); }
  ExprId V(uint32_t var, int64_t extent) { return pool.Var(var, C(extent)); }
  ExprPool pool;
};

TEST_F(ExprTest, SumsAndProductsAreCanonical) {
  ExprId a = S(0), b = S(1);
  EXPECT_EQ(pool.Add(a, b), pool.Add(b, a));
  EXPECT_EQ(pool.Mul(a, b), pool.Mul(b, a));
  EXPECT_EQ(pool.Sub(pool.Add(a, b), b), a);
  EXPECT_EQ(pool.Mul(pool.Add(a, b), C(2)), pool.Add(pool.Mul(C(2), b), pool.Mul(C(2), a)));
  EXPECT_EQ(pool.Mul(pool.Add(a, C(1)), b), pool.Add(pool.Mul(a, b), b));
  EXPECT_EQ(pool.ToString(pool.Add(pool.Mul(C(4), a), pool.Sub(C(1), b))), "4*s0 - s1 + 1");
  EXPECT_EQ(pool.Product({}), C(1));
  EXPECT_EQ(pool.Sum({}), C(0));
}

TEST_F(ExprTest, DivisionRules) {
  ExprId x = V(0, 12), r = V(1, 64);
  ExprId flat = pool.Add(pool.Mul(C(64), x), r);
  EXPECT_EQ(pool.FloorDiv(flat, C(64)), x);
  EXPECT_EQ(pool.Mod(flat, C(64)), r);
  EXPECT_EQ(pool.FloorDiv(flat, C(128)), pool.FloorDiv(x, C(2)));
  EXPECT_EQ(pool.Mod(flat, C(128)), pool.Add(pool.Mul(C(64), pool.Mod(x, C(2))), r));
  EXPECT_EQ(pool.FloorDiv(flat, C(16)), pool.Add(pool.Mul(C(4), x), pool.FloorDiv(r, C(16))));
  EXPECT_EQ(pool.FloorDiv(pool.FloorDiv(r, C(4)), C(4)), pool.FloorDiv(r, C(16)));
  EXPECT_EQ(pool.Add(pool.Mul(pool.FloorDiv(r, C(5)), C(5)), pool.Mod(r, C(5))), r);
  EXPECT_EQ(pool.Mod(r, C(64)), r);
  EXPECT_EQ(pool.FloorDiv(r, C(64)), C(0));
  EXPECT_EQ(pool.Mod(pool.Mod(r, C(12)), C(4)), pool.Mod(r, C(4)));
  EXPECT_EQ(pool.FloorDiv(pool.Mod(r, C(12)), C(4)), pool.Mod(pool.FloorDiv(r, C(4)), C(3)));
}

TEST_F(ExprTest, SplitAndMergeIsTheIdentity) {
  ExprId x = V(0, 1000);
  ExprId outer = pool.FloorDiv(x, C(12)), middle = pool.Mod(pool.FloorDiv(x, C(3)), C(4)),
         inner = pool.Mod(x, C(3));
  EXPECT_EQ(pool.Sum({pool.Mul(C(12), outer), pool.Mul(C(3), middle), inner}), x);
}

TEST_F(ExprTest, SymbolicDivisors) {
  ExprId s0 = S(0), s1 = S(1);
  ExprId i = pool.Var(0, s0), j = pool.Var(1, s1), k = pool.Var(2, S(2));
  ExprId flat = pool.Add(pool.Mul(s1, i), j);
  EXPECT_EQ(pool.FloorDiv(flat, s1), i);
  EXPECT_EQ(pool.Mod(flat, s1), j);
  EXPECT_TRUE(ProvablyLess(pool, flat, pool.Mul(s0, s1)));
  ExprId area = pool.Mul(s0, s1);
  ExprId deep = pool.Add(pool.Mul(area, k), flat);
  EXPECT_EQ(pool.FloorDiv(deep, area), k);
  EXPECT_EQ(pool.Mod(deep, area), flat);
  EXPECT_EQ(pool.FloorDiv(deep, s1), pool.Add(pool.Mul(s0, k), i));
  EXPECT_EQ(pool.Mod(pool.FloorDiv(deep, s1), s0), i);
  EXPECT_EQ(pool.Mod(deep, s1), j);
  EXPECT_TRUE(ProvablyLess(pool, deep, pool.Mul(S(2), area)));
  EXPECT_FALSE(ProvablyLess(pool, pool.Add(deep, C(1)), pool.Mul(S(2), area)));
  EXPECT_EQ(pool.FloorDiv(pool.Mul(C(12), s0), C(4)), pool.Mul(C(3), s0));
}

TEST_F(ExprTest, CompositeExtents) {
  ExprId h = pool.Add(pool.FloorDiv(pool.Sub(S(0), C(1)), C(2)), C(1));
  ExprId w = pool.Add(pool.FloorDiv(pool.Sub(S(1), C(1)), C(2)), C(1));
  ExprId i = pool.Var(0, h), j = pool.Var(1, w);
  ExprId flat = pool.Add(pool.Mul(w, i), j);
  EXPECT_EQ(pool.FloorDiv(flat, w), i);
  EXPECT_EQ(pool.Mod(flat, w), j);
  EXPECT_TRUE(ProvablyLess(pool, flat, pool.Mul(h, w)));
}

TEST_F(ExprTest, SymbolsThatMayBeZero) {
  ExprId n = pool.Symbol(7, {0, INT64_MAX}), m = pool.Symbol(8, {0, INT64_MAX});
  ExprId i = pool.Var(0, n), j = pool.Var(1, m);
  ExprId flat = pool.Add(pool.Mul(m, i), j);
  EXPECT_EQ(pool.FloorDiv(flat, m), i);
  EXPECT_EQ(pool.Mod(flat, m), j);
  EXPECT_EQ(pool.Mod(i, n), i);
}

TEST_F(ExprTest, ComparisonsMinMaxWhere) {
  ExprId s = S(0);
  EXPECT_EQ(pool.Max(s, C(1)), s);
  EXPECT_EQ(pool.Min(s, C(2)), C(2));
  EXPECT_EQ(pool.Lt(s, C(2)), C(0));
  EXPECT_EQ(pool.Eq(s, pool.Add(s, C(0))), C(1));
  EXPECT_EQ(pool.Eq(s, pool.Add(s, C(3))), C(0));
  EXPECT_EQ(pool.Not(pool.Lt(s, C(9))), pool.Le(C(9), s));
  EXPECT_EQ(pool.Where(C(1), s, C(3)), s);
  EXPECT_EQ(pool.Where(pool.Lt(s, C(9)), s, s), s);
  EXPECT_EQ(pool.And(C(1), pool.Lt(s, C(9))), pool.Lt(s, C(9)));
}

TEST_F(ExprTest, Affine) {
  ExprId i = pool.Var(0, S(0)), j = pool.Var(1, S(1));
  auto affine = AsAffine(pool, pool.Sum({pool.Mul(S(1), i), j, C(3)}), i);
  ASSERT_TRUE(affine.has_value());
  EXPECT_EQ(affine->coefficient, S(1));
  EXPECT_EQ(affine->rest, pool.Add(j, C(3)));
  EXPECT_FALSE(AsAffine(pool, pool.FloorDiv(i, C(5)), i).has_value());
  EXPECT_FALSE(AsAffine(pool, pool.Mul(i, i), i).has_value());
}

TEST_F(ExprTest, SubstituteResimplifies) {
  ExprId i = V(0, 64), j = V(1, 8);
  ExprId quotient = pool.FloorDiv(i, C(8));
  ExprId result = Substitute(
      pool, quotient, [&](ExprId leaf) { return leaf == i ? pool.Add(pool.Mul(C(8), j), V(2, 8)) : leaf; });
  EXPECT_EQ(result, j);
}

TEST_F(ExprTest, ImportKeepsMeaningAndHash) {
  ExprPool other;
  other.Symbol(9, kSize);  // another history
  ExprId i = pool.Var(0, S(0));
  ExprId e = pool.Sum({pool.FloorDiv(i, C(7)), pool.Mul(S(1), i), pool.Mod(S(1), C(3)), C(4)});
  ExprId copy = ImportExpr(other, pool, e);
  EXPECT_EQ(other.ToString(copy), pool.ToString(e));
  EXPECT_EQ(other.ContentHash(copy), pool.ContentHash(e));
}

TEST_F(ExprTest, OverflowStaysExactOrSaysSo) {
  ExprId big = pool.Mul(C(INT64_MAX), S(0));
  ExprId bigger = pool.Mul(big, C(INT64_MAX));
  auto two = [](const ExprNode&) { return int64_t{2}; };
  EXPECT_EQ(pool.Evaluate(bigger, two).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(pool.Evaluate(pool.Add(C(INT64_MAX), C(1)), two).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(pool.Evaluate(pool.FloorDiv(S(0), C(0)), two).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(pool.Evaluate(pool.FloorDiv(C(INT64_MIN), C(-1)), two).status().code(),
            absl::StatusCode::kOutOfRange);
}

TEST_F(ExprTest, DeepChainsNeedNoStack) {
  ExprId e = S(0);
  for (int i = 0; i < 200'000; ++i) e = pool.Max(pool.FloorDiv(e, C(2)), S(1 + i % 50));
  EXPECT_TRUE(pool.status().ok());
  EXPECT_EQ(pool.Evaluate(e, [](const ExprNode& leaf) { return leaf.value + 2; }).status(), absl::OkStatus());
  EXPECT_FALSE(pool.ToString(e).empty());
  EXPECT_EQ(Substitute(pool, e, [](ExprId leaf) { return leaf; }), e);
}

TEST_F(ExprTest, TheNodeLimitHolds) {
  for (size_t i = pool.size(); i < kExprNodesMax; ++i) pool.Const(static_cast<int64_t>(i));
  EXPECT_EQ(pool.size(), kExprNodesMax);
  EXPECT_EQ(pool.status(), absl::OkStatus());
  pool.Const(int64_t{kExprNodesMax});
  EXPECT_EQ(pool.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool.size(), kExprNodesMax);
}

// By sums of too many terms to be sorted, which differ in their first.
TEST_F(ExprTest, TheLimitOfAllArgumentsHolds) {
  constexpr size_t kTerms = 1 << 16, kSums = kAllExprArgsMax / kTerms;
  std::vector<ExprId> terms(kTerms);
  for (size_t i = 0; i < kTerms; ++i) terms[i] = S(static_cast<uint32_t>(i));
  for (size_t i = 0; i < kSums; ++i) {
    terms[0] = C(static_cast<int64_t>(i));
    pool.Sum(terms);
  }
  EXPECT_EQ(pool.status(), absl::OkStatus());
  pool.Max(S(0), S(1));
  EXPECT_EQ(pool.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(pool.status().message().find("16777216 arguments"), absl::string_view::npos) << pool.status();
}

}  // namespace
}  // namespace kiln
