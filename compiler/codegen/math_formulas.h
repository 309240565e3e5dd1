// Math functions that are formulas of floats and doubles, for every target that has no way of its own: see
// math.h for their accuracy. They are defined with their families, in math_exp_log.cc, math_trig.cc and
// math_special.cc.
//
// Threads: one. Ownership: borrow the builder.
#pragma once

#include "absl/functional/function_ref.h"
#include "compiler/codegen/math_builder.h"
#include "compiler/ir/ops.h"

namespace kiln::formulas {

using V = llvm::Value*;

V Expm1(MathBuilder& m, V x);
V Log(MathBuilder& m, V x, LoopOpcode base = LoopOpcode::kLog);
V Log1p(MathBuilder& m, V x);
V Tanh(MathBuilder& m, V x);
V Asinh(MathBuilder& m, V x);
V Acosh(MathBuilder& m, V x);
V Atanh(MathBuilder& m, V x);
V Asin(MathBuilder& m, V x);
V Acos(MathBuilder& m, V x);
V Atan(MathBuilder& m, V x);
V Atan2(MathBuilder& m, V y, V x);
V Fmod(MathBuilder& m, V x, V y);  // of doubles

// erf of floats by parts that targets have ways of their own for: |x| held to 4, where NaN may be anything,
// and 1 - 2^y to 2^-22 of 1.
V FloatErf(MathBuilder& m, V x, V magnitude, V bounded, absl::FunctionRef<V(V)> one_less_exp2);

}  // namespace kiln::formulas
