// Elementwise operators in other words: scalar overloads, scaled sums, clamps, rounding divisions, and the
// rarer functions in terms of the core ones.
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/dtype_range.h"
#include "compiler/passes/core_set.h"
#include "compiler/passes/decomposition.h"
#include "compiler/passes/types.h"
#include "compiler/target/device.h"

namespace kiln {
namespace {

Value In(DecomposeContext& m, absl::string_view name) { return ToCompute(m.Tensor(name)); }

// The type in which the declared result is computed.
v1::DType ResultCompute(DecomposeContext& m) { return ComputeDType(m.Type().dtype); }

Operand CastOperand(const Operand& operand, v1::DType dtype) {
  if (operand.is_tensor()) return Cast(operand.tensor, dtype);
  if (operand.symbolic) return operand;
  const double number =
      operand.kind == Operand::Kind::kFloat ? operand.number : static_cast<double>(operand.integer);
  if (IsFloat(dtype)) return number;
  if (dtype == v1::BOOL) return number != 0;
  if (operand.kind != Operand::Kind::kFloat) return operand.integer;
  // As the loop operator casts.
  const bool fits = number >= -0x1p63 && number < 0x1p63;
  return fits ? static_cast<int64_t>(number) : std::numeric_limits<int64_t>::min();
}

int64_t WrappingProduct(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

bool IsOne(const Operand& operand) {
  return !operand.is_tensor() && !operand.symbolic &&
         (operand.kind == Operand::Kind::kFloat ? operand.number == 1 : operand.integer == 1);
}

// A number that eager rounds to F16 or BF16 before it computes, on the CPU.
Operand Rounded(DecomposeContext& m, const Operand& operand) {
  if (operand.kind != Operand::Kind::kFloat || IsGpu(m.Type().device)) return operand;
  return RoundedNumber(operand.number, m.Type().dtype);
}

// Casts an operand of an arithmetic operator to the computed result type; tensors only.
Operand Arg(DecomposeContext& m, absl::string_view name, std::optional<Operand> otherwise = std::nullopt) {
  Operand operand = m.Scalar(name, otherwise);
  return operand.is_tensor() ? CastOperand(operand, ResultCompute(m)) : operand;
}

// Emits `target` on (self, other) as they are: the scalar overloads' way to the tensor overload.
template <Op kTarget>
bool AsTensorOverload(DecomposeContext& m) {
  const Operand other = m.Scalar(m.Has("other") ? "other" : "exponent");
  return m.Return(m.b().Binary(kTarget, m.Scalar("self"), other));
}
template <Op kTarget>
bool AsComparison(DecomposeContext& m) {
  return m.Return(m.b().Compare(kTarget, m.Scalar("self"), m.Scalar("other")));
}

// self ± alpha * other
bool AddOrSub(DecomposeContext& m, Op target) {
  const Operand alpha = m.Scalar("alpha", 1);
  Operand other = m.Scalar("other");
  if (!IsOne(alpha)) {
    if (other.is_tensor()) {
      other = Cast(other.tensor, ResultCompute(m)) * CastOperand(Rounded(m, alpha), ResultCompute(m));
    } else {
      const double a =
          alpha.kind == Operand::Kind::kFloat ? alpha.number : static_cast<double>(alpha.integer);
      const double o =
          other.kind == Operand::Kind::kFloat ? other.number : static_cast<double>(other.integer);
      if (alpha.symbolic || other.symbolic) return false;
      other =
          IsFloat(m.Type().dtype) ? Operand(a * o) : Operand(WrappingProduct(alpha.integer, other.integer));
    }
  } else if (!m.Has("alpha") && m.node().target == target) {
    return false;  // core
  }
  return m.Return(m.b().Binary(target, m.Scalar("self"), Rounded(m, other)));
}
bool Add(DecomposeContext& m) { return AddOrSub(m, Op::kAddTensor); }
bool Sub(DecomposeContext& m) { return AddOrSub(m, Op::kSubTensor); }

bool Rsub(DecomposeContext& m) {
  Value self = Cast(m.Tensor("self"), ResultCompute(m));
  const Operand alpha = m.Scalar("alpha", 1);
  if (!IsOne(alpha)) self = self * CastOperand(Rounded(m, alpha), ResultCompute(m));
  return m.Return(m.b().Binary(Op::kSubTensor, Rounded(m, m.Scalar("other")), self));
}

// True division; integers are divided as floats.
bool Div(DecomposeContext& m) {
  Operand a = m.Scalar("self"), b = m.Scalar("other");
  const bool promotes =
      (a.is_tensor() && !IsFloat(a.tensor.dtype())) || (b.is_tensor() && !IsFloat(b.tensor.dtype()));
  if (!promotes && m.node().target == Op::kDivTensor) return false;  // core
  return m.Return(m.b().Binary(Op::kDivTensor, Arg(m, "self"), Arg(m, "other")));
}

Value DivMode(DecomposeContext& m, const Operand& a, const Operand& b, const std::string& mode) {
  std::vector<ExprId> sizes;
  for (const Operand* operand : {&a, &b}) {
    if (!operand->is_tensor()) continue;
    auto broadcast = BroadcastSizes(m.exprs(), sizes, operand->tensor.sizes());
    if (!broadcast.ok()) {
      m.b().Fail(broadcast.status().message());
      return Value();
    }
    sizes = *std::move(broadcast);
  }
  return m.b().Node(
      Op::kDivTensorMode,
      {{"self", m.b().ToArgument(a)}, {"other", m.b().ToArgument(b)}, {"rounding_mode", StringArg{mode}}},
      m.b().Dense(m.Type().dtype, sizes));
}

bool DivRounded(DecomposeContext& m) {
  const std::string mode = m.String("rounding_mode", "");
  if (mode.empty()) return m.Return(m.b().Binary(Op::kDivTensor, Arg(m, "self"), Arg(m, "other")));
  if (m.node().target == Op::kDivTensorMode) return false;  // core
  return m.Return(DivMode(m, m.Scalar("self"), m.Scalar("other"), mode));
}
bool FloorDivide(DecomposeContext& m) {
  return m.Return(DivMode(m, m.Scalar("self"), m.Scalar("other"), "floor"));
}

Value IntegerPower(const Value& x, int exponent) {
  if (exponent == 1) return x;
  return exponent == 2 ? x * x : x * x * x;
}

bool PowScalarExponent(DecomposeContext& m) {
  Value x = Cast(m.Tensor("self"), ResultCompute(m));
  const Operand exponent = m.Scalar("exponent");
  if (!x.ok() || exponent.is_tensor() || exponent.symbolic) return false;
  const double e =
      exponent.kind == Operand::Kind::kFloat ? exponent.number : static_cast<double>(exponent.integer);
  if (e == 0) return m.Return(m.b().Full(x.sizes(), CastOperand(1, x.dtype()), x.dtype()));
  if (e == 1 || e == 2 || e == 3) return m.Return(IntegerPower(x, static_cast<int>(e)));
  if (IsFloat(x.dtype())) {
    const Value self = m.Tensor("self");
    if ((e == 0.5 || e == -0.5) && !HasRootsForPowers(self.type().dtype, self.type().device))
      return m.Return(Pow(self, CastOperand(exponent, self.dtype())));
    if (e == 0.5) return m.Return(Sqrt(x));
    if (e == -0.5) return m.Return(Rsqrt(x));
    if (e == -1) return m.Return(Reciprocal(x));
    if (e == -2) return m.Return(Reciprocal(x * x));
  }
  return m.Return(Pow(x, CastOperand(Rounded(m, exponent), x.dtype())));
}

bool PowScalarBase(DecomposeContext& m) {
  Value exponent = Cast(m.Tensor("exponent"), ResultCompute(m));
  if (!exponent.ok()) return false;
  return m.Return(m.b().Binary(Op::kPowTensorTensor,
                               CastOperand(Rounded(m, m.Scalar("self")), exponent.dtype()), exponent));
}

bool FloatPower(DecomposeContext& m) {
  Operand base = Arg(m, "self"), exponent = Arg(m, "exponent");
  return m.Return(m.b().Binary(Op::kPowTensorTensor, base, exponent));
}

bool ClampBoth(DecomposeContext& m) {
  Value x = Cast(m.Tensor("self"), ResultCompute(m));
  if (m.Has("min")) x = Maximum(x, CastOperand(m.Scalar("min"), ResultCompute(m)));
  if (m.Has("max")) x = Minimum(x, CastOperand(m.Scalar("max"), ResultCompute(m)));
  return m.Return(x);
}

bool FmaxOrFmin(DecomposeContext& m) {
  Value a = Cast(m.Tensor("self"), ResultCompute(m)), b = Cast(m.Tensor("other"), ResultCompute(m));
  const bool maximum = m.node().target == Op::kFmax;
  Value both = maximum ? Maximum(a, b) : Minimum(a, b);
  return m.Return(Where(IsNan(a), b, Where(IsNan(b), a, both)));
}

bool WhereScalars(DecomposeContext& m) {
  return m.Return(Where(m.Tensor("condition"), CastOperand(m.Scalar("self"), m.Type().dtype),
                        CastOperand(m.Scalar("other"), m.Type().dtype)));
}

// ATen takes uint8 conditions too.
bool WhereSelf(DecomposeContext& m) {
  Value condition = m.Tensor("condition");
  if (!condition.ok() || condition.dtype() == v1::BOOL) return false;  // core
  return m.Return(Where(Ne(condition, 0), m.Scalar("self"), m.Scalar("other")));
}

bool MaskedFill(DecomposeContext& m) {
  Value x = m.Tensor("self"), mask = m.Tensor("mask");
  if (!x.ok() || !mask.ok()) return false;
  const Operand value = m.Scalar("value");
  if (ConvertsAtRunTime(value, x.type())) return false;
  if (mask.dtype() != v1::BOOL) mask = Ne(mask, 0);
  return m.Return(Where(mask, CastOperand(value, x.dtype()), x));
}

// The number is multiplied where eager does it, or what is large leaves float32's range: on the CPU with the
// first factor, on a GPU with the product.
bool Addcmul(DecomposeContext& m) {
  Value a = Cast(m.Tensor("tensor1"), ResultCompute(m)), b = Cast(m.Tensor("tensor2"), ResultCompute(m));
  const Operand value = m.Scalar("value", 1);
  Value product;
  if (IsOne(value)) {
    product = a * b;
  } else {
    const Operand number = CastOperand(value, ResultCompute(m));
    product = IsGpu(m.Type().device) ? a * b * number : a * number * b;
  }
  return m.Return(Cast(m.Tensor("self"), ResultCompute(m)) + product);
}

bool Addcdiv(DecomposeContext& m) {
  Value a = Cast(m.Tensor("tensor1"), ResultCompute(m)), b = Cast(m.Tensor("tensor2"), ResultCompute(m));
  const Operand value = m.Scalar("value", 1);
  if (!IsOne(value)) a = a * CastOperand(value, ResultCompute(m));
  return m.Return(Cast(m.Tensor("self"), ResultCompute(m)) + a / b);
}

bool Lerp(DecomposeContext& m) {
  Value start = In(m, "self"), end = In(m, "end");
  const Operand weight = m.Scalar("weight");
  Value d = end - start;
  if (!weight.is_tensor()) {
    const double w = m.Float("weight");
    return m.Return(std::abs(w) < 0.5 ? start + d * w : end - d * (1.0 - w));
  }
  Value w = ToCompute(weight.tensor);
  return m.Return(Where(Lt(Abs(w), 0.5), start + d * w, end - d * (1.0 - w)));
}

bool Square(DecomposeContext& m) {
  Value x = m.Tensor("self");
  return m.Return(x * x);
}

bool FillLike(DecomposeContext& m) {
  const TensorType type = m.Type();
  const Operand value = CastOperand(m.Scalar("value"), type.dtype);
  if (!value.is_tensor()) return m.Return(m.b().Full(type.sizes, value, type.dtype));
  return m.Return(Expand(value.tensor, type.sizes));
}

bool Copy(DecomposeContext& m) {
  return m.Return(Expand(Cast(m.Tensor("src"), m.Type().dtype), m.Type().sizes));
}

// Float functions of integers compute in the result's type; rounding integers does nothing.
bool UnaryOfInteger(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok() || IsFloat(x.dtype())) return false;  // core
  const OperatorName& target = m.node().target;
  for (const Op rounding : {Op::kFloor, Op::kCeil, Op::kTrunc, Op::kRound}) {
    if (target == rounding) return m.Return(x);
  }
  return m.Return(m.b().Unary(target, Cast(x, ResultCompute(m))));
}

bool PredicateOfInteger(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok() || IsFloat(x.dtype())) return false;  // core
  return m.Return(m.b().Full(x.sizes(), false, v1::BOOL));
}

bool IsFinite(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok()) return false;
  if (!IsFloat(x.dtype())) return m.Return(m.b().Full(x.sizes(), true, v1::BOOL));
  return m.Return(Lt(Abs(x), std::numeric_limits<double>::infinity()));
}
bool IsPosInf(DecomposeContext& m) {
  return m.Return(Eq(m.Tensor("self"), std::numeric_limits<double>::infinity()));
}
bool IsNegInf(DecomposeContext& m) {
  return m.Return(Eq(m.Tensor("self"), -std::numeric_limits<double>::infinity()));
}

