// Exponentials, logarithms, powers and the hyperbolic functions.
#include <cmath>
#include <utility>

#include "compiler/codegen/math.h"
#include "compiler/codegen/math_exponent.h"
#include "compiler/codegen/math_formulas.h"

namespace kiln {
namespace {

using V = llvm::Value*;

constexpr double kLn2 = 0x1.62e42fefa39efp-1;
// ln 2 in two parts; the first has trailing zeros, so that a multiple of it is exact.
constexpr double kLn2High = 0x1.62e42feep-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;

struct Reduced {
  V whole;  // n as a float
  V n;      // integer
  V r;      // |r| ≤ ln2 / 2, about
};

// x = n ln2 + r
Reduced ReduceByLn2(MathBuilder& m, V x) {
  Reduced result;
  result.whole = NearestProduct(m, x, m.C(MathBuilder::kLog2E), &result.n);
  V r = m.Fma(result.whole, m.C(m.is_double ? -kLn2High : -MathBuilder::kLn2HighF), x);
  result.r = m.Fma(result.whole, m.C(m.is_double ? -kLn2Low : -MathBuilder::kLn2LowF), r);
  return result;
}

// (e^r - 1 - r) / r^2 for |r| ≤ ln2 / 2.
V ExpTail(MathBuilder& m, V r) {
  if (m.is_double) {  // Taylor: 1/13! … 1/2!
    return m.Poly(
        r, {1.6059043836821613e-10, 2.08767569878681e-09, 2.505210838544172e-08, 2.7557319223985888e-07,
            2.7557319223985893e-06, 2.4801587301587302e-05, 1.9841269841269841e-04, 1.3888888888888889e-03,
            8.3333333333333332e-03, 4.1666666666666664e-02, 1.6666666666666666e-01, 0.5});
  }
  // Minimax, to 2^-28 of e^r.
  return m.Poly(r, {1.3814539757e-3, 8.3687451417e-3, 4.1668390792e-2, 1.6666520399e-1, 4.9999993432e-1});
}

// log(1+f) - f + f²/2 for 1+f in [sqrt(1/2), sqrt(2)).
V LogTail(MathBuilder& m, V f) {
  if (!m.is_double) {
    V p = m.Poly(f, {7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
                     -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1});
    return m.Mul(m.Mul(m.Mul(f, f), f), p);
  }
  // s = f / (2+f); log(1+f) = f - s (f - R(s²)) … as in fdlibm.
  V s = m.Div(f, m.Add(m.C(2.0), f));
  V z = m.Mul(s, s);
  V r = m.Mul(z, m.Poly(z, {1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01,
                            2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01,
                            6.666666666666735130e-01}));
  V half_square = m.Mul(m.Mul(f, f), 0.5);
  return m.Mul(s, m.Add(half_square, r));
}

V LogDomain(MathBuilder& m, V x, V result) {
  result = m.Sel(m.Eq(x, m.Inf()), m.Inf(), result);
  result = m.Sel(m.Eq(x, m.C(0.0)), m.Neg(m.Inf()), result);
  return m.Sel(m.Ge(x, m.C(0.0)), result, m.NaN());
}

// Sums of two doubles that stand for more precision.
struct Pair {
  V high;
  V low;
};
Pair QuickSum(MathBuilder& m, V a, V b) {  // |a| ≥ |b|
  V sum = m.Add(a, b);
  return {sum, m.Sub(b, m.Sub(sum, a))};
}
Pair Sum(MathBuilder& m, V a, V b) {
  V sum = m.Add(a, b);
  V part = m.Sub(sum, a);
  return {sum, m.Add(m.Sub(a, m.Sub(sum, part)), m.Sub(b, part))};
}
Pair Sum(MathBuilder& m, Pair a, Pair b) {
  Pair s = Sum(m, a.high, b.high);
  return QuickSum(m, s.high, m.Add(s.low, m.Add(a.low, b.low)));
}
Pair Product(MathBuilder& m, V a, V b) {
  V product = m.Mul(a, b);
  return {product, m.Fma(a, b, m.Neg(product))};
}
Pair Product(MathBuilder& m, Pair a, Pair b) {
  Pair p = Product(m, a.high, b.high);
  return QuickSum(m, p.high, m.Add(p.low, m.Fma(a.high, b.low, m.Mul(a.low, b.high))));
}

// log x to about 2^-66 of its value, for positive finite x.
Pair WideLog(MathBuilder& m, V x) {
  V exponent;
  V mantissa = Frexp(m, x, &exponent);
  V f = m.Sub(mantissa, m.C(1.0));  // exact
  Pair g = Sum(m, mantissa, m.C(1.0));
  V high = m.Div(f, g.high);
  V rest = m.Fma(m.Neg(high), g.high, f);
  V low = m.Div(m.Fma(m.Neg(high), g.low, rest), g.high);
  Pair t = QuickSum(m, high, low);  // (m-1) / (m+1)
  Pair z = Product(m, t, t);
  Pair cube = Product(m, t, z);
  // log m = 2 (t + t³/3 + t⁵/5 + …)
  V tail = m.Poly(z.high, {2.0 / 23, 2.0 / 21, 2.0 / 19, 2.0 / 17, 2.0 / 15, 2.0 / 13, 2.0 / 11, 2.0 / 9,
                           2.0 / 7, 2.0 / 5});
  Pair sum = Product(m, {exponent, m.C(0.0)}, {m.C(kLn2), m.C(0x1.abc9e3b39803fp-56)});
  sum = Sum(m, sum, {m.Mul(t.high, 2.0), m.Mul(t.low, 2.0)});
  sum = Sum(m, sum, Product(m, cube, {m.C(0x1.5555555555555p-1), m.C(0x1.5555555555555p-55)}));
  return Sum(m, sum, {m.Mul(m.Mul(cube.high, z.high), tail), m.C(0.0)});
}

// x = 2 n ln2 + r with |r| ≤ ln2: 2^n 2^n e^r, which reaches subnormal numbers with no number of its own for
// each half of an exponent.
V FloatExp(MathBuilder& m, V x) {
  constexpr double kLimit = 120.0;  // beyond it the result is 0 or infinity
  V clamped = m.Clamp(x, -kLimit, kLimit);
  V shifted = m.Fma(clamped, m.C(MathBuilder::kLog2E / 2), PowerMagic(m));
  V whole = m.Sub(shifted, PowerMagic(m));
  V r = m.Fma(whole, m.C(-2 * MathBuilder::kLn2HighF), clamped);
  r = m.Fma(whole, m.C(-2 * MathBuilder::kLn2LowF), r);
  // Minimax, to 2^-26 of e^r; odd and even powers apart, so that fewer operations wait for each other.
  V square = m.Mul(r, r);
  V odd = m.Poly(square, {1.96116016e-4, 8.33610352e-3, 1.66666135e-1});
  V tail = m.Fma(odd, r, m.Poly(square, {1.41044718e-3, 4.16612700e-2, 5.00000358e-1}));
  V p = m.Add(m.Fma(square, tail, r), m.C(1.0));
  V half = PowerFrom(m, shifted);
  return m.Mul(m.Mul(p, half), half);
}

// e^x 2^more, not below e^low: a number near 1 and a power of 2, which must be in range, to be multiplied.
std::pair<V, V> ExpParts(MathBuilder& m, V x, double low, int more) {
  V clamped = m.Max(m.C(low), x);  // NaN passes
  V shifted = m.Fma(clamped, m.C(MathBuilder::kLog2E), PowerMagic(m, more));
  V n = m.Sub(shifted, PowerMagic(m, more));
  V r = m.Fma(n, m.C(-kLn2), clamped);  // ln2's rounding, 2^-29, times n
  V p = m.Poly(
      r, {8.29027004e-3, 4.18981606e-2, 1.66676382e-1, 4.99991478e-1, 9.99999706e-1, 1.0});  // to 2^-23.4
  return {p, PowerFrom(m, shifted)};
}

// e^x 2^more.
V ScaledExpBelow(MathBuilder& m, V x, int more) {
  const auto [p, power] = ExpParts(m, x, -104.0, more);  // e^-104 is 0
  return m.Mul(p, power);
}

}  // namespace

V MathEmitter::Exp(MathBuilder& m, V x) {
  if (m.is_double) return DoubleExp(m, x);
  return own_.exp != nullptr ? own_.exp(m, x) : FloatExp(m, x);
}

V MathEmitter::DoubleExp(MathBuilder& m, V x, V x_low, V factor, int shift) {
  constexpr double kLimit = 800.0;  // beyond it the result is 0 or infinity whatever the factor here
  Reduced reduced = ReduceByLn2(m, m.Clamp(x, -kLimit, kLimit));
  V r = reduced.r;
  V p = m.Fma(m.Mul(r, r), ExpTail(m, r), r);
  if (x_low != nullptr) p = m.Fma(m.Add(p, m.C(1.0)), x_low, p);
  p = m.Add(p, m.C(1.0));
  if (factor != nullptr) p = m.Mul(p, factor);
  return Scale(m, p, shift == 0 ? reduced.n : m.b.CreateAdd(reduced.n, m.I(shift)));
}

V MathEmitter::PlusExp(llvm::IRBuilder<>& b, V sum, V x) {
  MathBuilder m(b, x->getType());
  if (own_.plus_exp != nullptr && m.type->isVectorTy()) return own_.plus_exp(m, sum, x);
  const auto [p, power] = ExpParts(m, x, -87.0, 0);  // what is less changes no sum of 1 or more
  return m.Fma(p, power, sum);
}

V MathEmitter::SoftmaxExp(MathBuilder& m, V x) {
  if (m.is_double || own_.exp != nullptr) return Exp(m, x);
  return m.Mul(ScaledExpBelow(m, x, kExpBelowScale),
               std::ldexp(1.0, -kExpBelowScale));  // rounds to a subnormal number
}

V MathEmitter::ShiftedExpBelow(llvm::IRBuilder<>& b, V x) {
  MathBuilder m(b, x->getType());
  if (ExpBelowShift() == 0) return SoftmaxExp(m, x);
  return ScaledExpBelow(m, x, kExpBelowScale);
}

V MathEmitter::Exp2(MathBuilder& m, V x) {
  const double limit = m.is_double ? 1100.0 : 160.0;
  V clamped = m.Clamp(x, -limit, limit);
  V n;
  V whole = Nearest(m, clamped, &n);
  V r = m.Mul(m.Sub(clamped, whole), kLn2);
  V p = m.Add(m.Fma(m.Mul(r, r), ExpTail(m, r), r), m.C(1.0));
  if (m.is_double || own_.times_power_of_two == nullptr) return Scale(m, p, n);
  return own_.times_power_of_two(m, p, whole, n);
}

// e^x - 1 = 2 (2^(n-1) expm1(r) + (2^(n-1) - 1/2))
V formulas::Expm1(MathBuilder& m, V x) {
  const double high = m.is_double ? 710.0 : 89.0;
  const double low = m.is_double ? -60.0 : -30.0;
  Reduced reduced = ReduceByLn2(m, m.Clamp(x, low, high));
  V p = m.Fma(m.Mul(reduced.r, reduced.r), ExpTail(m, reduced.r), reduced.r);
  V scale = PowerOfTwo(m, m.b.CreateSub(reduced.n, m.I(1)));
  V result = m.Mul(m.Fma(scale, p, m.Sub(scale, m.C(0.5))), 2.0);
  result = m.Sel(m.b.CreateICmpEQ(reduced.n, m.I(0)), p, result);
  return m.Sel(m.Eq(x, m.C(0.0)), x, result);
}

V formulas::Log(MathBuilder& m, V x, LoopOpcode base) {
  V e;
  V f = m.Sub(Frexp(m, x, &e), m.C(1.0));
  V half_square = m.Mul(m.Mul(f, f), 0.5);
  V tail = LogTail(m, f);
  V result;
  if (base == LoopOpcode::kLog) {
    V low = m.Fma(e, m.C(m.is_double ? kLn2Low : MathBuilder::kLn2LowF), tail);
    result =
        m.Fma(e, m.C(m.is_double ? kLn2High : MathBuilder::kLn2HighF), m.Sub(f, m.Sub(half_square, low)));
  } else {
    // f - f²/2 in two parts, of which the first times the constant's first part is exact.
    V log = m.Sub(f, m.Sub(half_square, tail));
    V rest = m.Sub(m.Sub(f, log), m.Sub(half_square, tail));
    const bool two = base == LoopOpcode::kLog2;
    const double scale = two ? MathBuilder::kLog2E : 0x1.bcb7b1526e50ep-2;
    const float scale_float = static_cast<float>(scale);
    const double scale_high = m.is_double ? scale : static_cast<double>(scale_float);
    const double scale_low = m.is_double ? (two ? 0x1.777d0ffda0d24p-56 : 0x1.95355baaafad3p-57)
                                         : scale - static_cast<double>(scale_float);
    V low = m.Fma(log, m.C(scale_low), m.Mul(rest, scale_high));
    if (two) {
      result = m.Add(m.Fma(log, m.C(scale_high), low), e);
    } else {
      const double log2_high = m.is_double ? 0x1.34413509f4p-2 : 0x1.344p-2;
      const double log2_low = m.is_double ? 0x1.cff7988f8959bp-41 : 0x1.3509f79fef312p-18;
      low = m.Fma(e, m.C(log2_low), low);
      result = m.Fma(e, m.C(log2_high), m.Fma(log, m.C(scale_high), low));
    }
  }
  return LogDomain(m, x, result);
}

// log(1+x) = log(u) + c/u with u = 1+x rounded and c what the rounding lost.
V formulas::Log1p(MathBuilder& m, V x) {
  V u = m.Add(x, m.C(1.0));
  V back = m.Sub(u, m.C(1.0));
  V lost = m.Add(m.Sub(m.C(1.0), m.Sub(u, back)), m.Sub(x, back));
  V correction = m.Div(lost, u);
  V e;
  V f = m.Sub(Frexp(m, u, &e), m.C(1.0));
  V half_square = m.Mul(m.Mul(f, f), 0.5);
  V low = m.Fma(e, m.C(m.is_double ? kLn2Low : MathBuilder::kLn2LowF), m.Add(correction, LogTail(m, f)));
  V result =
      m.Fma(e, m.C(m.is_double ? kLn2High : MathBuilder::kLn2HighF), m.Sub(f, m.Sub(half_square, low)));
  result = LogDomain(m, u, result);
  // What is too small to change 1 is its own logarithm, subnormals and -0 included.
  return m.Sel(m.Eq(u, m.C(1.0)), x, result);
}

V MathEmitter::Sigmoid(MathBuilder& m, V x) {
  V e = Exp(m, m.Neg(m.Abs(x)));
  V numerator = m.Sel(m.Lt(x, m.C(0.0)), e, m.C(1.0));
  return m.Div(numerator, m.Add(m.C(1.0), e));
}

V MathEmitter::Sinh(MathBuilder& m, V x) {
  V a = m.Abs(x);
  V t = formulas::Expm1(m, a);
  V below_one = m.Sub(m.Add(t, t), m.Div(m.Mul(t, t), m.Add(t, m.C(1.0))));
  V above_one = m.Add(t, m.Div(t, m.Add(t, m.C(1.0))));
  V small = m.Mul(m.Sel(m.Lt(a, m.C(1.0)), below_one, above_one), 0.5);
  V result = m.Sel(m.Lt(a, m.C(22.0)), small, DoubleExp(m, a, nullptr, nullptr, -1));
  return m.CopySign(result, x);
}

V MathEmitter::Cosh(MathBuilder& m, V x) {
  V half = DoubleExp(m, m.Abs(x), nullptr, nullptr, -1);
  return m.Add(half, m.Div(m.C(0.25), half));
}

V formulas::Tanh(MathBuilder& m, V x) {
  const double limit = m.is_double ? 22.0 : 10.0;
  V a = m.Abs(x);
  V t = formulas::Expm1(m, m.Mul(m.Min(m.C(limit), a), 2.0));
  V result = m.Div(t, m.Add(t, m.C(2.0)));
  return m.CopySign(result, x);
}

V formulas::Asinh(MathBuilder& m, V x) {
  V a = m.Abs(x);
  V huge = m.Gt(a, m.C(268435456.0));  // 2^28
  V square = m.Mul(a, a);
  V t = m.Add(a, m.Div(square, m.Add(m.C(1.0), m.Sqrt(m.Add(square, m.C(1.0))))));
  V log = formulas::Log1p(m, m.Sel(huge, m.Sub(a, m.C(1.0)), t));
  return m.CopySign(m.Add(log, m.Sel(huge, m.C(kLn2), m.C(0.0))), x);
}

V formulas::Acosh(MathBuilder& m, V x) {
  V huge = m.Gt(x, m.C(268435456.0));
  V t = m.Sub(x, m.C(1.0));
  V root = m.Sqrt(m.Fma(t, t, m.Add(t, t)));
  V log = formulas::Log1p(m, m.Sel(huge, t, m.Add(t, root)));
  V result = m.Add(log, m.Sel(huge, m.C(kLn2), m.C(0.0)));
  return m.Sel(m.Ge(x, m.C(1.0)), result, m.NaN());
}

V formulas::Atanh(MathBuilder& m, V x) {
  V a = m.Abs(x);
  V twice = m.Add(a, a);
  V ratio = m.Div(m.Sel(m.Lt(a, m.C(0.5)), m.Mul(twice, a), twice), m.Sub(m.C(1.0), a));
  V argument = m.Sel(m.Lt(a, m.C(0.5)), m.Add(twice, ratio), ratio);
  V result = m.CopySign(m.Mul(formulas::Log1p(m, argument), 0.5), x);
  return m.Sel(m.Le(a, m.C(1.0)), result, m.NaN());
}

V MathEmitter::Pow(MathBuilder& m, V x, V y, bool wide) {
  V a = m.Abs(x);
  // Beyond 2^70 every power of a number other than 1 is 0, 1 or infinity; so is it just there.
  V exponent = m.Sel(m.Gt(m.Abs(y), m.C(0x1p70)), m.CopySign(m.C(0x1p70), y), y);
  V magnitude;
  if (wide) {
    Pair product = Product(m, WideLog(m, a), {exponent, m.C(0.0)});
    V low = m.Sel(m.Lt(m.Abs(product.high), m.C(1e4)), product.low, m.C(0.0));
    magnitude = DoubleExp(m, product.high, low);
  } else {
    magnitude = Exp(m, m.Mul(exponent, formulas::Log(m, a)));
  }
  V zero = m.C(0.0);
  V one = m.C(1.0);
  V infinite_base = m.Eq(a, m.Inf());
  V grows = m.Gt(y, zero);
  magnitude = m.Sel(m.Eq(a, zero), m.Sel(grows, zero, m.Inf()), magnitude);
  magnitude = m.Sel(infinite_base, m.Sel(grows, m.Inf(), zero), magnitude);
  magnitude = m.Sel(m.Eq(a, one), one, magnitude);
  // The sign of an odd power; a negative base has no other real powers.
  V whole = m.Eq(m.Trunc(y), y);
  V half = m.Mul(y, 0.5);
  V odd = m.And(whole, m.Not(m.Eq(m.Trunc(half), half)));
  V negative = m.b.CreateICmpSLT(m.Bits(x), m.I(0));
  V result = m.Sel(m.And(negative, odd), m.Neg(magnitude), magnitude);
  V undefined = m.And(m.And(m.Lt(x, zero), m.Not(whole)), m.Not(infinite_base));
  result = m.Sel(undefined, m.NaN(), result);
  result = m.Sel(m.Or(m.IsNan(x), m.IsNan(y)), m.NaN(), result);
  return m.Sel(m.Or(m.Eq(x, one), m.Eq(y, zero)), one, result);
}

}  // namespace kiln
