// Inline math functions on scalars and vectors of float and double: within 4 ulp over the whole range,
// no library calls. Functions that are long and rarely bound a kernel's speed are emitted once a module
// as internal functions and called.
//
// Files by family: math_exp_log.cc, math_trig.cc, math_special.cc; coefficients stand beside their use.
// Those that are formulas alone are in math_formulas.h.
// What targets compute in ways of their own, a row of theirs says (target_operations.h): math_gpu.cc has
// those of an NVIDIA GPU, math_tables.cc those of AVX-512, which looks tables up.
// A float function without a formula of its own is computed in double and rounded once.
// Threads: one. Ownership: borrows the module.
#pragma once

#include "absl/functional/function_ref.h"
#include "compiler/codegen/math_builder.h"
#include "compiler/ir/ops.h"
#include "compiler/target/vector_target.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Module.h"

namespace kiln {

class MathEmitter;

// Functions of floats in a target's own way; one that it leaves out is the formula that stands for all.
struct FloatFunctions {
  using V = llvm::Value*;

  V (*exp)(MathBuilder& m, V x) = nullptr;
  V (*plus_exp)(MathBuilder& m, V sum, V x) = nullptr;  // as PlusExp, of vectors
  V (*tanh)(MathBuilder& m, V x) = nullptr;
  V (*one_plus_tanh)(MathBuilder& m, V x) = nullptr;
  V (*erf)(MathBuilder& m, V x) = nullptr;
  V (MathEmitter::*sin_cos)(MathBuilder& m, V x, LoopOpcode op) = nullptr;  // sine or cosine
  // x * 2^n, rounded once, for |n| below twice the exponent range and x near 1; n as a float and as an
  // integer.
  V (*times_power_of_two)(MathBuilder& m, V x, V whole, V n) = nullptr;
};

class MathEmitter {
 public:
  using V = llvm::Value*;

  static const FloatFunctions kGpuFunctions;    // math_gpu.cc
  static const FloatFunctions kTableFunctions;  // math_tables.cc

  // `own`: the target's; nullptr where it has none.
  MathEmitter(llvm::Module* module, const FloatFunctions* own)
      : module_(module), own_(own == nullptr ? FloatFunctions{} : *own) {}

  // A function of ops.def's floating point section that is not a plain instruction, and the inexact
  // divisions of floats. `args` have one type: float, double or a vector of them. nullptr for an op
  // that is none of these.
  V Emit(llvm::IRBuilder<>& b, LoopOpcode op, llvm::ArrayRef<V> args);

  // sum + e^x of floats for x ≤ 0 with an error below 2^-23 of 1, for sums that end at 1 or above; NaN where
  // x is. Not on a GPU.
  V PlusExp(llvm::IRBuilder<>& b, V sum, V x);

  // e^x of floats for x ≤ 16 times 2^ExpBelowShift, within 5 ulp; NaN where x is. Never subnormal where the
  // shift is not 0. Not on a GPU.
  V ShiftedExpBelow(llvm::IRBuilder<>& b, V x);
  int ExpBelowShift() const { return own_.exp != nullptr ? 0 : kExpBelowScale; }

 private:
  // Calls an internal function, made at the first call.
  V Outlined(llvm::IRBuilder<>& b, llvm::StringRef name, llvm::ArrayRef<V> args, llvm::Type* result,
             absl::FunctionRef<V(llvm::IRBuilder<>&, llvm::ArrayRef<V>)> body);
  V Body(llvm::IRBuilder<>& b, LoopOpcode op, llvm::ArrayRef<V> args);
  V FloatBody(MathBuilder& m, LoopOpcode op, V x);  // nullptr: none of its own
  V DoubleBody(MathBuilder& m, LoopOpcode op, llvm::ArrayRef<V> args);

  // math_exp_log.cc
  V Exp(MathBuilder& m, V x);
  // e^(x + x_low) * factor * 2^shift of doubles, rounded to their range once; x_low and factor may be null.
  V DoubleExp(MathBuilder& m, V x, V x_low = nullptr, V factor = nullptr, int shift = 0);
  V SoftmaxExp(MathBuilder& m, V x);
  V Exp2(MathBuilder& m, V x);
  V Sigmoid(MathBuilder& m, V x);
  V Sinh(MathBuilder& m, V x);
  V Cosh(MathBuilder& m, V x);
  // `wide`: more than double precision inside, for double results.
  V Pow(MathBuilder& m, V x, V y, bool wide);

  // math_trig.cc
  V SinCos(MathBuilder& m, V x, LoopOpcode op);
  // x = n * pi/2 + r for any finite double: {r, n mod 4}.
  V ReduceLarge(llvm::IRBuilder<>& b, V x);
  struct Quadrant {  // x = n pi/2 + r
    V r = nullptr;
    V n = nullptr;
    llvm::BasicBlock* block = nullptr;  // where they are known
  };
  // `near`, but where `any` lane is large those that `large` marks are reduced with all of 2/pi.
  Quadrant ReduceWhereLarge(MathBuilder& m, V x, const Quadrant& near, V any, absl::FunctionRef<V()> large);

  // math_gpu.cc; of floats
  Quadrant GpuReduce(MathBuilder& m, V x);
  V GpuSinCos(MathBuilder& m, V x, LoopOpcode op);

  // math_special.cc
  V Erf(MathBuilder& m, V x);
  V FloatErf(MathBuilder& m, V x);
  // An error below 2^-21 of 1, never below 0, and 0 at -infinity as well as far below 0; NaN where x is. On
  // the CPU in fewer instructions than the function alone.
  V OnePlusErf(MathBuilder& m, V x);
  V OnePlusTanh(MathBuilder& m, V x);
  V Erfc(MathBuilder& m, V x);
  V Lgamma(MathBuilder& m, V x);
  V Remainder(MathBuilder& m, V x, V y);
  V FloorDivide(MathBuilder& m, V x, V y);

  static constexpr int kExpBelowScale = 64;
  static constexpr double kLargeArgument = 1048576.0;  // from here on sine and cosine reduce with all of 2/pi

  llvm::Module* module_;
  const FloatFunctions own_;
  V quadrant_of_ = nullptr;  // sine and cosine of one argument share its reduction
  Quadrant quadrant_;
};

}  // namespace kiln