bool AbsOfBool(DecomposeContext& m) {
  Value x = m.Tensor("self");
  return x.ok() && x.dtype() == v1::BOOL ? m.Return(x) : false;
}

bool Relu(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok() || IsFloat(x.dtype())) return false;  // core
  return m.Return(Maximum(x, 0));
}

bool Same(DecomposeContext& m) { return m.Return(m.Tensor("self")); }

bool Sgn(DecomposeContext& m) { return m.Return(Sign(m.Tensor("self"))); }
bool Frac(DecomposeContext& m) {
  Value x = In(m, "self");
  return m.Return(x - m.b().Unary(Op::kTrunc, x));
}
bool Fix(DecomposeContext& m) {
  Value x = m.Tensor("self");
  return m.Return(x.ok() && IsFloat(x.dtype()) ? m.b().Unary(Op::kTrunc, x) : x);
}

bool NanToNum(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok() || !IsFloat(x.dtype())) return m.Return(x);
  const double largest = LargestFinite(x.dtype()), infinity = std::numeric_limits<double>::infinity();
  Value y = Where(Eq(x, infinity), m.Float("posinf", largest), x);
  y = Where(Eq(x, -infinity), m.Float("neginf", -largest), y);
  return m.Return(Where(IsNan(x), m.Float("nan", 0), y));
}

