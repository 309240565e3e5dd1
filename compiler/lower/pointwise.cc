// Operators that compute each element from the elements at the same (broadcast) index.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "compiler/lower/lowering_context.h"
#include "compiler/lower/node_arguments.h"
#include "compiler/lower/operands.h"
#include "compiler/passes/core_set.h"
#include "compiler/passes/types.h"
#include "compiler/target/device.h"

namespace kiln {
namespace {

// ---- unary (core_set.h), binary: one operator each

struct OpRow {
  Op target;
  LoopOpcode op;
};

constexpr OpRow kBinary[] = {
    {Op::kAddTensor, LoopOpcode::kAdd},
    {Op::kAddScalar, LoopOpcode::kAdd},
    {Op::kSubTensor, LoopOpcode::kSub},
    {Op::kSubScalar, LoopOpcode::kSub},
    {Op::kMulTensor, LoopOpcode::kMul},
    {Op::kMulScalar, LoopOpcode::kMul},
    {Op::kDivTensor, LoopOpcode::kDiv},
    {Op::kDivScalar, LoopOpcode::kDiv},
    {Op::kTrueDivideTensor, LoopOpcode::kDiv},
    {Op::kRemainderTensor, LoopOpcode::kRemainder},
    {Op::kRemainderScalar, LoopOpcode::kRemainder},
    {Op::kRemainderScalarTensor, LoopOpcode::kRemainder},
    {Op::kFmodTensor, LoopOpcode::kFmod},
    {Op::kFmodScalar, LoopOpcode::kFmod},
    {Op::kFloorDivide, LoopOpcode::kFloorDiv},
    {Op::kMaximum, LoopOpcode::kMaximum},
    {Op::kMinimum, LoopOpcode::kMinimum},
    {Op::kAtan2, LoopOpcode::kAtan2},
    {Op::kBitwiseAndTensor, LoopOpcode::kBitAnd},
    {Op::kBitwiseAndScalar, LoopOpcode::kBitAnd},
    {Op::kBitwiseOrTensor, LoopOpcode::kBitOr},
    {Op::kBitwiseOrScalar, LoopOpcode::kBitOr},
    {Op::kBitwiseXorTensor, LoopOpcode::kBitXor},
    {Op::kBitwiseXorScalar, LoopOpcode::kBitXor},
    {Op::kBitwiseLeftShiftTensor, LoopOpcode::kShiftLeft},
    {Op::kBitwiseLeftShiftTensorScalar, LoopOpcode::kShiftLeft},
    {Op::kBitwiseRightShiftTensor, LoopOpcode::kShiftRight},
    {Op::kBitwiseRightShiftTensorScalar, LoopOpcode::kShiftRight},
};

constexpr OpRow kCompare[] = {
    {Op::kEqTensor, LoopOpcode::kEq}, {Op::kEqScalar, LoopOpcode::kEq}, {Op::kNeTensor, LoopOpcode::kNe},
    {Op::kNeScalar, LoopOpcode::kNe}, {Op::kLtTensor, LoopOpcode::kLt}, {Op::kLtScalar, LoopOpcode::kLt},
    {Op::kLeTensor, LoopOpcode::kLe}, {Op::kLeScalar, LoopOpcode::kLe}, {Op::kGtTensor, LoopOpcode::kGt},
    {Op::kGtScalar, LoopOpcode::kGt}, {Op::kGeTensor, LoopOpcode::kGe}, {Op::kGeScalar, LoopOpcode::kGe},
};

constexpr OpRow kLogical[] = {
    {Op::kLogicalAnd, LoopOpcode::kLogicalAnd},
    {Op::kLogicalOr, LoopOpcode::kLogicalOr},
    {Op::kLogicalXor, LoopOpcode::kLogicalXor},
};

template <size_t n>
LoopOpcode OpOf(const OpRow (&rows)[n], const OperatorName& target) {
  for (const OpRow& row : rows) {
    if (target == row.target) return row.op;
  }
  return rows[0].op;
}

const Argument& Slot(LoweringContext& context, const GraphNode& node, absl::string_view name) {
  static const Argument* none = new Argument(NoneArg{});
  const Argument* argument = node.Find(name);
  if (argument != nullptr) return *argument;
  context.checks().Invalid(absl::StrCat("argument '", name, "' is missing"));
  return *none;
}

// Records the node's only result from its operands.
template <typename Fn>
absl::Status Record(LoweringContext& context, const GraphNode& node, Fn fn) {
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  context.SetResult(node, context.loops().Pointwise(
                              type, [&](LoopRecorder& ops, Index index) { return fn(ops, index, type); }));
  return context.status();
}

bool IsRounding(LoopOpcode op) {
  return op == LoopOpcode::kFloor || op == LoopOpcode::kCeil || op == LoopOpcode::kTrunc ||
         op == LoopOpcode::kRound;
}

absl::Status LowerUnary(LoweringContext& context, const GraphNode& node) {
  const LoopOpcode op = UnaryOperators().find(node.target)->second;
  const Argument& self = Slot(context, node, "self");
  return Record(context, node, [&](LoopRecorder& ops, Index index, const TensorType& type) {
    const LoopOpId x = Operand(context, ops, self, index, type.sizes, type.dtype);
    if (type.dtype == v1::BOOL) return x;  // abs and sign of a BOOL
    if (IsRounding(op) && !IsFloat(type.dtype)) return x;
    return ops.Unary(op, x);
  });
}

// BOOL operands of arithmetic that has no BOOL form.
LoopOpId BoolBinary(LoopRecorder& ops, LoopOpcode op, LoopOpId a, LoopOpId b) {
  switch (op) {
    case LoopOpcode::kAdd:
    case LoopOpcode::kMaximum:
    case LoopOpcode::kBitOr: return ops.Or(a, b);
    case LoopOpcode::kMul:
    case LoopOpcode::kMinimum:
    case LoopOpcode::kBitAnd: return ops.And(a, b);
    case LoopOpcode::kBitXor:
    case LoopOpcode::kSub: return ops.Compare(LoopOpcode::kNe, a, b);
    default: return ops.Fail(absl::StrCat(InfoOf(op).name, " of bool"));
  }
}

// A number, or a tensor of another dtype: what was not rounded to `dtype` where it was defined.
bool IsOfOtherType(const LoweringContext& context, const Argument& argument, v1::DType dtype) {
  const auto* tensor = std::get_if<TensorArg>(&argument);
  return tensor == nullptr || !context.IsDefined(tensor->value) ||
         context.value(tensor->value).dtype != dtype;
}

// Or a tensor of no dimension, which stands for one.
bool IsNumber(const LoweringContext& context, const Argument& argument) {
  const auto* tensor = std::get_if<TensorArg>(&argument);
  return tensor == nullptr || (context.IsDefined(tensor->value) && context.value(tensor->value).rank() == 0);
}

// Of F16 and BF16, eager computes with operands that were rounded to the result's dtype first: tensors of
// another dtype, numbers and tensors of no dimension, which stand for numbers. Not so a number that it
// multiplies or divides by, and none on a GPU but the divisor of a remainder.
bool RoundsOperand(const LoweringContext& context, LoopOpcode op, const Argument& argument, bool is_last,
                   const TensorType& type) {
  if (!IsNumber(context, argument)) return IsOfOtherType(context, argument, type.dtype);
  if (op == LoopOpcode::kRemainder || op == LoopOpcode::kFmod) return true;
  if (IsGpu(type.device)) return false;
  const bool scales = op == LoopOpcode::kMul || op == LoopOpcode::kDiv || op == LoopOpcode::kFloorDiv ||
                      op == LoopOpcode::kTruncDiv;
  return !(scales && is_last);
}

LoopOpId RoundedOperand(LoweringContext& context, LoopRecorder& ops, LoopOpcode op, const Argument& argument,
                        bool is_last, Index index, const TensorType& type) {
  const LoopOpId value = Operand(context, ops, argument, index, type.sizes, type.dtype);
  return RoundsOperand(context, op, argument, is_last, type) ? ops.RoundTo(value, type.dtype) : value;
}

// What eager's kernels on a GPU give for `a` by zero, whichever of the four: the quotient's bits are all set,
// of I64 the lower 32 alone where `a` has no others, and what was to be rounded down is one less.
LoopOpId ByZeroOnGpu(LoopRecorder& ops, LoopOpcode op, LoopOpId a) {
  const v1::DType dtype = ops.dtype(a);
  const LoopOpId ones = ops.Unary(LoopOpcode::kBitNot, ops.ConstantInt(0, dtype));
  if (IsUnsignedInteger(dtype)) return ones;
  const LoopOpId is_negative = ops.Compare(LoopOpcode::kLt, a, ops.ConstantInt(0, dtype));
  LoopOpId value = ones;
  if (dtype == v1::I64) {
    const LoopOpId low = ops.ConstantInt(0xffffffff, dtype);
    const LoopOpId is_long = ops.Or(is_negative, ops.Compare(LoopOpcode::kLt, low, a));
    value = ops.Where(is_long, ones, low);
  }
  if (op != LoopOpcode::kFloorDiv) return value;
  return ops.Where(is_negative, ops.ConstantInt(-2, dtype), value);
}

// By zero the CPU raises, as eager does. On a GPU eager goes on, and programs do too that drop what they
// divided by zero; a kernel that raised there would end every use of the GPU by its process.
LoopOpId Divide(LoopRecorder& ops, LoopOpcode op, LoopOpId a, LoopOpId b, const TensorType& type) {
  if (!IsIntegerDivision(op) || !IsInteger(type.dtype) || !IsGpu(type.device)) return ops.Binary(op, a, b);
  const LoopOpId by_zero = ops.Compare(LoopOpcode::kEq, b, ops.ConstantInt(0, ops.dtype(b)));
  const LoopOpId divisor = ops.Where(by_zero, ops.ConstantInt(1, ops.dtype(b)), b);
  return ops.Where(by_zero, ByZeroOnGpu(ops, op, a), ops.Binary(op, a, divisor));
}

absl::Status LowerBinary(LoweringContext& context, const GraphNode& node) {
  const LoopOpcode op = OpOf(kBinary, node.target);
  const Argument& self = Slot(context, node, "self");
  const Argument& other = Slot(context, node, "other");
  const Argument* alpha = node.Find("alpha");
  return Record(context, node, [&](LoopRecorder& ops, Index index, const TensorType& type) {
    const LoopOpId a = RoundedOperand(context, ops, op, self, false, index, type);
    LoopOpId b = RoundedOperand(context, ops, op, other, true, index, type);
    if (alpha != nullptr) {
      const LoopOpId scale = RoundedOperand(context, ops, op, *alpha, false, index, type);
      b = type.dtype == v1::BOOL ? ops.And(b, scale) : ops.Mul(b, scale);
    }
    if (type.dtype == v1::BOOL) return BoolBinary(ops, op, a, b);
    return Divide(ops, op, a, b, type);
  });
}

absl::Status LowerReversedSub(LoweringContext& context, const GraphNode& node) {
  const Argument& self = Slot(context, node, "self");
  const Argument& other = Slot(context, node, "other");
  const Argument* alpha = node.Find("alpha");
  return Record(context, node, [&](LoopRecorder& ops, Index index, const TensorType& type) {
    const auto operand = [&](const Argument& argument) {
      return RoundedOperand(context, ops, LoopOpcode::kSub, argument, false, index, type);
    };
    LoopOpId a = operand(self);
    if (alpha != nullptr) a = ops.Mul(a, operand(*alpha));
    return ops.Sub(operand(other), a);
  });
}

// floor(a / b) of F16 and BF16, rounded at each step as eager rounds it; by zero the quotient is infinite or
// NaN.
LoopOpId FloorDivideRounded(LoopRecorder& ops, LoopOpId a, LoopOpId b, v1::DType dtype) {
  const LoopOpId zero = ops.ConstantInt(0, v1::F32), one = ops.ConstantInt(1, v1::F32);
  const auto less = [&](LoopOpId x, LoopOpId y) { return ops.Compare(LoopOpcode::kLt, x, y); };
  const LoopOpId rest = ops.Binary(LoopOpcode::kFmod, a, b);  // exact
  LoopOpId quotient = ops.RoundTo(ops.Div(ops.RoundTo(ops.Sub(a, rest), dtype), b), dtype);
  const LoopOpId differ = ops.Compare(LoopOpcode::kNe, less(b, zero), less(rest, zero));
  const LoopOpId below = ops.And(ops.Compare(LoopOpcode::kNe, rest, zero), differ);
  quotient = ops.Where(below, ops.RoundTo(ops.Sub(quotient, one), dtype), quotient);
  const LoopOpId floor = ops.Unary(LoopOpcode::kFloor, quotient);
  const LoopOpId high = less(ops.Constant(0.5, v1::F32), ops.RoundTo(ops.Sub(quotient, floor), dtype));
  const LoopOpId nearest = ops.Where(high, ops.RoundTo(ops.Add(floor, one), dtype), floor);
  const LoopOpId by_zero = ops.Compare(LoopOpcode::kEq, b, zero);
  const LoopOpId plain = ops.Div(a, b);
  const LoopOpId signed_zero = ops.Mul(zero, plain);
  const LoopOpId finite = ops.Where(ops.Compare(LoopOpcode::kEq, quotient, zero), signed_zero, nearest);
  return ops.Where(by_zero, plain, finite);
}

// Of F16 and BF16 the quotient of two tensors is rounded before it is rounded to an integer, by a number it
// is not.
absl::Status LowerDivMode(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const Argument& self = Slot(context, node, "self");
  const Argument& other = Slot(context, node, "other");
  const std::string mode = args.String("rounding_mode", "");
  const LoopOpcode op = mode == "floor"   ? LoopOpcode::kFloorDiv
                        : mode == "trunc" ? LoopOpcode::kTruncDiv
                                          : LoopOpcode::kDiv;
  return Record(context, node, [&](LoopRecorder& ops, Index index, const TensorType& type) {
    const LoopOpId a = RoundedOperand(context, ops, op, self, false, index, type);
    const LoopOpId b = RoundedOperand(context, ops, op, other, true, index, type);
    const bool half = ComputeType(type.dtype) != type.dtype;
    const bool rounds = half && !IsNumber(context, other);
    if (op == LoopOpcode::kFloorDiv && rounds) return FloorDivideRounded(ops, a, b, type.dtype);
    if (op == LoopOpcode::kTruncDiv && IsFloat(type.dtype)) {
      const LoopOpId quotient = ops.Div(a, b);
      return ops.Unary(LoopOpcode::kTrunc, rounds ? ops.RoundTo(quotient, type.dtype) : quotient);
    }
    return Divide(ops, op, a, b, type);
  });
}

// ---- comparisons and logic: operands in their promoted type, result BOOL

absl::Status LowerCompare(LoweringContext& context, const GraphNode& node) {
  const LoopOpcode op = OpOf(kCompare, node.target);
  const Argument& self = Slot(context, node, "self");
  const Argument& other = Slot(context, node, "other");
  const v1::DType common = PromotedType(context, {&self, &other});
  return Record(context, node, [&](LoopRecorder& ops, Index index, const TensorType& type) {
    // Rounded to the compared type, of which eager makes a tensor of a number.
    auto operand = [&](const Argument& argument) {
      const LoopOpId value = Operand(context, ops, argument, index, type.sizes, common);
      return IsOfOtherType(context, argument, common) ? ops.RoundTo(value, common) : value;
    };
    LoopOpId a = operand(self), b = operand(other);
    if (common == v1::BOOL && op != LoopOpcode::kEq && op != LoopOpcode::kNe) {
      a = ops.Cast(a, v1::U8);
      b = ops.Cast(b, v1::U8);
    }
    return ops.Compare(op, a, b);
  });
}

absl::Status LowerLogical(LoweringContext& context, const GraphNode& node) {
  const LoopOpcode op = OpOf(kLogical, node.target);
  const Argument& self = Slot(context, node, "self");
  const Argument& other = Slot(context, node, "other");
  return Record(context, node, [&](LoopRecorder& ops, Index index, const TensorType& type) {
    auto truth = [&](const Argument& argument) {
      return ops.Cast(Operand(context, ops, argument, index, type.sizes, PromotedType(context, {&argument})),
                      v1::BOOL);
    };
    const LoopOpId a = truth(self), b = truth(other);
    if (op == LoopOpcode::kLogicalAnd) return ops.And(a, b);
    if (op == LoopOpcode::kLogicalOr) return ops.Or(a, b);
    return ops.Compare(LoopOpcode::kNe, a, b);
  });
}

absl::Status LowerLogicalNot(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor& self = args.Tensor("self");
  return Record(context, node, [&](LoopRecorder& ops, Index index, const TensorType& type) {
    return ops.Not(context.loops().LoadBroadcast(ops, self, index, type.sizes));
  });
}

absl::Status LowerBitwiseNot(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor& self = args.Tensor("self");
  return Record(context, node, [&](LoopRecorder& ops, Index index, const TensorType& type) {
    const LoopOpId x = context.loops().LoadBroadcast(ops, self, index, type.sizes);
    return type.dtype == v1::BOOL ? ops.Not(x) : ops.Unary(LoopOpcode::kBitNot, x);
  });
}

enum class FloatTest { kNan, kInf, kFinite };

LoopOpId TestFloat(LoopRecorder& ops, LoopOpId x, FloatTest test) {
  if (!IsFloat(ops.dtype(x))) return ops.ConstantInt(test == FloatTest::kFinite, v1::BOOL);
  if (test == FloatTest::kNan) return ops.Unary(LoopOpcode::kIsNan, x);
  if (test == FloatTest::kInf) return ops.Unary(LoopOpcode::kIsInf, x);
  return ops.Not(ops.Or(ops.Unary(LoopOpcode::kIsNan, x), ops.Unary(LoopOpcode::kIsInf, x)));
}

template <FloatTest test>
absl::Status LowerFloatTest(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor& self = args.Tensor("self");
  return Record(context, node, [&](LoopRecorder& ops, Index index, const TensorType& type) {
    return TestFloat(ops, context.loops().LoadBroadcast(ops, self, index, type.sizes), test);
  });
}

// That of a NaN, too.
absl::Status LowerSignbit(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor& self = args.Tensor("self");
  return Record(context, node, [&](LoopRecorder& ops, Index index, const TensorType& type) {
    const LoopOpId x = context.loops().LoadBroadcast(ops, self, index, type.sizes);
    const v1::DType bits = ops.dtype(x) == v1::F64 ? v1::I64 : v1::I32;
    return ops.Compare(LoopOpcode::kLt, ops.Bitcast(x, bits), ops.ConstantInt(0, bits));
  });
}

// ---- selection and clamping

absl::Status LowerWhere(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor& condition = args.Tensor("condition");
  const Argument& self = Slot(context, node, "self");
  const Argument& other = Slot(context, node, "other");
  return Record(context, node, [&](LoopRecorder& ops, Index index, const TensorType& type) {
    const LoopOpId chosen = context.loops().LoadBroadcast(ops, condition, index, type.sizes);
    return ops.Where(chosen, Operand(context, ops, self, index, type.sizes, type.dtype),
                     Operand(context, ops, other, index, type.sizes, type.dtype));
  });
}

absl::Status LowerMaskedFill(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const Argument& self = Slot(context, node, "self");
  const LoweredTensor& mask = args.Tensor("mask");
  const Argument& value = Slot(context, node, "value");
  return Record(context, node, [&](LoopRecorder& ops, Index index, const TensorType& type) {
    return ops.Where(context.loops().LoadBroadcast(ops, mask, index, type.sizes),
                     Operand(context, ops, value, index, type.sizes, type.dtype),
                     Operand(context, ops, self, index, type.sizes, type.dtype));
  });
}

absl::Status LowerClamp(LoweringContext& context, const GraphNode& node) {
  const Argument& self = Slot(context, node, "self");
  const Argument* low = node.Find("min");
  const Argument* high = node.Find("max");
  return Record(context, node, [&](LoopRecorder& ops, Index index, const TensorType& type) {
    LoopOpId x = Operand(context, ops, self, index, type.sizes, type.dtype);
    if (low != nullptr) {
      x = ops.Binary(LoopOpcode::kMaximum, x, Operand(context, ops, *low, index, type.sizes, type.dtype));
    }
    if (high != nullptr) {
      x = ops.Binary(LoopOpcode::kMinimum, x, Operand(context, ops, *high, index, type.sizes, type.dtype));
    }
    return x;
  });
}

absl::Status LowerRelu(LoweringContext& context, const GraphNode& node) {
  const Argument& self = Slot(context, node, "self");
  return Record(context, node, [&](LoopRecorder& ops, Index index, const TensorType& type) {
    const LoopOpId x = Operand(context, ops, self, index, type.sizes, type.dtype);
    return ops.Binary(LoopOpcode::kMaximum, x, ops.ConstantInt(0, type.dtype));
  });
}

// ---- powers

LoopOpId PowConstant(LoopRecorder& ops, LoopOpId x, double exponent, const TensorType& type) {
  const bool by_root = HasRootsForPowers(type.dtype, type.device);
  if (exponent == 0) return ops.ConstantInt(1, ops.dtype(x));
  if (exponent == 1) return x;
  if (exponent == 2) return ops.Mul(x, x);
  if (exponent == 3) return ops.Mul(ops.Mul(x, x), x);
  if (!IsFloat(ops.dtype(x))) return ops.Binary(LoopOpcode::kPow, x, ops.Constant(exponent, ops.dtype(x)));
  if (exponent == 0.5 && by_root) return ops.Unary(LoopOpcode::kSqrt, x);
  if (exponent == -0.5 && by_root) return ops.Unary(LoopOpcode::kRsqrt, x);
  if (exponent == -1) return ops.Unary(LoopOpcode::kReciprocal, x);
  if (exponent == -2) return ops.Unary(LoopOpcode::kReciprocal, ops.Mul(x, x));
  return ops.Binary(LoopOpcode::kPow, x, ops.RoundTo(ops.Constant(exponent, ops.dtype(x)), type.dtype));
}

absl::Status LowerPow(LoweringContext& context, const GraphNode& node) {
  const Argument& self = Slot(context, node, "self");
  const Argument& exponent = Slot(context, node, "exponent");
  return Record(context, node, [&](LoopRecorder& ops, Index index, const TensorType& type) {
    const LoopOpId x = Operand(context, ops, self, index, type.sizes, type.dtype);
    if (const auto* value = std::get_if<FloatArg>(&exponent)) return PowConstant(ops, x, value->value, type);
    if (const auto* value = std::get_if<IntArg>(&exponent)) {
      const auto known = context.exprs().AsConst(value->value);
      // A larger one may be none that a double holds.
      if (known.has_value() && *known >= -3 && *known <= 3) {
        return PowConstant(ops, x, static_cast<double>(*known), type);
      }
    }
    return ops.Binary(LoopOpcode::kPow, x, Operand(context, ops, exponent, index, type.sizes, type.dtype));
  });
}

// ---- conversions and fused arithmetic

absl::Status LowerToCopy(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor& self = args.Tensor("self");
  return Record(context, node, [&](LoopRecorder& ops, Index index, const TensorType& type) {
    return ops.Cast(context.loops().LoadBroadcast(ops, self, index, type.sizes), ComputeType(type.dtype));
  });
}

absl::Status LowerConvertElementType(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor& self = args.Tensor("a");
  return Record(context, node, [&](LoopRecorder& ops, Index index, const TensorType& type) {
    return ops.Cast(context.loops().LoadBroadcast(ops, self, index, type.sizes), ComputeType(type.dtype));
  });
}

absl::Status LowerFma(LoweringContext& context, const GraphNode& node) {
  const Argument& a = Slot(context, node, "a");
  const Argument& b = Slot(context, node, "b");
  const Argument& c = Slot(context, node, "c");
  return Record(context, node, [&](LoopRecorder& ops, Index index, const TensorType& type) {
    const LoopOpId product = ops.Mul(Operand(context, ops, a, index, type.sizes, type.dtype),
                                     Operand(context, ops, b, index, type.sizes, type.dtype));
    return ops.Add(product, Operand(context, ops, c, index, type.sizes, type.dtype));
  });
}

// self + value * tensor1 * tensor2, self + value * tensor1 / tensor2
template <LoopOpcode op>
absl::Status LowerAddc(LoweringContext& context, const GraphNode& node) {
  const Argument& self = Slot(context, node, "self");
  const Argument& tensor1 = Slot(context, node, "tensor1");
  const Argument& tensor2 = Slot(context, node, "tensor2");
  const Argument* value = node.Find("value");
  return Record(context, node, [&](LoopRecorder& ops, Index index, const TensorType& type) {
    LoopOpId x = Operand(context, ops, tensor1, index, type.sizes, type.dtype);
    if (value != nullptr) x = ops.Mul(Operand(context, ops, *value, index, type.sizes, type.dtype), x);
    const LoopOpId y = Operand(context, ops, tensor2, index, type.sizes, type.dtype);
    return ops.Add(Operand(context, ops, self, index, type.sizes, type.dtype), ops.Binary(op, x, y));
  });
}

absl::Status LowerLerp(LoweringContext& context, const GraphNode& node) {
  const Argument& start = Slot(context, node, "self");
  const Argument& end = Slot(context, node, "end");
  const Argument& weight = Slot(context, node, "weight");
  return Record(context, node, [&](LoopRecorder& ops, Index index, const TensorType& type) {
    const LoopOpId a = Operand(context, ops, start, index, type.sizes, type.dtype);
    const LoopOpId b = Operand(context, ops, end, index, type.sizes, type.dtype);
    const LoopOpId w = Operand(context, ops, weight, index, type.sizes, type.dtype);
    // As eager: from the nearer end.
    const LoopOpId distance = ops.Sub(b, a);
    const LoopOpId near =
        ops.Compare(LoopOpcode::kLt, ops.Unary(LoopOpcode::kAbs, w), ops.Constant(0.5, type.dtype));
    const LoopOpId from_start = ops.Add(a, ops.Mul(w, distance));
    const LoopOpId from_end = ops.Sub(b, ops.Mul(distance, ops.Sub(ops.Constant(1, type.dtype), w)));
    return ops.Where(near, from_start, from_end);
  });
}

}  // namespace

void RegisterPointwise(LoweringTable& table) {
  for (const auto& [target, op] : UnaryOperators()) table[target] = LowerUnary;
  for (const OpRow& row : kBinary) table[row.target] = LowerBinary;
  for (const OpRow& row : kCompare) table[row.target] = LowerCompare;
  for (const OpRow& row : kLogical) table[row.target] = LowerLogical;
  table[Op::kRsubTensor] = LowerReversedSub;
  table[Op::kRsubScalar] = LowerReversedSub;
  table[Op::kDivTensorMode] = LowerDivMode;
  table[Op::kDivScalarMode] = LowerDivMode;
  table[Op::kLogicalNot] = LowerLogicalNot;
  table[Op::kBitwiseNot] = LowerBitwiseNot;
  table[Op::kIsnan] = LowerFloatTest<FloatTest::kNan>;
  table[Op::kIsinf] = LowerFloatTest<FloatTest::kInf>;
  table[Op::kIsfinite] = LowerFloatTest<FloatTest::kFinite>;
  table[Op::kSignbit] = LowerSignbit;
  table[Op::kWhereSelf] = LowerWhere;
  table[Op::kWhereScalarSelf] = LowerWhere;
  table[Op::kWhereScalarOther] = LowerWhere;
  table[Op::kWhereScalar] = LowerWhere;
  table[Op::kMaskedFillScalar] = LowerMaskedFill;
  table[Op::kClamp] = LowerClamp;
  table[Op::kClampTensor] = LowerClamp;
  table[Op::kClampMin] = LowerClamp;
  table[Op::kClampMinTensor] = LowerClamp;
  table[Op::kClampMax] = LowerClamp;
  table[Op::kClampMaxTensor] = LowerClamp;
  table[Op::kRelu] = LowerRelu;
  table[Op::kPowTensorTensor] = LowerPow;
  table[Op::kPowTensorScalar] = LowerPow;
  table[Op::kPowScalar] = LowerPow;
  table[Op::kToCopy] = LowerToCopy;
  table[Op::kPrimsConvertElementType] = LowerConvertElementType;
  table[Op::kPrimsFma] = LowerFma;
  table[Op::kAddcmul] = LowerAddc<LoopOpcode::kMul>;
  table[Op::kAddcdiv] = LowerAddc<LoopOpcode::kDiv>;
  table[Op::kLerpScalar] = LowerLerp;
  table[Op::kLerpTensor] = LowerLerp;
}

}  // namespace kiln
