// The simplifier by evaluation: a random expression is built twice, once through ExprPool and once
// as a plain tree that is evaluated as written. Where the plain tree has a value, so has the
// simplified expression, and it is the same one, within its range.
//
// KILN_SEED repeats a run, KILN_CASES says how many expressions (default 20,000).
#include <cstdlib>
#include <random>

#include "compiler/graph/expr.h"
#include "compiler/graph/expr_algebra.h"
#include "compiler/graph/expr_eval.h"
#include "compiler/graph/expr_leaves.h"
#include "gtest/gtest.h"
#include "tests/property/campaign.h"

namespace kiln {
namespace {

constexpr int kSymbols = 3, kVars = 4, kSamples = 8;

struct Sample {
  int64_t symbols[kSymbols];
  int64_t vars[kVars];
};

// The simplified id and, by sample, the value as written.
struct Built {
  ExprId id;
  std::vector<ExprValue> values;
};

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {
    for (int s = 0; s < kSymbols; ++s)
      symbols_[s] = pool.Symbol(s, {s == 2 ? 0 : 1, s == 1 ? 40 : INT64_MAX});
    for (int v = 0; v < kVars; ++v) {
      bool symbolic = Pick(2) == 0;
      extent_symbol_[v] = symbolic ? static_cast<int>(Pick(kSymbols)) : -1;
      extent_[v] = 1 + Pick(2) * 7 + Pick(9);
      ExprId extent = symbolic ? symbols_[extent_symbol_[v]] : pool.Const(extent_[v]);
      vars_[v] = pool.Var(v, extent);
    }
    for (Sample& sample : samples) {
      for (int64_t& symbol : sample.symbols) symbol = 1 + Pick(Pick(3) == 0 ? 40 : 5);
      for (int v = 0; v < kVars; ++v) {
        int64_t extent = extent_symbol_[v] >= 0 ? sample.symbols[extent_symbol_[v]] : extent_[v];
        sample.vars[v] = Pick(4) == 0 ? extent - 1 : Pick(extent);
      }
    }
  }

  uint64_t Pick(uint64_t n) { return std::uniform_int_distribution<uint64_t>(0, n - 1)(random_); }

  Built Constant(int64_t value) { return {pool.Const(value), std::vector<ExprValue>(kSamples, value)}; }
  Built SymbolLeaf(int s) {
    Built built{symbols_[s], {}};
    for (Sample& sample : samples) built.values.push_back(sample.symbols[s]);
    return built;
  }
  Built VarLeaf(int v) {
    Built built{vars_[v], {}};
    for (Sample& sample : samples) built.values.push_back(sample.vars[v]);
    return built;
  }

  Built Leaf() {
    switch (Pick(5)) {
      case 0: return Constant(static_cast<int64_t>(Pick(9)) - 2);
      case 1: return Constant(int64_t{1} << Pick(7));
      case 2: return SymbolLeaf(Pick(kSymbols));
      default: return VarLeaf(Pick(kVars));
    }
  }

  Built Apply(v1::ExprOp op, std::vector<Built> args) {
    Built built;
    std::vector<ExprId> ids;
    for (Built& arg : args) ids.push_back(arg.id);
    switch (op) {
      case v1::EXPR_ADD: built.id = pool.Sum(ids); break;
      case v1::EXPR_MUL: built.id = pool.Product(ids); break;
      case v1::EXPR_FLOORDIV: built.id = pool.FloorDiv(ids[0], ids[1]); break;
      case v1::EXPR_MOD: built.id = pool.Mod(ids[0], ids[1]); break;
      case v1::EXPR_MIN: built.id = pool.Min(ids[0], ids[1]); break;
      case v1::EXPR_MAX: built.id = pool.Max(ids[0], ids[1]); break;
      case v1::EXPR_CEILDIV: built.id = pool.CeilDiv(ids[0], ids[1]); break;
      case v1::EXPR_POW: built.id = pool.Pow(ids[0], ids[1]); break;
      case v1::EXPR_WHERE: built.id = pool.Where(ids[0], ids[1], ids[2]); break;
      case v1::EXPR_EQ: built.id = pool.Eq(ids[0], ids[1]); break;
      case v1::EXPR_NE: built.id = pool.Ne(ids[0], ids[1]); break;
      case v1::EXPR_LT: built.id = pool.Lt(ids[0], ids[1]); break;
      case v1::EXPR_LE: built.id = pool.Le(ids[0], ids[1]); break;
      case v1::EXPR_AND: built.id = pool.And(ids[0], ids[1]); break;
      case v1::EXPR_OR: built.id = pool.Or(ids[0], ids[1]); break;
      default: built.id = pool.Not(ids[0]); break;
    }
    for (int s = 0; s < kSamples; ++s) {
      std::vector<ExprValue> values;
      for (Built& arg : args) values.push_back(arg.values[s]);
      built.values.push_back(ApplyExprOp(op, values));
    }
    return built;
  }