// x * f(y), and 0 where x is 0 unless y is NaN.
Value XTimes(DecomposeContext& m, Value (*f)(const Value&)) {
  auto dense = [&](const Operand& o, const Value& like) {
    return o.is_tensor() ? Cast(o.tensor, ResultCompute(m))
                         : m.b().Full(like.sizes(), CastOperand(o, like.dtype()), like.dtype());
  };
  const Operand a = Arg(m, "self"), b = Arg(m, "other");
  if (!a.is_tensor() && !b.is_tensor()) return Value();
  const Value like = a.is_tensor() ? a.tensor : b.tensor;
  if (!like.ok()) return Value();
  Value x = dense(a, like), y = dense(b, like);
  Value product = Where(Eq(x, 0.0), 0.0, x * f(y));
  return Where(IsNan(y), std::nan(""), product);
}
bool Xlogy(DecomposeContext& m) { return m.Return(XTimes(m, Log)); }
bool Xlog1py(DecomposeContext& m) { return m.Return(XTimes(m, Log1p)); }

bool LogAddExp(DecomposeContext& m) {
  Value a = In(m, "self"), b = In(m, "other");
  const bool base2 = m.node().target == Op::kLogaddexp2;
  Value high = Maximum(a, b), low = Minimum(a, b);
  Value tail =
      base2 ? m.b().Unary(Op::kLog2, m.b().Unary(Op::kExp2, low - high) + 1.0) : Log1p(Exp(low - high));
  Value same = LogicalAnd(Eq(Abs(a), std::numeric_limits<double>::infinity()), Eq(a, b));
  return m.Return(Where(same, a, high + tail));
}

