// Float functions for NVIDIA GPUs: as short as the arithmetic there allows. Kernels that move a few bytes an
// element have time for about fifty instructions on each.
#include "compiler/codegen/math.h"
#include "compiler/codegen/math_exponent.h"
#include "compiler/codegen/math_formulas.h"
#include "llvm/IR/IntrinsicsNVPTX.h"

namespace kiln {
namespace {

using V = llvm::Value*;

V PerLane(MathBuilder& m, llvm::ArrayRef<V> args, absl::FunctionRef<V(llvm::ArrayRef<V>)> emit) {
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(m.type);
  if (vector == nullptr) return emit(args);
  V result = llvm::PoisonValue::get(vector);
  for (uint64_t lane = 0; lane < vector->getNumElements(); ++lane) {
    llvm::SmallVector<V, 3> parts;
    for (V arg : args) parts.push_back(m.b.CreateExtractElement(arg, lane));
    result = m.b.CreateInsertElement(result, emit(parts), lane);
  }
  return result;
}

V Fma(MathBuilder& m, llvm::Intrinsic::ID id, V x, V y, V z) {
  return PerLane(m, {x, y, z},
                 [&](llvm::ArrayRef<V> args) { return m.b.CreateIntrinsic(m.b.getFloatTy(), id, args); });
}

// 1 / x, to 1 ulp; 0 for an infinite x, and where it would be subnormal.
V FastReciprocal(MathBuilder& m, V x) {
  return PerLane(m, {x}, [&](llvm::ArrayRef<V> args) {
    return m.b.CreateIntrinsic(m.b.getFloatTy(), llvm::Intrinsic::nvvm_rcp_approx_ftz_f, args);
  });
}

// To 2^-22 of it; results below 2^-126 are 0.
V GpuExp2(MathBuilder& m, V x) {
  return PerLane(m, {x}, [&](llvm::ArrayRef<V> args) {
    return m.b.CreateIntrinsic(m.b.getFloatTy(), llvm::Intrinsic::nvvm_ex2_approx_ftz, args);
  });
}

// 2^n 2^f with n = floor(x log2 e) held to [-126, 126] by a saturating multiplication: beyond that f takes
// the rest, so that subnormal results, zero and infinity come out of the last product.
V GpuExp(MathBuilder& m, V x) {
  constexpr double kSteps = 252;
  V part = Fma(m, llvm::Intrinsic::nvvm_fma_rn_sat_f, x, m.C(0x1.71547652b82fep+0 / kSteps), m.C(0.5));
  V shifted =
      Fma(m, llvm::Intrinsic::nvvm_fma_rm_f, part, m.C(kSteps), m.Sub(PowerMagic(m), m.C(kSteps / 2)));
  V n = m.Sub(shifted, PowerMagic(m));
  V f = m.Fma(x, m.C(0x1.715476p+0), m.Neg(n));
  f = m.Fma(x, m.C(0x1.4ae0cp-26), f);
  return m.Mul(PowerFrom(m, shifted), GpuExp2(m, f));
}

// A polynomial near 0, where 1 - 2 / (e^2x + 1) would lose digits.
V GpuTanh(MathBuilder& m, V x) {
  V a = m.Abs(x);
  V z = m.Mul(a, a);
  V p = m.Poly(z, {0.015612626494026961, -0.05221180274363313, 0.13313116584123866, -0.33332597503701356});
  V inner = m.Fma(m.Mul(p, z), a, a);
  V power = GpuExp2(m, m.Mul(a, 2 * MathBuilder::kLog2E));
  V outer = m.Fma(FastReciprocal(m, m.Add(power, m.C(1.0))), m.C(-2.0), m.C(1.0));
  return m.CopySign(m.Sel(m.Gt(a, m.C(0.6)), outer, inner), x);  // NaN: the inner one
}

// 2 / (1 + e^-2x): of a large negative x, 1 + tanh(x) would be what tanh(x) errs by.
V GpuOnePlusTanh(MathBuilder& m, V x) {
  V power = GpuExp(m, m.Mul(x, -2.0));
  return m.Mul(FastReciprocal(m, m.Add(power, m.C(1.0))), 2.0);
}

V GpuErf(MathBuilder& m, V x) {
  V a = m.Abs(x);
  return formulas::FloatErf(m, x, a, m.b.CreateMinNum(a, m.C(4.0)),
                            [&](V power) { return m.Sub(m.C(1.0), GpuExp2(m, power)); });
}

}  // namespace

const FloatFunctions MathEmitter::kGpuFunctions = {.exp = GpuExp,
                                                   .tanh = GpuTanh,
                                                   .one_plus_tanh = GpuOnePlusTanh,
                                                   .erf = GpuErf,
                                                   .sin_cos = &MathEmitter::GpuSinCos};

// x = n pi/2 + r. Every part of pi/2 is taken off, so that -0 stays; r of an infinity is NaN.
MathEmitter::Quadrant MathEmitter::GpuReduce(MathBuilder& m, V x) {
  llvm::IRBuilder<>& b = m.b;
  if (x == quadrant_of_ && b.GetInsertBlock() == quadrant_.block) return quadrant_;
  V shifted = m.Fma(x, m.C(0x1.45f306dc9c883p-1), Magic(m));
  V whole = m.Sub(shifted, Magic(m));
  V n = m.Bits(shifted);
  V r = m.Fma(whole, m.C(-0x1.921fb40000000p+0), x);
  r = m.Fma(whole, m.C(-0x1.4442d00000000p-24), r);
  r = m.Fma(whole, m.C(-0x1.84698a0000000p-48), r);
  V largest = nullptr;
  PerLane(m, {m.Abs(x)}, [&](llvm::ArrayRef<V> args) {
    largest = largest == nullptr ? args[0] : b.CreateMaxNum(largest, args[0]);
    return args[0];
  });
  V any = b.CreateFCmpOGE(largest, llvm::ConstantFP::get(largest->getType(), kLargeArgument));
  quadrant_ = ReduceWhereLarge(
      m, x, {r, n}, any, [&] { return m.And(m.Ge(m.Abs(x), m.C(kLargeArgument)), m.Lt(m.Abs(x), m.Inf())); });
  quadrant_of_ = x;
  return quadrant_;
}

V MathEmitter::GpuSinCos(MathBuilder& m, V x, LoopOpcode op) {
  llvm::IRBuilder<>& b = m.b;
  const Quadrant quadrant = GpuReduce(m, x);
  V r = quadrant.r;
  V z = m.Mul(r, r);
  V s = m.Poly(z, {-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1});
  V sine = m.Mul(r, m.Fma(z, s, m.C(1.0)));  // of -0 too
  V c = m.Poly(z, {2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2});
  V cosine = m.Fma(m.Mul(z, z), c, m.Fma(z, m.C(-0.5), m.C(1.0)));
  V odd = b.CreateICmpNE(b.CreateAnd(quadrant.n, m.I(1)), m.I(0));
  const bool is_cosine = op == LoopOpcode::kCos;
  V index = is_cosine ? b.CreateAdd(quadrant.n, m.I(1)) : quadrant.n;
  V value = is_cosine ? m.Sel(odd, sine, cosine) : m.Sel(odd, cosine, sine);
  return m.FromBits(b.CreateXor(m.Bits(value), b.CreateShl(b.CreateAnd(index, m.I(2)), 30)));
}

}  // namespace kiln
