#include "compiler/graph/expr.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compiler/graph/expr_algebra.h"
#include "compiler/graph/expr_proofs.h"
#include "compiler/support/compiler_limits.h"

namespace kiln {
namespace {

// Content hashes must be the same in every process, so not absl's.
uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2))) * 0xbf58476d1ce4e5b9u;
  x ^= x >> 29;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 32);
}

constexpr ExprRange kBooleanRange{0, 1};

// id != 0
ExprId Truth(ExprPool& pool, ExprId id) {
  const ExprRange range = pool.Range(id);
  return range.min >= 0 && range.max <= 1 ? id : pool.Ne(id, kZeroExpr);
}

}  // namespace

ExprPool::ExprPool() {
  Intern(v1::EXPR_CONST, 0, {}, {0, 0});
  Intern(v1::EXPR_CONST, 1, {}, {1, 1});
}

ExprId ExprPool::Intern(v1::ExprOp op, int64_t value, absl::Span<const ExprId> args, ExprRange range,
                        std::optional<ExprId> extent) {
  uint64_t hash = Mix(static_cast<uint64_t>(op), static_cast<uint64_t>(value));
  if (extent.has_value()) hash = Mix(hash, hashes_[*extent]);
  for (ExprId arg : args) hash = Mix(hash, hashes_[arg]);
  auto& bucket = index_[hash];
  for (ExprId id : bucket) {
    const ExprNode& node = nodes_[id];
    if (node.op == op && node.value == value && absl::MakeConstSpan(node.args) == args &&
        (!extent.has_value() || extents_.at(id) == *extent)) {
      return id;
    }
  }
  if (nodes_.size() >= kExprNodesMax || total_args_ + args.size() > kAllExprArgsMax) {
    status_ = absl::InvalidArgumentError(absl::StrCat("symbolic expressions of more than ", kExprNodesMax,
                                                      " parts or ", kAllExprArgsMax, " arguments"));
    return kZeroExpr;
  }
  ExprId id = static_cast<ExprId>(nodes_.size());
  bucket.push_back(id);
  ExprNode node{op, value, {}};
  node.args.assign(args.begin(), args.end());
  nodes_.push_back(std::move(node));
  ranges_.push_back(range);
  hashes_.push_back(hash);
  total_args_ += args.size();
  return id;
}

ExprId ExprPool::Const(int64_t value) { return Intern(v1::EXPR_CONST, value, {}, {value, value}); }

ExprId ExprPool::Symbol(uint32_t symbol, ExprRange range) {
  if (range.min == range.max) return Const(range.min);
  return Intern(v1::EXPR_SYMBOL, symbol, {}, range);
}

ExprId ExprPool::Leaf(v1::ExprOp op, int64_t value, ExprId extent) {
  // A loop of a length that is not known goes over a tensor, which has no more elements than that.
  int64_t most = ranges_[extent].max;
  if (!AsConst(extent)) most = std::min(most, kTensorBytesMax);
  // One number with two extents is two leaves: the ops of different bodies share their numbers.
  ExprId id = Intern(op, value, {}, {0, std::max<int64_t>(most - 1, 0)}, extent);
  extents_.emplace(id, extent);
  return id;
}

ExprId ExprPool::Var(uint32_t var, ExprId extent) { return Leaf(v1::EXPR_VAR, var, extent); }
ExprId ExprPool::Indirect(uint32_t op, ExprId extent) { return Leaf(v1::EXPR_INDIRECT, op, extent); }

std::optional<ExprId> ExprPool::Extent(ExprId leaf) const {
  auto found = extents_.find(leaf);
  if (found == extents_.end()) return std::nullopt;
  return found->second;
}

std::optional<int64_t> ExprPool::AsConst(ExprId id) const {
  if (nodes_[id].op != v1::EXPR_CONST) return std::nullopt;
  return nodes_[id].value;
}

ExprId ExprPool::Sum(absl::Span<const ExprId> terms) { return ExprAlgebra(this).Sum(terms); }

ExprId ExprPool::Add(ExprId a, ExprId b) {
  if (a == kZeroExpr) return b;
  if (b == kZeroExpr) return a;
  return Sum({a, b});
}