bool Hypot(DecomposeContext& m) {
  Value a = Abs(In(m, "self")), b = Abs(In(m, "other"));
  Value high = Maximum(a, b), low = Minimum(a, b);
  Value ratio = low / high;
  Value length = high * Sqrt(1.0 + ratio * ratio);
  const double infinity = std::numeric_limits<double>::infinity();
  const Value infinite = LogicalOr(Eq(a, infinity), Eq(b, infinity));  // beside a NaN, too
  return m.Return(Where(infinite, infinity, Where(Eq(high, 0.0), high, length)));
}

bool CopySign(DecomposeContext& m) {
  Value magnitude = Abs(Cast(m.Tensor("self"), ResultCompute(m)));
  const Operand other = Arg(m, "other");
  if (!other.is_tensor()) {
    return m.Return(std::signbit(m.Float("other")) ? -magnitude : magnitude);
  }
  const bool integer = !IsFloat(other.tensor.dtype());
  Value negative = integer ? Lt(other.tensor, 0.0) : m.b().Predicate(Op::kSignbit, other.tensor);
  return m.Return(Where(negative, -magnitude, magnitude));
}

bool SignbitOfInteger(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok() || IsFloat(x.dtype())) return false;  // core
  return m.Return(x.dtype() == v1::BOOL ? m.b().Full(x.sizes(), false, v1::BOOL) : Lt(x, 0.0));
}

