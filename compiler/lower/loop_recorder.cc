#include "compiler/lower/loop_recorder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/expr_leaves.h"
#include "compiler/graph/expr_proofs.h"
#include "compiler/ir/reduce_kinds.h"
#include "compiler/ir/scalar_ops.h"
#include "compiler/passes/types.h"
#include "compiler/support/compiler_limits.h"

namespace kiln {
namespace {

uint64_t BitsOf(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

bool IsConstant(const LoopBody& body, LoopOpId id) { return body.op(id).op == LoopOpcode::kConstant; }

int64_t IntValue(const LoopBody& body, LoopOpId id) { return static_cast<int64_t>(body.op(id).bits); }

double FloatValue(const LoopBody& body, LoopOpId id) {
  const LoopOpData& op = body.op(id);
  if (!IsFloat(op.dtype)) return static_cast<double>(static_cast<int64_t>(op.bits));
  double value;
  std::memcpy(&value, &op.bits, sizeof value);
  return value;
}

bool IsConstantValue(const LoopBody& body, LoopOpId id, double value) {
  return IsConstant(body, id) && FloatValue(body, id) == value &&
         std::signbit(FloatValue(body, id)) == std::signbit(value);
}

// Choices between exact values, and their signs, are exact.
bool IsExact(const LoopBody& body, LoopOpId value, v1::DType dtype, int depth) {
  const LoopOpData& op = body.op(value);
  const auto arg_is_exact = [&](size_t k) {
    return depth > 0 && IsExact(body, op.args[k], dtype, depth - 1);
  };
  switch (op.op) {
    case LoopOpcode::kConstant: {
      const double number = FloatValue(body, value);
      return std::isnan(number) || RoundedNumber(number, dtype) == number;
    }
    case LoopOpcode::kCast:
      return body.op(op.args[0]).dtype == dtype || body.op(op.args[0]).dtype == v1::BOOL;
    case LoopOpcode::kSign: return true;
    case LoopOpcode::kNeg:
    case LoopOpcode::kAbs: return arg_is_exact(0);
    case LoopOpcode::kMaximum:
    case LoopOpcode::kMinimum: return arg_is_exact(0) && arg_is_exact(1);
    case LoopOpcode::kWhere: return arg_is_exact(1) && arg_is_exact(2);
    default: return false;
  }
}

// What needs no operator of its own; nullopt: it does.
std::optional<LoopOpId> FoldBinary(LoopRecorder& ops, LoopOpcode op, LoopOpId a, LoopOpId b) {
  const LoopBody& body = ops.body();
  ExprPool& exprs = ops.exprs();
  const v1::DType type = ops.dtype(a);
  const bool real = IsFloat(type);
  if (IsConstant(body, a) && IsConstant(body, b) && type != v1::BOOL) {
    const double x = FloatValue(body, a), y = FloatValue(body, b);
    const uint64_t i = static_cast<uint64_t>(IntValue(body, a)), j = static_cast<uint64_t>(IntValue(body, b));
    switch (op) {
      case LoopOpcode::kAdd:
        return real ? ops.Constant(x + y, type) : ops.ConstantInt(static_cast<int64_t>(i + j), type);
      case LoopOpcode::kSub:
        return real ? ops.Constant(x - y, type) : ops.ConstantInt(static_cast<int64_t>(i - j), type);
      case LoopOpcode::kMul:
        return real ? ops.Constant(x * y, type) : ops.ConstantInt(static_cast<int64_t>(i * j), type);
      case LoopOpcode::kDiv: return ops.Constant(x / y, type);
      default: break;
    }
  }
  // Sums and multiples of index expressions stay index expressions: they can index without a check. An
  // expression's arithmetic is exact and an integer's wraps, so only where it is known not to.
  const auto as_expr = [&](LoopOpId id) -> std::optional<ExprId> {
    if (type != v1::I64) return std::nullopt;
    if (body.op(id).op == LoopOpcode::kIndexExpr) return body.op(id).index;
    if (IsConstant(body, id)) return exprs.Const(IntValue(body, id));
    return std::nullopt;
  };
  const auto x = as_expr(a), y = as_expr(b);
  if (x.has_value() && y.has_value()) {
    std::optional<ExprId> exact;
    if (op == LoopOpcode::kAdd) exact = exprs.Add(*x, *y);
    if (op == LoopOpcode::kSub) exact = exprs.Sub(*x, *y);
    if (op == LoopOpcode::kMul && (IsConstant(body, a) || IsConstant(body, b))) exact = exprs.Mul(*x, *y);
    if (exact.has_value() && exprs.FitsInt64(*exact)) return ops.IndexExpr(*exact);
  }
  switch (op) {
    case LoopOpcode::kAdd:  // x + -0.0 is x for every x; x + 0.0 is not for -0.0
      if (type == v1::BOOL) break;
      if (IsConstantValue(body, b, real ? -0.0 : 0)) return a;
      if (IsConstantValue(body, a, real ? -0.0 : 0)) return b;
      break;
    case LoopOpcode::kSub:
      if (IsConstantValue(body, b, 0)) return a;
      break;
    case LoopOpcode::kMul:
      if (type == v1::BOOL) break;
      if (IsConstantValue(body, b, 1)) return a;
      if (IsConstantValue(body, a, 1)) return b;
      break;
    case LoopOpcode::kDiv:
      if (IsConstantValue(body, b, 1)) return a;
      break;
    default: break;
  }
  return std::nullopt;
}

// An op of another body, as it is where the masks of `ops` are on.
LoopOpData Masked(LoopRecorder& ops, LoopOpData op) {
  const std::optional<LoopOpId> mask = ops.mask();
  if (!mask.has_value()) return op;
  switch (op.op) {
    case LoopOpcode::kLoad:
    case LoopOpcode::kCheckIndex: {
      const size_t mask_arg = op.op == LoopOpcode::kLoad ? 0 : 1;
      if (op.args.size() > mask_arg) {
        op.args[mask_arg] = ops.And(*mask, op.args[mask_arg]);
      } else {
        op.args.push_back(*mask);
      }
      return op;
    }
    default:
      // Where the mask is off a loaded divisor is 0, which is nobody's error.
      if (IsIntegerDivision(op.op) && !IsFloat(op.dtype) && !IsConstant(ops.body(), op.args[1]))
        op.args[1] = ops.Where(*mask, op.args[1], ops.ConstantInt(1, op.dtype));
      return op;
  }
}

}  // namespace

v1::DType ComputeType(v1::DType dtype) { return IsHalf(dtype) ? v1::F32 : dtype; }

LoopOpId LoopRecorder::Fail(absl::string_view what) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(what);
  return ConstantInt(0);
}

LoopOpId LoopRecorder::Make(LoopOpcode op, v1::DType dtype, absl::Span<const LoopOpId> args, uint32_t mode) {
  LoopOpData data;
  data.op = op;
  data.dtype = dtype;
  data.args.assign(args.begin(), args.end());
  data.mode = mode;
  return body_.Add(std::move(data));
}

LoopOpId LoopRecorder::Constant(double value, v1::DType dtype) {
  if (!IsFloat(dtype)) {
    const bool representable = value >= -0x1p63 && value < 0x1p63;
    if (dtype == v1::BOOL) return ConstantInt(value != 0, dtype);
    return ConstantInt(representable ? static_cast<int64_t>(value) : INT64_MIN, dtype);
  }
  LoopOpData data;
  data.op = LoopOpcode::kConstant;
  data.dtype = ComputeType(dtype);
  data.bits = BitsOf(data.dtype == v1::F32 ? static_cast<double>(static_cast<float>(value)) : value);
  return body_.Add(std::move(data));
}

LoopOpId LoopRecorder::ConstantInt(int64_t value, v1::DType dtype) {
  if (IsFloat(dtype)) return Constant(static_cast<double>(value), dtype);
  LoopOpData data;
  data.op = LoopOpcode::kConstant;
  data.dtype = dtype;
  data.bits = static_cast<uint64_t>(WrapInteger(dtype, value));
  return body_.Add(std::move(data));
}

LoopOpId LoopRecorder::IndexExpr(ExprId value) {
  if (auto known = exprs_.AsConst(value)) return ConstantInt(*known);
  LoopOpData data;
  data.op = LoopOpcode::kIndexExpr;
  data.dtype = v1::I64;
  data.index = value;
  return body_.Add(std::move(data));
}

LoopOpId LoopRecorder::Load(BufferId buffer, v1::DType dtype, ExprId index) {
  LoopOpData data;
  data.op = LoopOpcode::kLoad;
  data.dtype = dtype;
  data.buffer = buffer;
  data.index = index;
  if (!masks_.empty()) data.args.push_back(masks_.back());
  const LoopOpId loaded = body_.Add(std::move(data));
  return Cast(loaded, ComputeType(dtype));
}

void LoopRecorder::Store(BufferId buffer, v1::DType dtype, ExprId index, LoopOpId value, v1::StoreMode mode) {
  if (this->dtype(value) != dtype) {
    value = ComputeType(dtype) == dtype ? Cast(value, dtype) : Narrow(Cast(value, v1::F32), dtype);
  }
  LoopOpData data;
  data.op = LoopOpcode::kStore;
  data.dtype = dtype;
  data.args.push_back(value);
  if (!masks_.empty()) data.args.push_back(masks_.back());
  data.buffer = buffer;
  data.index = index;
  data.mode = mode;
  body_.Add(std::move(data));
}

ExprId LoopRecorder::CheckedIndex(LoopOpId value, ExprId size, v1::IndexMode mode) {
  value = Cast(value, v1::I64);
  const LoopOpData& op = body_.op(value);
  if (op.op == LoopOpcode::kIndexExpr && exprs_.Range(op.index).min >= 0 &&
      ProvablyLess(exprs_, op.index, size)) {
    return op.index;
  }
  if (op.op == LoopOpcode::kConstant) {
    const int64_t known = IntValue(body_, value);
    const bool wraps = known < 0 && mode == v1::INDEX_FROM_EITHER_END;
    const ExprId wrapped = wraps ? exprs_.Add(size, exprs_.Const(known)) : exprs_.Const(known);
    if (exprs_.Range(wrapped).min >= 0 && ProvablyLess(exprs_, wrapped, size)) return wrapped;
  }
  LoopOpData check;
  check.op = LoopOpcode::kCheckIndex;
  check.dtype = v1::I64;
  check.args.push_back(value);
  if (!masks_.empty()) check.args.push_back(masks_.back());
  check.index = size;
  check.mode = mode;
  return exprs_.Indirect(body_.Add(std::move(check)), size);
}

void LoopRecorder::OpenMask(LoopOpId mask) {
  masks_.push_back(masks_.empty() ? mask : And(masks_.back(), mask));
}

void LoopRecorder::CloseMask() { masks_.pop_back(); }

LoopOpId LoopRecorder::Cast(LoopOpId value, v1::DType dtype) {
  const LoopOpData& op = body_.op(value);
  if (op.dtype == dtype) return value;
  if (op.op == LoopOpcode::kConstant) {
    return IsFloat(op.dtype) ? Constant(FloatValue(body_, value), dtype)
                             : ConstantInt(IntValue(body_, value), dtype);
  }
  // BOOL through another type and back is itself.
  if (op.op == LoopOpcode::kCast && dtype == v1::BOOL && this->dtype(op.args[0]) == v1::BOOL)
    return op.args[0];
  return Make(LoopOpcode::kCast, dtype, {value});
}

LoopOpId LoopRecorder::Narrow(LoopOpId value, v1::DType dtype) {
  const LoopOpData& op = body_.op(value);
  if (op.op == LoopOpcode::kCast && this->dtype(op.args[0]) == dtype) return op.args[0];
  return Make(LoopOpcode::kCast, dtype, {value});
}

LoopOpId LoopRecorder::RoundTo(LoopOpId value, v1::DType dtype) {
  if (ComputeType(dtype) == dtype) return Cast(value, dtype);
  if (IsConstant(body_, value)) return Constant(RoundedNumber(FloatValue(body_, value), dtype), v1::F32);
  if (IsExact(body_, value, dtype, kExactDepthMax)) return value;
  return Make(LoopOpcode::kCast, ComputeType(dtype), {Narrow(value, dtype)});
}

LoopOpId LoopRecorder::Bitcast(LoopOpId value, v1::DType dtype) {
  if (this->dtype(value) == dtype) return value;
  return Make(LoopOpcode::kBitcast, dtype, {value});
}

LoopOpId LoopRecorder::Unary(LoopOpcode op, LoopOpId a) {
  const LoopOpInfo& info = InfoOf(op);
  if (info.op_class == LoopOpClass::kCompare) return Make(op, v1::BOOL, {a});
  if (info.op_class == LoopOpClass::kFloat && !IsFloat(dtype(a))) {
    return Fail(absl::StrCat(info.name, " of ", DTypeName(dtype(a))));
  }
  if (op == LoopOpcode::kNeg && IsConstant(body_, a)) {
    return IsFloat(dtype(a))
               ? Constant(-FloatValue(body_, a), dtype(a))
               : ConstantInt(static_cast<int64_t>(-static_cast<uint64_t>(IntValue(body_, a))), dtype(a));
  }
  return Make(op, dtype(a), {a});
}

LoopOpId LoopRecorder::Binary(LoopOpcode op, LoopOpId a, LoopOpId b) {
  const LoopOpInfo& info = InfoOf(op);
  if (dtype(a) != dtype(b)) {
    return Fail(absl::StrCat(info.name, " of ", DTypeName(dtype(a)), " and ", DTypeName(dtype(b))));
  }
  if (info.op_class == LoopOpClass::kFloat && !IsFloat(dtype(a))) {
    return Fail(absl::StrCat(info.name, " of ", DTypeName(dtype(a))));
  }
  if (info.op_class == LoopOpClass::kInteger && IsFloat(dtype(a))) {
    return Fail(absl::StrCat(info.name, " of ", DTypeName(dtype(a))));
  }
  const std::optional<LoopOpId> folded = FoldBinary(*this, op, a, b);
  return folded.has_value() ? *folded : Make(op, dtype(a), {a, b});
}

LoopOpId LoopRecorder::Compare(LoopOpcode op, LoopOpId a, LoopOpId b) {
  if (dtype(a) != dtype(b)) {
    return Fail(absl::StrCat(InfoOf(op).name, " of ", DTypeName(dtype(a)), " and ", DTypeName(dtype(b))));
  }
  if (op == LoopOpcode::kEq && IsInteger(dtype(a)) && IsConstant(body_, a) && IsConstant(body_, b)) {
    return ConstantInt(IntValue(body_, a) == IntValue(body_, b), v1::BOOL);
  }
  return Make(op, v1::BOOL, {a, b});
}

LoopOpId LoopRecorder::Where(LoopOpId condition, LoopOpId a, LoopOpId b) {
  if (dtype(a) != dtype(b)) {
    return Fail(absl::StrCat("where of ", DTypeName(dtype(a)), " and ", DTypeName(dtype(b))));
  }
  condition = Cast(condition, v1::BOOL);
  if (a == b) return a;
  if (IsConstant(body_, condition)) return IntValue(body_, condition) != 0 ? a : b;
  return Make(LoopOpcode::kWhere, dtype(a), {condition, a, b});
}

LoopOpId LoopRecorder::And(LoopOpId a, LoopOpId b) {
  a = Cast(a, v1::BOOL);
  b = Cast(b, v1::BOOL);
  if (a == b) return a;
  if (IsConstant(body_, a)) return IntValue(body_, a) != 0 ? b : a;
  if (IsConstant(body_, b)) return IntValue(body_, b) != 0 ? a : b;
  return Make(LoopOpcode::kLogicalAnd, v1::BOOL, {a, b});
}

LoopOpId LoopRecorder::Or(LoopOpId a, LoopOpId b) {
  a = Cast(a, v1::BOOL);
  b = Cast(b, v1::BOOL);
  if (a == b) return a;
  if (IsConstant(body_, a)) return IntValue(body_, a) != 0 ? a : b;
  if (IsConstant(body_, b)) return IntValue(body_, b) != 0 ? b : a;
  return Make(LoopOpcode::kLogicalOr, v1::BOOL, {a, b});
}

LoopOpId LoopRecorder::Not(LoopOpId a) {
  a = Cast(a, v1::BOOL);
  if (IsConstant(body_, a)) return ConstantInt(IntValue(body_, a) == 0, v1::BOOL);
  const LoopOpData& op = body_.op(a);
  if (op.op == LoopOpcode::kLogicalNot) return op.args[0];
  return Make(LoopOpcode::kLogicalNot, v1::BOOL, {a});
}

LoopOpId LoopRecorder::Reduce(v1::ReduceKind kind, LoopOpId value) {
  return Make(LoopOpcode::kReduce, IsArgReduce(kind) ? v1::I64 : dtype(value), {value}, kind);
}

LoopOpId LoopRecorder::Scan(v1::ReduceKind kind, LoopOpId value) {
  return Make(LoopOpcode::kScan, dtype(value), {value}, kind);
}

LoopOpId LoopRecorder::RandBits(LoopOpId seed, LoopOpId flat_index, LoopOpId op_number) {
  return Make(LoopOpcode::kRandBits, v1::I64, {seed, flat_index, op_number});
}

LoopOpId LoopRecorder::Inline(absl::Span<const LoopOpData> ops, LoopOpId result,
                              absl::Span<const ExprId> vars, absl::Span<const ExprId> index) {
  if (vars.size() != index.size()) return Fail("an index of the wrong rank");
  std::vector<LoopOpId> copies(ops.size());
  const bool same_index = std::equal(vars.begin(), vars.end(), index.begin());
  bool same_ids = true;  // every op so far kept its id, so EXPR_INDIRECT leaves still name the same ops
  absl::flat_hash_map<ExprId, ExprId> memo;
  auto replace = [&](ExprId leaf) -> ExprId {
    const ExprNode& node = exprs_.node(leaf);
    if (node.op == v1::EXPR_VAR) {
      for (size_t i = 0; i < vars.size(); ++i) {
        if (vars[i] == leaf) return index[i];
      }
      return leaf;
    }
    if (node.op != v1::EXPR_INDIRECT) return leaf;
    const LoopOpId old = static_cast<LoopOpId>(node.value);
    if (old >= ops.size() || copies[old] == old) return leaf;
    return exprs_.Indirect(copies[old], ops[old].index);
  };
  auto map_expr = [&](ExprId expr) {
    if (same_index && same_ids) return expr;
    auto [it, fresh] = memo.try_emplace(expr, expr);
    if (!fresh) return it->second;
    const ExprId mapped = Substitute(exprs_, expr, replace);
    memo[expr] = mapped;
    return mapped;
  };
  for (LoopOpId id = 0; id <= result && id < ops.size(); ++id) {
    LoopOpData op = ops[id];
    for (LoopOpId& arg : op.args) arg = copies[arg];
    if (op.op == LoopOpcode::kIndexExpr) {
      copies[id] = IndexExpr(map_expr(op.index));
    } else {
      if (op.op == LoopOpcode::kLoad || op.op == LoopOpcode::kCheckIndex) op.index = map_expr(op.index);
      copies[id] = body_.Add(Masked(*this, std::move(op)));
    }
    same_ids = same_ids && copies[id] == id;
  }
  return copies[result];
}

std::vector<uint32_t> LoopRecorder::TakeOrigins() {
  std::sort(origins_.begin(), origins_.end());
  origins_.erase(std::unique(origins_.begin(), origins_.end()), origins_.end());
  return std::move(origins_);
}

LoopOpId IndexLess(LoopRecorder& ops, ExprId a, ExprId b) {
  if (ProvablyLess(ops.exprs(), a, b)) return ops.True();
  if (ProvablyLessEqual(ops.exprs(), b, a)) return ops.ConstantInt(0, v1::BOOL);
  return ops.Compare(LoopOpcode::kLt, ops.IndexExpr(a), ops.IndexExpr(b));
}

LoopOpId IndexEqual(LoopRecorder& ops, ExprId a, ExprId b) {
  if (ProvablyEqual(ops.exprs(), a, b)) return ops.True();
  if (ProvablyLess(ops.exprs(), a, b) || ProvablyLess(ops.exprs(), b, a)) return ops.ConstantInt(0, v1::BOOL);
  return ops.Compare(LoopOpcode::kEq, ops.IndexExpr(a), ops.IndexExpr(b));
}

}  // namespace kiln
