#include "compiler/ir/scalar_ops.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "compiler/ir/dtype_groups.h"
#include "compiler/ir/half.h"

namespace kiln {
namespace {

template <typename T>
T Read(const void* base, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void Write(void* base, int64_t index, T value) {
  std::memcpy(static_cast<char*>(base) + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

Scalar OfInt(int64_t i) {
  Scalar value;
  value.i = i;
  return value;
}
Scalar OfFloat(float f) {
  Scalar value;
  value.f = f;
  return value;
}
Scalar OfDouble(double d) {
  Scalar value;
  value.d = d;
  return value;
}

double AsDouble(v1::DType dtype, Scalar value) {
  if (dtype == v1::F64) return value.d;
  if (dtype == v1::F32 || ir::IsHalf(dtype)) return value.f;
  return static_cast<double>(value.i);
}

// c10's floor division of floats.
template <typename T>
T FloorDivide(T a, T b) {
  if (b == 0) return a / b;
  T mod = std::fmod(a, b), div = (a - mod) / b;
  if (mod != 0 && (b < 0) != (mod < 0)) div -= 1;
  if (div == 0) return std::copysign(T(0), a / b);
  T floored = std::floor(div);
  return div - floored > T(0.5) ? floored + 1 : floored;
}

template <typename T>
T Remainder(T a, T b) {
  T mod = std::fmod(a, b);
  return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;
}

double LogGamma(double x) {
  int sign;  // std::lgamma writes a global
  return lgamma_r(x, &sign);
}

// Functions of one argument, in double: an F32 result is rounded once more.
double Function(LoopOpcode op, double x) {
  switch (op) {
    case LoopOpcode::kExp: return std::exp(x);
    case LoopOpcode::kExp2: return std::exp2(x);
    case LoopOpcode::kExpm1: return std::expm1(x);
    case LoopOpcode::kLog: return std::log(x);
    case LoopOpcode::kLog2: return std::log2(x);
    case LoopOpcode::kLog10: return std::log10(x);
    case LoopOpcode::kLog1p: return std::log1p(x);
    case LoopOpcode::kSin: return std::sin(x);
    case LoopOpcode::kCos: return std::cos(x);
    case LoopOpcode::kTan: return std::tan(x);
    case LoopOpcode::kAsin: return std::asin(x);
    case LoopOpcode::kAcos: return std::acos(x);
    case LoopOpcode::kAtan: return std::atan(x);
    case LoopOpcode::kSinh: return std::sinh(x);
    case LoopOpcode::kCosh: return std::cosh(x);
    case LoopOpcode::kTanh: return std::tanh(x);
    case LoopOpcode::kAsinh: return std::asinh(x);
    case LoopOpcode::kAcosh: return std::acosh(x);
    case LoopOpcode::kAtanh: return std::atanh(x);
    case LoopOpcode::kErf: return std::erf(x);
    case LoopOpcode::kErfc: return std::erfc(x);
    case LoopOpcode::kSigmoid: {  // not by e^-x, which is infinite where the result is subnormal
      const double e = std::exp(-std::fabs(x));
      return (x < 0 ? e : 1.0) / (1.0 + e);
    }
    case LoopOpcode::kLgamma: return LogGamma(x);
    case LoopOpcode::kOnePlusErf: return 1 + std::erf(x);
    case LoopOpcode::kOnePlusTanh: return 1 + std::tanh(x);
    case LoopOpcode::kSoftmaxExp: return std::exp(x);
    default: return std::nan("");
  }
}

template <typename T>
T FloatOp(LoopOpcode op, T a, T b, T c) {
  switch (op) {
    case LoopOpcode::kAdd: return a + b;
    case LoopOpcode::kSub: return a - b;
    case LoopOpcode::kMul: return a * b;
    case LoopOpcode::kDiv: return a / b;
    case LoopOpcode::kFloorDiv: return FloorDivide(a, b);
    case LoopOpcode::kTruncDiv: return std::trunc(a / b);
    case LoopOpcode::kRemainder: return Remainder(a, b);
    case LoopOpcode::kFmod: return std::fmod(a, b);
    case LoopOpcode::kNeg: return -a;
    case LoopOpcode::kAbs: return std::fabs(a);
    case LoopOpcode::kSign: return static_cast<T>((a > 0) - (a < 0));
    case LoopOpcode::kMaximum: return std::isnan(a) ? a : (a > b ? a : b);
    case LoopOpcode::kMinimum: return std::isnan(a) ? a : (a < b ? a : b);
    case LoopOpcode::kFma: return std::fma(a, b, c);
    case LoopOpcode::kSqrt: return std::sqrt(a);
    case LoopOpcode::kRsqrt: return T(1) / std::sqrt(a);
    case LoopOpcode::kReciprocal: return T(1) / a;
    case LoopOpcode::kFloor: return std::floor(a);
    case LoopOpcode::kCeil: return std::ceil(a);
    case LoopOpcode::kTrunc: return std::trunc(a);
    case LoopOpcode::kRound: return std::nearbyint(a);
    case LoopOpcode::kPow: return static_cast<T>(std::pow(static_cast<double>(a), static_cast<double>(b)));
    case LoopOpcode::kAtan2:
      return static_cast<T>(std::atan2(static_cast<double>(a), static_cast<double>(b)));
    default: return static_cast<T>(Function(op, static_cast<double>(a)));
  }
}

// Unsigned arithmetic wraps; the result is cut to the dtype's width by the caller.
int64_t Wrapping(LoopOpcode op, int64_t a, int64_t b) {
  uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
  if (op == LoopOpcode::kAdd) return static_cast<int64_t>(x + y);
  if (op == LoopOpcode::kSub) return static_cast<int64_t>(x - y);
  return static_cast<int64_t>(x * y);
}

int64_t IntegerPower(int64_t a, int64_t b) {
  if (b < 0) {
    if (a == 1) return 1;
    if (a == -1) return b % 2 == 0 ? 1 : -1;
    return 0;
  }
  int64_t power = 1;
  for (uint64_t left = static_cast<uint64_t>(b); left != 0; left >>= 1) {
    if (left & 1) power = Wrapping(LoopOpcode::kMul, power, a);
    a = Wrapping(LoopOpcode::kMul, a, a);
  }
  return power;
}

int64_t Shift(LoopOpcode op, v1::DType dtype, int64_t a, int64_t b) {
  int64_t width = ir::ByteWidth(dtype) * 8;
  bool out = b < 0 || b >= width;
  if (op == LoopOpcode::kShiftLeft) return out ? 0 : static_cast<int64_t>(static_cast<uint64_t>(a) << b);
  return out ? (a < 0 ? -1 : 0) : a >> b;
}

// False: division by zero.
bool IntegerOp(LoopOpcode op, v1::DType dtype, int64_t a, int64_t b, int64_t* result) {
  switch (op) {
    case LoopOpcode::kAdd:
    case LoopOpcode::kSub:
    case LoopOpcode::kMul: *result = Wrapping(op, a, b); break;
    case LoopOpcode::kFloorDiv:
    case LoopOpcode::kTruncDiv:
    case LoopOpcode::kRemainder:
    case LoopOpcode::kFmod: {
      if (b == 0) return false;
      bool quotient = op == LoopOpcode::kFloorDiv || op == LoopOpcode::kTruncDiv;
      if (b == -1) {  // INT64_MIN / -1 wraps
        *result = quotient ? Wrapping(LoopOpcode::kSub, 0, a) : 0;
        break;
      }
      int64_t q = a / b, r = a % b;
      bool floor =
          (op == LoopOpcode::kFloorDiv || op == LoopOpcode::kRemainder) && r != 0 && (r < 0) != (b < 0);
      *result = quotient ? q - (floor ? 1 : 0) : r + (floor ? b : 0);
      break;
    }
    case LoopOpcode::kNeg: *result = Wrapping(LoopOpcode::kSub, 0, a); break;
    case LoopOpcode::kAbs: *result = a < 0 ? Wrapping(LoopOpcode::kSub, 0, a) : a; break;
    case LoopOpcode::kSign: *result = (a > 0) - (a < 0); break;
    case LoopOpcode::kMaximum: *result = a > b ? a : b; break;
    case LoopOpcode::kMinimum: *result = a < b ? a : b; break;
    case LoopOpcode::kPow: *result = IntegerPower(a, b); break;
    case LoopOpcode::kBitAnd: *result = a & b; break;
    case LoopOpcode::kBitOr: *result = a | b; break;
    case LoopOpcode::kBitXor: *result = a ^ b; break;
    case LoopOpcode::kBitNot: *result = ~a; break;
    default: *result = Shift(op, dtype, a, b); break;
  }
  *result = WrapInteger(dtype, *result);
  return true;
}

int64_t BooleanOp(LoopOpcode op, int64_t a, int64_t b) {
  switch (op) {
    case LoopOpcode::kAdd:
    case LoopOpcode::kMaximum:
    case LoopOpcode::kBitOr:
    case LoopOpcode::kLogicalOr: return a | b;
    case LoopOpcode::kBitXor:
    case LoopOpcode::kLogicalXor: return a ^ b;
    case LoopOpcode::kBitNot:
    case LoopOpcode::kLogicalNot: return a ^ 1;
    default: return a & b;
  }
}

template <typename T>
bool Compare(LoopOpcode op, T a, T b) {
  switch (op) {
    case LoopOpcode::kEq: return a == b;
    case LoopOpcode::kNe: return a != b;
    case LoopOpcode::kLt: return a < b;
    case LoopOpcode::kLe: return a <= b;
    case LoopOpcode::kGt: return a > b;
    case LoopOpcode::kGe: return a >= b;
    case LoopOpcode::kIsNan: return a != a;
    default:
      if constexpr (std::is_floating_point_v<T>) return std::isinf(a);
      return false;
  }
}

}  // namespace

Scalar LoadScalar(v1::DType dtype, const void* base, int64_t index) {
  switch (dtype) {
    case v1::F16: return OfFloat(FromF16(Read<uint16_t>(base, index)));
    case v1::BF16: return OfFloat(FromBF16(Read<uint16_t>(base, index)));
    case v1::F32: return OfFloat(Read<float>(base, index));
    case v1::F64: return OfDouble(Read<double>(base, index));
    default: break;
  }
  int64_t bits = 0;
  const int width = ir::ByteWidth(dtype);
  std::memcpy(&bits, static_cast<const char*>(base) + index * width, width);
  return OfInt(WrapInteger(dtype, bits));
}

void StoreScalar(v1::DType dtype, void* base, int64_t index, Scalar value) {
  switch (dtype) {
    case v1::F16: return Write(base, index, ToF16(value.f));
    case v1::BF16: return Write(base, index, ToBF16(value.f));
    case v1::F32: return Write(base, index, value.f);
    case v1::F64: return Write(base, index, value.d);
    default: break;
  }
  const int width = ir::ByteWidth(dtype);
  std::memcpy(static_cast<char*>(base) + index * width, &value.i, width);
}

Scalar AddScalars(v1::DType dtype, Scalar a, Scalar b) {
  if (ir::IsHalf(dtype)) return CastScalar(v1::F32, dtype, OfFloat(a.f + b.f));
  Scalar args[2] = {a, b}, sum;
  ApplyScalarOp(LoopOpcode::kAdd, dtype, args, &sum);
  return sum;
}

int64_t WrapInteger(v1::DType dtype, int64_t value) {
  if (dtype == v1::BOOL) return value != 0;
  const int beyond = 64 - 8 * ir::ByteWidth(dtype);
  const uint64_t top = static_cast<uint64_t>(value) << beyond;
  return ir::IsUnsigned(dtype) ? static_cast<int64_t>(top >> beyond) : static_cast<int64_t>(top) >> beyond;
}

Scalar ConstantScalar(v1::DType dtype, uint64_t bits) {
  if (!ir::IsFloating(dtype) && !ir::IsHalf(dtype))
    return OfInt(WrapInteger(dtype, static_cast<int64_t>(bits)));
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return CastScalar(v1::F64, dtype, OfDouble(value));
}

Scalar CastScalar(v1::DType from, v1::DType to, Scalar value) {
  bool from_float = ir::IsFloating(from) || ir::IsHalf(from);
  switch (to) {
    case v1::F64: return OfDouble(AsDouble(from, value));
    case v1::F32:
      // Integers go to F32 directly: by way of double they would be rounded twice.
      return OfFloat(from_float ? static_cast<float>(AsDouble(from, value)) : static_cast<float>(value.i));
    case v1::F16:
    case v1::BF16: {
      float single = CastScalar(from, v1::F32, value).f;
      return OfFloat(to == v1::F16 ? FromF16(ToF16(single)) : FromBF16(ToBF16(single)));
    }
    case v1::BOOL: return OfInt(from_float ? AsDouble(from, value) != 0 : value.i != 0);
    default: break;
  }
  if (!from_float) return OfInt(WrapInteger(to, value.i));
  double number = AsDouble(from, value);
  bool fits = number >= -9223372036854775808.0 && number < 9223372036854775808.0;
  return OfInt(WrapInteger(to, fits ? static_cast<int64_t>(number) : INT64_MIN));
}

Scalar BitcastScalar(v1::DType from, v1::DType to, Scalar value) {
  char bytes[8] = {};
  StoreScalar(from, bytes, 0, value);
  return LoadScalar(to, bytes, 0);
}

bool ApplyScalarOp(LoopOpcode op, v1::DType dtype, const Scalar* args, Scalar* result) {
  const LoopOpInfo& info = InfoOf(op);
  Scalar a = args[0], b = info.arity > 1 ? args[1] : OfInt(0), c = info.arity > 2 ? args[2] : OfInt(0);
  if (info.op_class == LoopOpClass::kCompare) {
    bool holds = dtype == v1::F32   ? Compare(op, a.f, b.f)
                 : dtype == v1::F64 ? Compare(op, a.d, b.d)
                                    : Compare(op, a.i, b.i);
    *result = OfInt(holds);
    return true;
  }
  switch (dtype) {
    case v1::F32: *result = OfFloat(FloatOp(op, a.f, b.f, c.f)); return true;
    case v1::F64: *result = OfDouble(FloatOp(op, a.d, b.d, c.d)); return true;
    case v1::BOOL: *result = OfInt(BooleanOp(op, a.i, b.i)); return true;
    default: return IntegerOp(op, dtype, a.i, b.i, &result->i);
  }
}

int64_t RandomBits(int64_t seed, int64_t flat, int64_t number) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
  uint64_t block = static_cast<uint64_t>(flat) >> 2, op = static_cast<uint64_t>(number);
  uint32_t counter[4] = {low(block), high(block), low(op), high(op)};
  uint32_t key[2] = {low(static_cast<uint64_t>(seed)), high(static_cast<uint64_t>(seed))};
  for (int round = 0; round < 10; ++round) {
    uint64_t p0 = counter[0] * kMultiplier0, p1 = counter[2] * kMultiplier1;
    uint32_t next[4] = {high(p1) ^ counter[1] ^ key[0], low(p1), high(p0) ^ counter[3] ^ key[1], low(p0)};
    std::memcpy(counter, next, sizeof(counter));
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter[flat & 3];
}

}  // namespace kiln