bool Heaviside(DecomposeContext& m) {
  Value x = m.Tensor("self"), at_zero = m.Tensor("values");
  Value step = Cast(Gt(x, 0), m.Type().dtype);
  return m.Return(Where(Eq(x, 0), at_zero, step));
}

bool Sinc(DecomposeContext& m) {
  Value x = In(m, "self") * M_PI;
  return m.Return(Where(Eq(x, 0.0), 1.0, m.b().Unary(Op::kSin, x) / x));
}

bool Degrees(DecomposeContext& m) {
  return m.Return(Cast(m.Tensor("self"), ResultCompute(m)) * (180.0 / M_PI));
}
bool Radians(DecomposeContext& m) {
  return m.Return(Cast(m.Tensor("self"), ResultCompute(m)) * (M_PI / 180.0));
}

bool IsClose(DecomposeContext& m) {
  Value a = m.Tensor("self"), b = m.Tensor("other");
  if (!a.ok() || !b.ok()) return false;
  Value close = Eq(a, b);
  if (m.Bool("equal_nan", false) && IsFloat(a.dtype()))
    close = LogicalOr(close, LogicalAnd(IsNan(a), IsNan(b)));
  const double rtol = m.Float("rtol", 1e-5), atol = m.Float("atol", 1e-8);
  if (rtol == 0 && atol == 0) return m.Return(close);
  Value x = a, y = b;
  if (!IsFloat(a.dtype())) {
    x = Cast(a, v1::F32);
    y = Cast(b, v1::F32);
  }
  Value allowed = Abs(y * rtol) + atol, error = Abs(x - y);
  Value finite = Lt(error, std::numeric_limits<double>::infinity());
  return m.Return(LogicalOr(close, LogicalAnd(finite, Le(error, allowed))));
}

// The dtype that ATen rounds the power to: its base is a number, or of the dtype of `self` where that is not
// F32.
v1::DType DTypeOfPower(const Value& self, const Value& exponent) {
  using Rank = PromotionOperand::Rank;
  const bool is_number = !IsFloat(self.dtype()) || self.dtype() == v1::F32;
  const Rank rank = exponent.sizes().empty() ? Rank::kZeroDim : Rank::kDimensioned;
  return PromoteDTypes({{is_number ? v1::F32 : self.dtype(), is_number ? Rank::kScalar : Rank::kZeroDim},
                        {exponent.dtype(), rank}});
}

