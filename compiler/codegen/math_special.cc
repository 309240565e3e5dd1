// Error function, gamma function, and the exact remainders of floats. The coefficients of Erf, Erfc and
// Lgamma are Chebyshev interpolants of the functions named beside them, to about 2^-53.
#include "compiler/codegen/math.h"
#include "compiler/codegen/math_exponent.h"
#include "compiler/codegen/math_formulas.h"

namespace kiln {
namespace {

using V = llvm::Value*;

// erf(x)/x in x², |x| ≤ 1.
V ErfNearZero(MathBuilder& m, V x) {
  V z = m.Mul(x, x);
  V p = m.Poly(
      z, {-7.7958988270021425e-10, 1.3720064546777686e-08, -1.6208483801871705e-07, 1.6447424703317362e-06,
          -1.4924736907419661e-05, 0.00012055294904839707, -0.00085483259753896918, 0.0052239776071164225,
          -0.02686617064323777, 0.11283791670945006, -0.37612638903183543});
  // 2/√π in two parts.
  V low = m.Fma(z, p, m.C(1.5335459613165881e-17));
  return m.Fma(x, m.C(1.1283791670955126), m.Mul(x, low));
}

// e^-ax · ax for large arguments of lgamma.
V StirlingTail(MathBuilder& m, V inverse) {
  V z = m.Mul(inverse, inverse);
  return m.Mul(inverse, m.Poly(z, {-3617.0 / 122400, 1.0 / 156, -691.0 / 360360, 1.0 / 1188, -1.0 / 1680,
                                   1.0 / 1260, -1.0 / 360, 1.0 / 12}));
}

// lgamma(2+z) / (z (z+1)) for |z| ≤ 1.
V LgammaNearTwo(MathBuilder& m, V z) {
  V p = m.Poly(
      z, {1.4756784497956257e-09, -3.0450831046164058e-09, -3.6707781973177215e-09, 7.5469821060442159e-09,
          1.4354602538186547e-08, -2.9689377236178223e-08, 8.9807529313193279e-09,  -1.9155798912805917e-08,
          1.0090082501416391e-07, -2.1160209415295267e-07, 3.9829198619176525e-07,  -8.4178781855662071e-07,
          1.8101965374585382e-06, -3.8516280245686349e-06, 8.2216411846884579e-06,  -1.7660549436859962e-05,
          3.8168983839289731e-05, -8.3095320514340102e-05, 0.00018255262896164608,  -0.00040570737671834022,
          0.00091537692285927476, -0.0021081308352055112,  0.0049986411646803603,   -0.012384192193336403,
          0.032965000621155968,   -0.10031730167435421,    0.42278433509846713});
  return m.Mul(m.Mul(z, m.Add(z, m.C(1.0))), p);
}

// 1 - 2^x of floats for -100 ≤ x ≤ 0.
V OneLessExp2(MathBuilder& m, V x) {
  V shifted = m.Add(x, PowerMagic(m));
  V f = m.Sub(x, m.Sub(shifted, PowerMagic(m)));
  V p = m.Poly(f, {1.32645875e-3, 9.67161923e-3, 5.55073504e-2, 2.40222405e-1, 6.93146976e-1, 1.0});
  return m.Fma(m.Neg(p), PowerFrom(m, shifted), m.C(1.0));
}

}  // namespace

// e^-x² t(x) / (1 + 2x) with t a polynomial in (x - 3.75) / (x + 3.75), for x ≥ 0.45.
V MathEmitter::Erfc(MathBuilder& m, V x) {
  V a = m.Abs(x);
  V bounded = m.Sel(m.Gt(a, m.C(28.0)), m.C(28.0), a);
  V t = m.Div(m.Sub(bounded, m.C(3.75)), m.Add(bounded, m.C(3.75)));
  V p = m.Poly(
      t, {-1.8816544890217931e-09, 2.4400383726855472e-08, 1.9345116508296444e-08,  -2.3982129862269504e-07,
          -5.2975305834164503e-08, 1.7371763592838642e-06, -9.7626571454456554e-07, -1.1437184601940448e-05,
          2.2385310852576762e-05,  5.1646938481533242e-05, -0.00029015434683872342, 0.0002937140960700885,
          0.001755625893430372,    -0.0097465796113503731, 0.028362277415409323,    -0.0586933985858041,
          0.092304321160534275,    -0.10880393014188905,   0.082276738490142567,    0.0035854154854664086,
          -0.14024059858554697,    1.2375126308378275});
  V square = m.Mul(bounded, bounded);
  V square_low = m.Fma(bounded, bounded, m.Neg(square));
  V factor = m.Div(p, m.Fma(bounded, m.C(2.0), m.C(1.0)));
  V tail = DoubleExp(m, m.Neg(square), m.Neg(square_low), factor);
  V outer = m.Sel(m.Lt(x, m.C(0.0)), m.Sub(m.C(2.0), tail), tail);
  V inner = m.Sub(m.C(1.0), ErfNearZero(m, x));
  V result = m.Sel(m.Lt(a, m.C(0.46875)), inner, outer);
  return m.Sel(m.IsNan(x), x, result);
}

V MathEmitter::Erf(MathBuilder& m, V x) {
  V a = m.Abs(x);
  V tail = m.Sub(m.C(1.0), Erfc(m, m.Max(a, m.C(1.0))));
  V result = m.Sel(m.Lt(a, m.C(1.0)), ErfNearZero(m, a), tail);
  return m.Sel(m.IsNan(x), x, m.CopySign(result, x));
}

// Two minimax polynomials; the outer one is of log2(1 - erf) / x. What is taken from 1 there is below 0.19,
// so that 2^-22 of it suffices. NaN takes the inner one, whatever its bound.
V formulas::FloatErf(MathBuilder& m, V x, V magnitude, V bounded, absl::FunctionRef<V(V)> one_less_exp2) {
  V q = m.Poly(bounded, {0.0003083752662796532, -0.004635392559181439, 0.03301420661633709,
                         -0.15184660391751706, -0.9171584326792741, -1.6280988721996477});
  V power = m.Mul(q, bounded);
  V outer = one_less_exp2(power);
  V p = m.Poly(m.Mul(x, x),
               {-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1});
  V inner = m.Fma(p, x, x);
  return m.Sel(m.Gt(magnitude, m.C(0.927734375)), m.CopySign(outer, x), inner);
}

V MathEmitter::FloatErf(MathBuilder& m, V x) {
  if (own_.erf != nullptr) return own_.erf(m, x);
  V a = m.Abs(x);
  return formulas::FloatErf(m, x, a, m.Min(m.C(4.0), a), [&](V power) { return OneLessExp2(m, power); });
}

// Q + x P over Q, where erf(x) is nearly x P / Q with P and Q in x²: minimax on [0, 4] by 2^-25, then moved
// by some last places so that 4 P = Q at 4, without rounding. From there on the result is 0 or 2.
V MathEmitter::OnePlusErf(MathBuilder& m, V x) {
  if (m.is_double) return m.Add(m.C(1.0), Erf(m, x));
  if (own_.erf != nullptr) return m.Add(m.C(1.0), own_.erf(m, x));
  V clamped = m.Clamp(x, -4.0, 4.0);
  V z = m.Mul(clamped, clamped);
  V p = m.Poly(z, {1.9867829905706458e-6, 2.8456695144996047e-4, 3.88337136246264e-3, 5.310181900858879e-2,
                   1.9354568421840668e-1, 1.1283788681030273});
  V q = m.Poly(z, {3.7420242733787745e-5, 1.1855786433443427e-3, 1.5207302756607533e-2, 1.1535023897886276e-1,
                   5.048578381538391e-1, 1.0});
  return m.Div(m.Max(m.C(0.0), m.Fma(clamped, p, q)), q);
}

// 1 + tanh(x) = 2 / (1 + e^-2x)
V MathEmitter::OnePlusTanh(MathBuilder& m, V x) {
  if (own_.one_plus_tanh != nullptr && !m.is_double) return own_.one_plus_tanh(m, x);
  return m.Div(m.C(2.0), m.Add(m.C(1.0), Exp(m, m.Mul(x, -2.0))));
}

// Three ranges of |x|: a polynomial on [1, 3], moved there by recurrence below 8, Stirling above;
// negative arguments by reflection.
V MathEmitter::Lgamma(MathBuilder& m, V x) {
  V a = m.Abs(x);
  V one = m.C(1.0);
  // Below 1: lgamma(a) = lgamma(a + 1) - log(a). From 3 to 8: lgamma(y + k) = log(y (y+1) …) + lgamma(y).
  V below = m.Lt(a, one);
  V base = m.Sel(below, m.Add(a, one), a);
  V product = m.Sel(below, a, one);
  for (int step = 0; step < 5; ++step) {
    V above = m.And(m.Gt(base, m.C(3.0)), m.Lt(a, m.C(8.0)));
    V lower = m.Sub(base, one);
    product = m.Sel(above, m.Mul(product, lower), product);
    base = m.Sel(above, lower, base);
  }
  V z = m.Sel(below, a, m.Sub(base, m.C(2.0)));  // a + 1 - 2 for a < 1, without rounding below
  z = m.Sel(below, m.Sub(a, one), z);
  V log = formulas::Log(m, m.Sel(m.Ge(a, m.C(8.0)), a, product));
  V near = LgammaNearTwo(m, z);
  V small = m.Sel(below, m.Sub(near, log), m.Add(near, log));
  V inverse = m.Div(one, a);
  V large =
      m.Add(m.Fma(m.Sub(a, m.C(0.5)), m.Sub(log, one), m.C(0x1.acfe390c97d69p-2)), StirlingTail(m, inverse));
  // (a - 1/2)(log a - 1) + (log(2π) - 1)/2 overflows only where lgamma does.
  V positive = m.Sel(m.Ge(a, m.C(8.0)), large, small);
  positive = m.Sel(m.Eq(a, m.Inf()), m.Inf(), positive);
  positive = m.Sel(m.Eq(a, m.C(0.0)), m.Inf(), positive);
  // lgamma(-a) = log(π / (a |sin πa|)) - lgamma(a)
  V fraction = m.Sub(a, m.Floor(a));
  fraction = m.Sel(m.Gt(fraction, m.C(0.5)), m.Sub(one, fraction), fraction);
  V sine = SinCos(m, m.Mul(fraction, 3.14159265358979323846), LoopOpcode::kSin);
  V reflected = m.Sub(m.Neg(formulas::Log(m, m.Mul(m.Mul(a, sine), 0x1.45f306dc9c883p-2))), positive);
  V at_pole = m.Eq(fraction, m.C(0.0));
  reflected = m.Sel(at_pole, m.Inf(), reflected);
  // Near zero the reflection cancels: lgamma(x) = -log|x| - γx there.
  V tiny = m.Lt(a, m.C(1e-9));
  reflected = m.Sel(tiny, positive, reflected);
  V result = m.Sel(m.Lt(x, m.C(0.0)), reflected, positive);
  result = m.Sel(m.Eq(a, m.Inf()), m.Inf(), result);
  return m.Sel(m.IsNan(x), x, result);
}

// Exact: |x| is reduced by multiples y 2^k whose quotients have at most 50 bits, until it is below |y|.
V formulas::Fmod(MathBuilder& m, V x, V y) {
  llvm::IRBuilder<>& b = m.b;
  V divisor = m.Abs(y);
  V start = m.Abs(x);
  V valid = m.And(m.And(m.Lt(start, m.Inf()), m.Gt(divisor, m.C(0.0))), m.Le(divisor, m.Inf()));
  start = m.Sel(valid, start, m.C(0.0));
  V safe = m.Sel(valid, divisor, m.C(1.0));
  const auto exponent = [&](V v) {
    V tiny = m.Lt(v, m.C(0x1p-1022));
    V bits = m.Bits(m.Sel(tiny, m.Mul(v, 0x1p54), v));
    return b.CreateSub(b.CreateLShr(bits, 52), m.Sel(tiny, m.I(54), m.I(0)));
  };
  const auto any = [&](V mask) -> V {
    auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(mask->getType());
    if (vector == nullptr) return mask;
    V bits = b.CreateBitCast(mask, b.getIntNTy(vector->getNumElements()));
    return b.CreateICmpNE(bits, llvm::ConstantInt::get(bits->getType(), 0));
  };
  V divisor_exponent = exponent(safe);
  llvm::Function* function = b.GetInsertBlock()->getParent();
  llvm::BasicBlock* before = b.GetInsertBlock();
  auto* loop = llvm::BasicBlock::Create(b.getContext(), "reduce", function);
  auto* done = llvm::BasicBlock::Create(b.getContext(), "reduced", function);
  b.CreateBr(loop);
  b.SetInsertPoint(loop);
  llvm::PHINode* rest = b.CreatePHI(m.type, 2);
  rest->addIncoming(start, before);
  V gap = b.CreateSub(b.CreateSub(exponent(rest), divisor_exponent), m.I(50));
  gap = b.CreateSelect(b.CreateICmpSGT(gap, m.I(0)), gap, m.I(0));
  // 2^gap may be beyond the range of one factor.
  V half = b.CreateLShr(gap, m.I(1));
  V step = m.Mul(m.Mul(safe, PowerOfTwo(m, half)), PowerOfTwo(m, b.CreateSub(gap, half)));
  V quotient = m.Trunc(m.Div(rest, step));
  V next = m.Fma(m.Neg(quotient), step, rest);
  next = m.Sel(m.Lt(next, m.C(0.0)), m.Add(next, step), next);
  next = m.Sel(m.Ge(next, step), m.Sub(next, step), next);
  next = m.Sel(m.Lt(rest, step), rest, next);
  rest->addIncoming(next, b.GetInsertBlock());
  b.CreateCondBr(any(m.Ge(next, safe)), loop, done);
  b.SetInsertPoint(done);
  return m.Sel(valid, m.CopySign(next, x), m.NaN());
}

V MathEmitter::Remainder(MathBuilder& m, V x, V y) {
  V rest = Emit(m.b, LoopOpcode::kFmod, {x, y});
  V differs = m.b.CreateXor(m.Lt(y, m.C(0.0)), m.Lt(rest, m.C(0.0)));
  V nonzero = m.b.CreateFCmpUNE(rest, m.C(0.0));
  return m.Sel(m.And(differs, nonzero), m.Add(rest, y), rest);
}

// As torch: the quotient of what the remainder leaves, rounded to the nearest integer below.
V MathEmitter::FloorDivide(MathBuilder& m, V x, V y) {
  V rest = Emit(m.b, LoopOpcode::kFmod, {x, y});
  V quotient = m.Div(m.Sub(x, rest), y);
  V differs = m.b.CreateXor(m.Lt(y, m.C(0.0)), m.Lt(rest, m.C(0.0)));
  V nonzero = m.b.CreateFCmpUNE(rest, m.C(0.0));
  quotient = m.Sel(m.And(differs, nonzero), m.Sub(quotient, m.C(1.0)), quotient);
  V floor = m.Floor(quotient);
  floor = m.Sel(m.Gt(m.Sub(quotient, floor), m.C(0.5)), m.Add(floor, m.C(1.0)), floor);
  V plain = m.Div(x, y);
  V result = m.Sel(m.b.CreateFCmpUNE(quotient, m.C(0.0)), floor, m.CopySign(m.C(0.0), plain));
  return m.Sel(m.Eq(y, m.C(0.0)), plain, result);
}

}  // namespace kiln
