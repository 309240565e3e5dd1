// Arithmetic on one floating point type, scalar or vector, for the math functions: short names, since
// the functions are formulas. `Int` is the integer type of the same width and lanes.
//
// Threads: one. Ownership: borrows the builder.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "llvm/IR/IRBuilder.h"

namespace kiln {

class MathBuilder {
 public:
  using V = llvm::Value*;

  MathBuilder(llvm::IRBuilder<>& builder, llvm::Type* float_type)
      : b(builder),
        type(float_type),
        is_double(float_type->getScalarType()->isDoubleTy()),
        int_type(float_type->getWithNewType(is_double ? builder.getInt64Ty() : builder.getInt32Ty())) {}

  V C(double v) const { return llvm::ConstantFP::get(type, v); }
  V I(int64_t v) const { return llvm::ConstantInt::getSigned(int_type, v); }
  V Inf() const { return llvm::ConstantFP::getInfinity(type); }
  V NaN() const { return llvm::ConstantFP::getNaN(type); }

  V Add(V x, V y) { return b.CreateFAdd(x, y); }
  V Sub(V x, V y) { return b.CreateFSub(x, y); }
  V Mul(V x, V y) { return b.CreateFMul(x, y); }
  V Mul(V x, double y) { return b.CreateFMul(x, C(y)); }
  V Div(V x, V y) { return b.CreateFDiv(x, y); }
  V Neg(V x) { return b.CreateFNeg(x); }
  V Fma(V x, V y, V z) {
    return b.CreateIntrinsic(llvm::Intrinsic::fma, llvm::ArrayRef<llvm::Type*>{type},
                             llvm::ArrayRef<llvm::Value*>{x, y, z});
  }
  V Abs(V x) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x); }
  V Sqrt(V x) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, x); }
  V Floor(V x) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::floor, x); }
  V Trunc(V x) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, x); }
  V Rint(V x) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::roundeven, x); }
  V CopySign(V magnitude, V sign) {
    return b.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, magnitude, sign);
  }

  V Lt(V x, V y) { return b.CreateFCmpOLT(x, y); }
  V Le(V x, V y) { return b.CreateFCmpOLE(x, y); }
  V Gt(V x, V y) { return b.CreateFCmpOGT(x, y); }
  V Ge(V x, V y) { return b.CreateFCmpOGE(x, y); }
  V Eq(V x, V y) { return b.CreateFCmpOEQ(x, y); }
  V IsNan(V x) { return b.CreateFCmpUNO(x, x); }
  V Sel(V condition, V x, V y) { return b.CreateSelect(condition, x, y); }
  V And(V x, V y) { return b.CreateAnd(x, y); }
  V Or(V x, V y) { return b.CreateOr(x, y); }
  V Not(V x) { return b.CreateNot(x); }
  // As minps and maxps: y where either is NaN.
  V Min(V x, V y) { return Sel(Lt(x, y), x, y); }
  V Max(V x, V y) { return Sel(Gt(x, y), x, y); }
  V Clamp(V x, double low, double high) { return Max(C(low), Min(C(high), x)); }  // NaN passes

  V Bits(V x) { return b.CreateBitCast(x, int_type); }
  V FromBits(V x) { return b.CreateBitCast(x, type); }
  int MantissaBits() const { return is_double ? 52 : 23; }
  int Bias() const { return is_double ? 1023 : 127; }
  // 2^n for a normal result; n an integer vector.
  V PowerOfTwo(V n) { return FromBits(b.CreateShl(b.CreateAdd(n, I(Bias())), I(MantissaBits()))); }
  // x * 2^n, rounded once, for |n| below twice the exponent range; x near 1.
  V Scale(V x, V n) {
    V half = b.CreateAShr(n, I(1));
    return Mul(Mul(x, PowerOfTwo(half)), PowerOfTwo(b.CreateSub(n, half)));
  }
  // Nearest integer of a small x, as a float and as an integer; NaN gives something, without trapping.
  V Nearest(V x, V* as_int) { return Unshift(Add(x, Magic()), as_int); }
  // Of x * y, which is rounded this once.
  V NearestProduct(V x, V y, V* as_int) { return Unshift(Fma(x, y, Magic()), as_int); }
  // 1.5 * 2^mantissa bits: a small number that is added to it is rounded to an integer in its lowest bits.
  V Magic() const { return C(MagicNumber()); }
  // A small n that is added to this one has the exponent of 2^(n + more) in its lowest bits; PowerFrom is
  // that power.
  V PowerMagic(int more = 0) const { return C(MagicNumber() + Bias() + more); }
  V PowerFrom(V shifted) { return FromBits(b.CreateShl(Bits(shifted), I(MantissaBits()))); }
  V Unshift(V shifted, V* as_int) {
    if (as_int != nullptr) *as_int = b.CreateSub(Bits(shifted), Bits(Magic()));
    return Sub(shifted, Magic());
  }
  // Highest power first, by Horner's rule with fused operations.
  V Poly(V x, std::initializer_list<double> coefficients) {
    V sum = nullptr;
    for (double coefficient : coefficients) {
      sum = sum == nullptr ? C(coefficient) : Fma(sum, x, C(coefficient));
    }
    return sum;
  }
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)); for positive finite x, subnormals included.
  V Frexp(V x, V* exponent) {
    V tiny = Lt(x, C(is_double ? 2.2250738585072014e-308 : 1.17549435e-38));
    V scaled = Sel(tiny, Mul(x, is_double ? 18014398509481984.0 : 16777216.0), x);  // 2^54, 2^24
    V bits = Bits(scaled);
    // The offset moves the split point of the mantissa to sqrt(1/2).
    V offset = is_double ? I(0x3FE6A09E667F3BCD) : I(0x3F3504F3);
    V shifted = b.CreateSub(bits, offset);
    V e = b.CreateAShr(shifted, I(MantissaBits()));
    V m = FromBits(b.CreateSub(bits, b.CreateShl(e, I(MantissaBits()))));
    V adjusted = b.CreateSub(e, Sel(tiny, I(is_double ? 54 : 24), I(0)));
    *exponent = b.CreateSIToFP(adjusted, type);
    return m;
  }

  static constexpr double kLog2E = 0x1.71547652b82fep+0;
  // ln 2 of floats in two parts; the first has trailing zeros, so that a multiple of it is exact.
  static constexpr double kLn2HighF = 0x1.63p-1;
  static constexpr double kLn2LowF = -0x1.bd0105c610ca8p-13;

  llvm::IRBuilder<>& b;
  llvm::Type* const type;
  const bool is_double;
  llvm::Type* const int_type;

 private:
  double MagicNumber() const { return is_double ? 6755399441055744.0 : 12582912.0; }
};

}  // namespace kiln
