// Numbers of the math functions by their bits: powers of two, the parts of a number, the nearest integer.
//
// Threads: one. Ownership: borrow the builder.
#pragma once

#include <cstdint>

#include "compiler/codegen/math_builder.h"

namespace kiln {

inline int MantissaBits(const MathBuilder& m) { return m.is_double ? 52 : 23; }
inline int Bias(const MathBuilder& m) { return m.is_double ? 1023 : 127; }
// 1.5 * 2^mantissa bits: a small number that is added to it is rounded to an integer in its lowest bits.
inline double MagicNumber(const MathBuilder& m) { return m.is_double ? 6755399441055744.0 : 12582912.0; }

inline MathBuilder::V Magic(const MathBuilder& m) { return m.C(MagicNumber(m)); }

// A small n that is added to this one has the exponent of 2^(n + more) in its lowest bits; PowerFrom is that
// power.
inline MathBuilder::V PowerMagic(const MathBuilder& m, int more = 0) {
  return m.C(MagicNumber(m) + Bias(m) + more);
}
inline MathBuilder::V PowerFrom(MathBuilder& m, MathBuilder::V shifted) {
  return m.FromBits(m.b.CreateShl(m.Bits(shifted), m.I(MantissaBits(m))));
}

// 2^n for a normal result; n an integer vector.
inline MathBuilder::V PowerOfTwo(MathBuilder& m, MathBuilder::V n) {
  return m.FromBits(m.b.CreateShl(m.b.CreateAdd(n, m.I(Bias(m))), m.I(MantissaBits(m))));
}

// x * 2^n, rounded once, for |n| below twice the exponent range; x near 1.
inline MathBuilder::V Scale(MathBuilder& m, MathBuilder::V x, MathBuilder::V n) {
  MathBuilder::V half = m.b.CreateAShr(n, m.I(1));
  return m.Mul(m.Mul(x, PowerOfTwo(m, half)), PowerOfTwo(m, m.b.CreateSub(n, half)));
}

// Nearest integer of a small number to which Magic was added, as a float and as an integer; NaN gives
// something, without trapping.
inline MathBuilder::V Unshift(MathBuilder& m, MathBuilder::V shifted, MathBuilder::V* as_int) {
  *as_int = m.b.CreateSub(m.Bits(shifted), m.Bits(Magic(m)));
  return m.Sub(shifted, Magic(m));
}
inline MathBuilder::V Nearest(MathBuilder& m, MathBuilder::V x, MathBuilder::V* as_int) {
  return Unshift(m, m.Add(x, Magic(m)), as_int);
}
// Of x * y, which is rounded this once.
inline MathBuilder::V NearestProduct(MathBuilder& m, MathBuilder::V x, MathBuilder::V y,
                                     MathBuilder::V* as_int) {
  return Unshift(m, m.Fma(x, y, Magic(m)), as_int);
}

// x = m * 2^e with m in [sqrt(1/2), sqrt(2)); for positive finite x, subnormals included.
inline MathBuilder::V Frexp(MathBuilder& m, MathBuilder::V x, MathBuilder::V* exponent) {
  using V = MathBuilder::V;
  V tiny = m.Lt(x, m.C(m.is_double ? 2.2250738585072014e-308 : 1.17549435e-38));
  V scaled = m.Sel(tiny, m.Mul(x, m.is_double ? 18014398509481984.0 : 16777216.0), x);  // 2^54, 2^24
  V bits = m.Bits(scaled);
  // The offset moves the split point of the mantissa to sqrt(1/2).
  V offset = m.is_double ? m.I(0x3FE6A09E667F3BCD) : m.I(0x3F3504F3);
  V shifted = m.b.CreateSub(bits, offset);
  V e = m.b.CreateAShr(shifted, m.I(MantissaBits(m)));
  V mantissa = m.FromBits(m.b.CreateSub(bits, m.b.CreateShl(e, m.I(MantissaBits(m)))));
  V adjusted = m.b.CreateSub(e, m.Sel(tiny, m.I(m.is_double ? 54 : 24), m.I(0)));
  *exponent = m.b.CreateSIToFP(adjusted, m.type);
  return mantissa;
}

}  // namespace kiln
