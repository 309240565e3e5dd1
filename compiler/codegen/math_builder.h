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
  // Highest power first, by Horner's rule with fused operations.
  V Poly(V x, std::initializer_list<double> coefficients) {
    V sum = nullptr;
    for (double coefficient : coefficients) {
      sum = sum == nullptr ? C(coefficient) : Fma(sum, x, C(coefficient));
    }
    return sum;
  }

  static constexpr double kLog2E = 0x1.71547652b82fep+0;
  // ln 2 of floats in two parts; the first has trailing zeros, so that a multiple of it is exact.
  static constexpr double kLn2HighF = 0x1.63p-1;
  static constexpr double kLn2LowF = -0x1.bd0105c610ca8p-13;

  llvm::IRBuilder<>& b;
  llvm::Type* const type;
  const bool is_double;
  llvm::Type* const int_type;
};

}  // namespace kiln
