#include "compiler/graph/expr_eval.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/expr.h"
#include "compiler/graph/expr_algebra.h"
#include "compiler/graph/expr_leaves.h"

namespace kiln {
namespace {

// Partial sums and products may leave int64 as long as the result comes back.
template <typename Combine>
ExprValue Fold(absl::Span<const ExprValue> args, __int128 start, Combine combine) {
  __int128 total = start;
  for (ExprValue arg : args) {
    if (!arg || combine(total, static_cast<__int128>(*arg), &total)) return std::nullopt;
  }
  if (total < INT64_MIN || total > INT64_MAX) return std::nullopt;
  return static_cast<int64_t>(total);
}

ExprValue Power(int64_t base, int64_t exponent) {
  if (exponent < 0) return std::nullopt;
  if (exponent == 0 || base == 1) return 1;
  if (base == 0) return 0;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  if (exponent >= 64) return std::nullopt;
  int64_t power = 1;
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(power, base, &power)) return std::nullopt;
  }
  return power;
}

}  // namespace

int64_t EstimateOfSymbol(absl::Span<const v1::Symbol> symbols, int64_t symbol) {
  int64_t estimate = kSymbolEstimate;
  if (symbol < 0 || static_cast<size_t>(symbol) >= symbols.size()) return estimate;
  const v1::Symbol& range = symbols[static_cast<size_t>(symbol)];
  estimate = std::max(estimate, range.min());
  return range.max() >= range.min() ? std::min(estimate, range.max()) : estimate;
}

bool ExprArityIsValid(v1::ExprOp op, size_t args) {
  switch (op) {
    case v1::EXPR_CONST:
    case v1::EXPR_SYMBOL:
    case v1::EXPR_VAR:
    case v1::EXPR_INDIRECT: return args == 0;
    case v1::EXPR_ADD:
    case v1::EXPR_MUL: return args >= 2;
    case v1::EXPR_NOT: return args == 1;
    case v1::EXPR_WHERE: return args == 3;
    case v1::EXPR_FLOORDIV:
    case v1::EXPR_MOD:
    case v1::EXPR_MIN:
    case v1::EXPR_MAX:
    case v1::EXPR_CEILDIV:
    case v1::EXPR_POW:
    case v1::EXPR_EQ:
    case v1::EXPR_NE:
    case v1::EXPR_LT:
    case v1::EXPR_LE:
    case v1::EXPR_AND:
    case v1::EXPR_OR: return args == 2;
    default: return false;
  }
}

ExprValue ApplyExprOp(v1::ExprOp op, absl::Span<const ExprValue> args) {
  switch (op) {
    case v1::EXPR_ADD:
      return Fold(args, 0,
                  [](__int128 x, __int128 y, __int128* z) { return __builtin_add_overflow(x, y, z); });
    case v1::EXPR_MUL:
      return Fold(args, 1,
                  [](__int128 x, __int128 y, __int128* z) { return __builtin_mul_overflow(x, y, z); });
    case v1::EXPR_WHERE:
      if (!args[0]) return std::nullopt;
      return *args[0] != 0 ? args[1] : args[2];
    case v1::EXPR_AND:
      if (args[0] == 0 || args[1] == 0) return 0;
      break;
    case v1::EXPR_OR:
      if ((args[0] && args[0] != 0) || (args[1] && args[1] != 0)) return 1;
      break;
    default: break;
  }
  for (ExprValue arg : args) {
    if (!arg) return std::nullopt;
  }
  int64_t a = *args[0], b = args.size() > 1 ? *args[1] : 0;
  switch (op) {
    case v1::EXPR_FLOORDIV:
      if (b == 0 || (a == INT64_MIN && b == -1)) return std::nullopt;
      return FloorDivInt(a, b);
    case v1::EXPR_MOD:
      if (b == 0) return std::nullopt;
      return FloorModInt(a, b);
    case v1::EXPR_CEILDIV:
      if (b == 0 || a == INT64_MIN) return std::nullopt;
      return -FloorDivInt(-a, b);
    case v1::EXPR_MIN: return std::min(a, b);
    case v1::EXPR_MAX: return std::max(a, b);
    case v1::EXPR_POW: return Power(a, b);
    case v1::EXPR_EQ: return a == b;
    case v1::EXPR_NE: return a != b;
    case v1::EXPR_LT: return a < b;
    case v1::EXPR_LE: return a <= b;
    case v1::EXPR_AND: return 1;
    case v1::EXPR_OR: return 0;
    case v1::EXPR_NOT: return a == 0;
    default: return std::nullopt;
  }
}

absl::StatusOr<int64_t> ExprPool::Evaluate(ExprId id,
                                           absl::FunctionRef<int64_t(const ExprNode& leaf)> value) const {
  if (std::optional<int64_t> constant = AsConst(id)) return *constant;
  absl::flat_hash_map<ExprId, ExprValue> values;
  absl::InlinedVector<ExprValue, 8> args;
  for (ExprId at : ReachableExprs(*this, id, /*extents=*/false)) {
    const ExprNode& node = nodes_[at];
    ExprValue result;
    if (node.op == v1::EXPR_CONST) {
      result = node.value;
    } else if (node.args.empty()) {
      result = value(node);
    } else {
      args.clear();
      for (ExprId arg : node.args) args.push_back(values.at(arg));
      result = ApplyExprOp(node.op, args);
    }
    values[at] = result;
  }
  ExprValue result = values.at(id);
  if (!result) {
    return absl::OutOfRangeError(absl::StrCat("overflow or division by zero in ", ToString(id)));
  }
  return *result;
}

}  // namespace kiln