bool Ldexp(DecomposeContext& m) {
  Value self = m.Tensor("self"), exponent = m.Tensor("other");
  if (!self.ok() || !exponent.ok()) return false;
  const v1::DType dtype = DTypeOfPower(self, exponent);
  Value power = Cast(m.b().Unary(Op::kExp2, Cast(exponent, ComputeDType(dtype))), dtype);
  return m.Return(m.b().Binary(Op::kMulTensor, self, power));
}

// A device or dtype conversion that changes the dtype alone; options other than the dtype are dropped.
bool ToCopy(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok() || x.type().device != m.Type().device) return false;
  if (x.dtype() == m.Type().dtype) return m.Return(Clone(x, m.Type()));
  if (m.node().args.size() == 2 && m.Has("dtype")) return false;  // core
  return m.Return(Cast(x, m.Type().dtype));
}

bool ConvertElementType(DecomposeContext& m) { return m.Return(Cast(m.Tensor("a"), m.Type().dtype)); }

constexpr DecompositionRow kRows[] = {
    {"prims.convert_element_type", ConvertElementType},
    {"add.Tensor", Add},
    {"add.Scalar", Add},
    {"sub.Tensor", Sub},
    {"sub.Scalar", Sub},
    {"rsub.Tensor", Rsub},
    {"rsub.Scalar", Rsub},
    {"mul.Scalar", AsTensorOverload<Op::kMulTensor>},
    {"div.Tensor", Div},
    {"div.Scalar", Div},
    {"true_divide.Tensor", Div},
    {"div.Tensor_mode", DivRounded},
    {"div.Scalar_mode", DivRounded},
    {"floor_divide", FloorDivide},
    {"floor_divide.Scalar", FloorDivide},
    {"remainder.Scalar", AsTensorOverload<Op::kRemainderTensor>},
    {"remainder.Scalar_Tensor", AsTensorOverload<Op::kRemainderTensor>},
    {"fmod.Scalar", AsTensorOverload<Op::kFmodTensor>},
    {"bitwise_and.Scalar", AsTensorOverload<Op::kBitwiseAndTensor>},
    {"bitwise_and.Scalar_Tensor", AsTensorOverload<Op::kBitwiseAndTensor>},
    {"__and__.Tensor", AsTensorOverload<Op::kBitwiseAndTensor>},
    {"__and__.Scalar", AsTensorOverload<Op::kBitwiseAndTensor>},
    {"bitwise_or.Scalar", AsTensorOverload<Op::kBitwiseOrTensor>},
    {"bitwise_or.Scalar_Tensor", AsTensorOverload<Op::kBitwiseOrTensor>},
    {"__or__.Tensor", AsTensorOverload<Op::kBitwiseOrTensor>},
    {"__or__.Scalar", AsTensorOverload<Op::kBitwiseOrTensor>},
    {"bitwise_xor.Scalar", AsTensorOverload<Op::kBitwiseXorTensor>},
    {"bitwise_xor.Scalar_Tensor", AsTensorOverload<Op::kBitwiseXorTensor>},
    {"__xor__.Tensor", AsTensorOverload<Op::kBitwiseXorTensor>},
    {"__xor__.Scalar", AsTensorOverload<Op::kBitwiseXorTensor>},
    {"bitwise_left_shift.Tensor_Scalar", AsTensorOverload<Op::kBitwiseLeftShiftTensor>},
    {"bitwise_left_shift.Scalar_Tensor", AsTensorOverload<Op::kBitwiseLeftShiftTensor>},
    {"__lshift__.Tensor", AsTensorOverload<Op::kBitwiseLeftShiftTensor>},
    {"__lshift__.Scalar", AsTensorOverload<Op::kBitwiseLeftShiftTensor>},
    {"bitwise_right_shift.Tensor_Scalar", AsTensorOverload<Op::kBitwiseRightShiftTensor>},
    {"bitwise_right_shift.Scalar_Tensor", AsTensorOverload<Op::kBitwiseRightShiftTensor>},
    {"__rshift__.Tensor", AsTensorOverload<Op::kBitwiseRightShiftTensor>},
    {"__rshift__.Scalar", AsTensorOverload<Op::kBitwiseRightShiftTensor>},
    {"eq.Scalar", AsComparison<Op::kEqTensor>},
    {"ne.Scalar", AsComparison<Op::kNeTensor>},
    {"lt.Scalar", AsComparison<Op::kLtTensor>},
    {"le.Scalar", AsComparison<Op::kLeTensor>},
    {"gt.Scalar", AsComparison<Op::kGtTensor>},
    {"ge.Scalar", AsComparison<Op::kGeTensor>},
    {"max.other", AsTensorOverload<Op::kMaximum>},
    {"min.other", AsTensorOverload<Op::kMinimum>},
    {"fmax", FmaxOrFmin},
    {"fmin", FmaxOrFmin},
    {"pow.Tensor_Scalar", PowScalarExponent},
    {"pow.Scalar", PowScalarBase},
    {"float_power.Tensor_Tensor", FloatPower},
    {"float_power.Tensor_Scalar", FloatPower},
    {"float_power.Scalar", FloatPower},
    {"clamp", ClampBoth},
    {"clamp.Tensor", ClampBoth},
    {"clamp_min", ClampBoth},
    {"clamp_min.Tensor", ClampBoth},
    {"clamp_max", ClampBoth},
    {"clamp_max.Tensor", ClampBoth},
    {"where.self", WhereSelf},
    {"where.ScalarOther", WhereScalars},
    {"where.ScalarSelf", WhereScalars},
    {"where.Scalar", WhereScalars},
    {"masked_fill.Scalar", MaskedFill},
    {"masked_fill.Tensor", MaskedFill},
    {"addcmul", Addcmul},
    {"addcdiv", Addcdiv},
    {"lerp.Scalar", Lerp},
    {"lerp.Tensor", Lerp},
    {"square", Square},
    {"fill.Scalar", FillLike},
    {"fill.Tensor", FillLike},
    {"copy", Copy},
    {"abs", AbsOfBool},
    {"relu", Relu},
    {"positive", Same},
    {"_conj", Same},
    {"conj", Same},
    {"real", Same},
    {"resolve_conj", Same},
    {"resolve_neg", Same},
    {"sgn", Sgn},
    {"frac", Frac},
    {"fix", Fix},
    {"nan_to_num", NanToNum},
    {"xlogy.Tensor", Xlogy},
    {"xlogy.Scalar_Self", Xlogy},
    {"xlogy.Scalar_Other", Xlogy},
    {"special_xlog1py", Xlog1py},
    {"logaddexp", LogAddExp},
    {"logaddexp2", LogAddExp},
    {"hypot", Hypot},
    {"heaviside", Heaviside},
    {"copysign.Tensor", CopySign},
    {"copysign.Scalar", CopySign},
    {"sinc", Sinc},
    {"deg2rad", Radians},
    {"rad2deg", Degrees},
    {"isclose", IsClose},
    {"isfinite", IsFinite},
    {"isposinf", IsPosInf},
    {"isneginf", IsNegInf},
    {"isnan", PredicateOfInteger},
    {"isinf", PredicateOfInteger},
    {"signbit", SignbitOfInteger},
    {"ldexp.Tensor", Ldexp},
    {"_to_copy", ToCopy},
};

}  // namespace

absl::Span<const DecompositionRow> PointwiseRows() { return kRows; }

absl::Span<const DecompositionRow> UnaryRows() {
  static const auto* rows = [] {
    auto* made = new std::vector<DecompositionRow>;
    for (const auto& [target, op] : UnaryOperators()) {
      const LoopOpInfo& info = InfoOf(op);
      const bool of_aten = absl::StartsWith(target, "aten.");
      if (of_aten && info.op_class == LoopOpClass::kFloat) made->push_back({info.name, UnaryOfInteger});
    }
    return made;
  }();
  return *rows;
}

}  // namespace kiln
