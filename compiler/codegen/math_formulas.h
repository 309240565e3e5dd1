// Math functions that are one formula on every target, of floats and doubles: see math.h for their accuracy.
// They are defined with their families, in math_exp_log.cc, math_trig.cc and math_special.cc.
//
// Threads: one. Ownership: borrow the builder.
#pragma once

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

}  // namespace kiln::formulas