ExprId ExprPool::Neg(ExprId a) { return Mul(Const(-1), a); }

ExprId ExprPool::Sub(ExprId a, ExprId b) {
  if (a == b) return kZeroExpr;
  return Add(a, Neg(b));
}

ExprId ExprPool::Mul(ExprId a, ExprId b) { return ExprAlgebra(this).Multiply(a, b); }

ExprId ExprPool::Product(absl::Span<const ExprId> factors) {
  ExprId product = kUnitBase;
  for (ExprId factor : factors) product = Mul(product, factor);
  return product;
}

ExprId ExprPool::FloorDiv(ExprId a, ExprId b) { return ExprAlgebra(this).FloorDiv(a, b); }
ExprId ExprPool::Mod(ExprId a, ExprId b) { return ExprAlgebra(this).Mod(a, b); }

ExprId ExprPool::CeilDiv(ExprId a, ExprId b) {
  if (ranges_[b].min >= 0 && AsConst(b) != 0) return FloorDiv(Add(a, Sub(b, kUnitBase)), b);
  return Neg(FloorDiv(Neg(a), b));
}

ExprId ExprPool::Min(ExprId a, ExprId b) {
  if (a == b || ProvablyLessEqual(*this, a, b)) return a;
  if (ProvablyLessEqual(*this, b, a)) return b;
  ExprRange x = ranges_[a], y = ranges_[b];
  if (hashes_[a] > hashes_[b]) std::swap(a, b);
  return Intern(v1::EXPR_MIN, 0, {a, b}, {std::min(x.min, y.min), std::min(x.max, y.max)});
}

ExprId ExprPool::Max(ExprId a, ExprId b) {
  if (a == b || ProvablyLessEqual(*this, a, b)) return b;
  if (ProvablyLessEqual(*this, b, a)) return a;
  ExprRange x = ranges_[a], y = ranges_[b];
  if (hashes_[a] > hashes_[b]) std::swap(a, b);
  return Intern(v1::EXPR_MAX, 0, {a, b}, {std::max(x.min, y.min), std::max(x.max, y.max)});
}

ExprId ExprPool::Pow(ExprId a, ExprId b) {
  constexpr int64_t kUnrolledMax = 8;
  std::optional<int64_t> exponent = AsConst(b);
  if (exponent == 0) return kUnitBase;
  if (exponent && *exponent > 0 && *exponent <= kUnrolledMax) {
    ExprId power = a;
    for (int64_t i = 1; i < *exponent; ++i) power = Mul(power, a);
    return power;
  }
  if (std::optional<int64_t> base = AsConst(a); base && exponent && *exponent > 0) {
    if (*base == 0 || *base == 1) return a;
    if (*base == -1) return *exponent % 2 == 0 ? kUnitBase : a;
    if (*exponent < 64) {
      int64_t power = 1;
      bool fits = true;
      for (int64_t i = 0; i < *exponent && fits; ++i) fits = !__builtin_mul_overflow(power, *base, &power);
      if (fits) return Const(power);
    }
  }
  ExprRange range;
  if (ranges_[a].min >= 0) range.min = 0;
  return Intern(v1::EXPR_POW, 0, {a, b}, range);
}

ExprId ExprPool::Where(ExprId condition, ExprId a, ExprId b) {
  ExprRange c = ranges_[condition];
  if (c.min > 0 || c.max < 0) return a;
  if (c.IsPoint()) return b;
  if (a == b) return a;
  ExprRange x = ranges_[a], y = ranges_[b];
  return Intern(v1::EXPR_WHERE, 0, {condition, a, b}, {std::min(x.min, y.min), std::max(x.max, y.max)});
}

ExprId ExprPool::Eq(ExprId a, ExprId b) {
  if (a == b) return kUnitBase;
  if (ProvablyEqual(*this, a, b)) return kUnitBase;
  if (ProvablyLess(*this, a, b) || ProvablyLess(*this, b, a)) return kZeroExpr;
  if (hashes_[a] > hashes_[b]) std::swap(a, b);
  return Intern(v1::EXPR_EQ, 0, {a, b}, kBooleanRange);
}