  // Row-major positions over some variables, and divisions of them: what views make.
  Built Flat() {
    Built flat = VarLeaf(Pick(kVars));
    for (int i = 0, n = 1 + Pick(3); i < n; ++i) {
      int v = Pick(kVars);
      Built extent = extent_symbol_[v] >= 0 ? SymbolLeaf(extent_symbol_[v]) : Constant(extent_[v]);
      flat = Apply(v1::EXPR_ADD, {Apply(v1::EXPR_MUL, {flat, extent}), VarLeaf(v)});
    }
    return flat;
  }

  Built Random(int depth) {
    if (depth == 0 || Pick(8) == 0) return Pick(6) == 0 ? Flat() : Leaf();
    switch (Pick(12)) {
      case 0:
      case 1: return Apply(v1::EXPR_ADD, {Random(depth - 1), Random(depth - 1)});
      case 2: return Apply(v1::EXPR_ADD, {Random(depth - 1), Random(depth - 1), Random(depth - 1)});
      case 3: return Apply(v1::EXPR_MUL, {Random(depth - 1), Leaf()});
      case 4:
      case 5: return Apply(v1::EXPR_FLOORDIV, {Random(depth - 1), Leaf()});
      case 6:
      case 7: return Apply(v1::EXPR_MOD, {Random(depth - 1), Leaf()});
      case 8: {
        Built x = Random(depth - 1), c = Leaf();
        Built whole = Apply(v1::EXPR_MUL, {Apply(v1::EXPR_FLOORDIV, {x, c}), c});
        return Apply(v1::EXPR_ADD, {whole, Apply(v1::EXPR_MOD, {x, c})});
      }
      case 9: {
        v1::ExprOp op = static_cast<v1::ExprOp>(v1::EXPR_EQ + Pick(4));
        return Apply(v1::EXPR_WHERE, {Apply(op, {Random(depth - 1), Leaf()}), Random(depth - 1), Leaf()});
      }
      case 10: {
        constexpr v1::ExprOp kOps[] = {v1::EXPR_MIN, v1::EXPR_MAX, v1::EXPR_CEILDIV, v1::EXPR_AND,
                                       v1::EXPR_OR};
        return Apply(kOps[Pick(5)], {Random(depth - 1), Random(depth - 1)});
      }
      default:
        if (Pick(2) == 0) return Apply(v1::EXPR_POW, {Leaf(), Constant(Pick(4))});
        return Apply(v1::EXPR_NOT, {Random(depth - 1)});
    }
  }

  ExprPool pool;
  std::vector<Sample> samples{kSamples};

 private:
  std::mt19937_64 random_;
  ExprId symbols_[kSymbols], vars_[kVars];
  int extent_symbol_[kVars];
  int64_t extent_[kVars];
};

TEST(ExprProperty, SimplifiedIsEvaluated) {
  const auto [seed, cases] = testing::CampaignFromEnv(20261121, 20'000, 20'000);
  RecordProperty("seed", std::to_string(seed));
  uint64_t defined = 0;
  for (uint64_t i = 0; i < cases; ++i) {
    Generator generator(seed + i);
    Built built = generator.Random(1 + static_cast<int>(generator.Pick(5)));
    ASSERT_TRUE(generator.pool.status().ok());
    ExprId copy_source = built.id;
    ExprPool other;
    ExprId copy = ImportExpr(other, generator.pool, copy_source);
    for (int s = 0; s < kSamples; ++s) {
      if (!built.values[s]) continue;
      ++defined;
      const Sample& sample = generator.samples[s];
      auto leaf = [&](const ExprNode& node) {
        return node.op == v1::EXPR_SYMBOL ? sample.symbols[node.value] : sample.vars[node.value];
      };
      absl::StatusOr<int64_t> value = generator.pool.Evaluate(built.id, leaf);
      ASSERT_TRUE(value.ok()) << "KILN_SEED=" << seed + i << " " << value.status();
      ASSERT_EQ(*value, *built.values[s])
          << "KILN_SEED=" << seed + i << " " << generator.pool.ToString(built.id);
      ExprRange range = generator.pool.Range(built.id);
      ASSERT_LE(range.min, *value) << "KILN_SEED=" << seed + i << " " << generator.pool.ToString(built.id);
      ASSERT_GE(range.max, *value) << "KILN_SEED=" << seed + i << " " << generator.pool.ToString(built.id);
      ASSERT_LE(*value, ExprAlgebra(&generator.pool).UpperBound(built.id)) << "KILN_SEED=" << seed + i;
      ASSERT_GE(*value, ExprAlgebra(&generator.pool).LowerBound(built.id)) << "KILN_SEED=" << seed + i;
      ASSERT_EQ(other.Evaluate(copy, leaf).value(), *value) << "KILN_SEED=" << seed + i;
    }
  }
  std::cout << cases << " expressions, " << defined << " values compared, first seed " << seed << "\n";
  EXPECT_GT(defined, cases * kSamples / 2);
}

}  // namespace
}  // namespace kiln