ExprId ExprPool::Ne(ExprId a, ExprId b) {
  if (a == b) return kZeroExpr;
  if (ProvablyEqual(*this, a, b)) return kZeroExpr;
  if (ProvablyLess(*this, a, b) || ProvablyLess(*this, b, a)) return kUnitBase;
  if (hashes_[a] > hashes_[b]) std::swap(a, b);
  return Intern(v1::EXPR_NE, 0, {a, b}, kBooleanRange);
}

ExprId ExprPool::Lt(ExprId a, ExprId b) {
  if (ProvablyLess(*this, a, b)) return kUnitBase;
  if (ProvablyLessEqual(*this, b, a)) return kZeroExpr;
  return Intern(v1::EXPR_LT, 0, {a, b}, kBooleanRange);
}

ExprId ExprPool::Le(ExprId a, ExprId b) {
  if (ProvablyLessEqual(*this, a, b)) return kUnitBase;
  if (ProvablyLess(*this, b, a)) return kZeroExpr;
  return Intern(v1::EXPR_LE, 0, {a, b}, kBooleanRange);
}

ExprId ExprPool::And(ExprId a, ExprId b) {
  a = Truth(*this, a);
  b = Truth(*this, b);
  if (a == kZeroExpr || b == kZeroExpr) return kZeroExpr;
  if (a == kUnitBase || a == b) return b;
  if (b == kUnitBase) return a;
  return Intern(v1::EXPR_AND, 0, {a, b}, kBooleanRange);
}

ExprId ExprPool::Or(ExprId a, ExprId b) {
  a = Truth(*this, a);
  b = Truth(*this, b);
  if (a == kUnitBase || b == kUnitBase) return kUnitBase;
  if (a == kZeroExpr || a == b) return b;
  if (b == kZeroExpr) return a;
  return Intern(v1::EXPR_OR, 0, {a, b}, kBooleanRange);
}

ExprId ExprPool::Not(ExprId a) {
  if (a == kZeroExpr) return kUnitBase;
  ExprRange range = ranges_[a];
  if (range.min > 0 || range.max < 0) return kZeroExpr;
  ExprNode node = nodes_[a];
  switch (node.op) {
    case v1::EXPR_EQ: return Ne(node.args[0], node.args[1]);
    case v1::EXPR_NE: return Eq(node.args[0], node.args[1]);
    case v1::EXPR_LT: return Le(node.args[1], node.args[0]);
    case v1::EXPR_LE: return Lt(node.args[1], node.args[0]);
    case v1::EXPR_NOT: return Truth(*this, node.args[0]);
    default: return Intern(v1::EXPR_NOT, 0, {a}, kBooleanRange);
  }
}

ExprId ExprPool::Apply(v1::ExprOp op, absl::Span<const ExprId> args) {
  switch (op) {
    case v1::EXPR_ADD: return Sum(args);
    case v1::EXPR_MUL: return Product(args);
    case v1::EXPR_FLOORDIV: return FloorDiv(args[0], args[1]);
    case v1::EXPR_MOD: return Mod(args[0], args[1]);
    case v1::EXPR_MIN: return Min(args[0], args[1]);
    case v1::EXPR_MAX: return Max(args[0], args[1]);
    case v1::EXPR_CEILDIV: return CeilDiv(args[0], args[1]);
    case v1::EXPR_POW: return Pow(args[0], args[1]);
    case v1::EXPR_WHERE: return Where(args[0], args[1], args[2]);
    case v1::EXPR_EQ: return Eq(args[0], args[1]);
    case v1::EXPR_NE: return Ne(args[0], args[1]);
    case v1::EXPR_LT: return Lt(args[0], args[1]);
    case v1::EXPR_LE: return Le(args[0], args[1]);
    case v1::EXPR_AND: return And(args[0], args[1]);
    case v1::EXPR_OR: return Or(args[0], args[1]);
    case v1::EXPR_NOT: return Not(args[0]);
    default: break;
  }
  status_ = absl::InternalError("expression of an unknown operator");
  return kZeroExpr;
}

}  // namespace kiln
