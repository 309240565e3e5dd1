// Inline math functions on scalars and vectors of float and double: within 4 ulp over the whole range,
// no library calls. Functions that are long and rarely bound a kernel's speed are emitted once a module
// as internal functions and called.
//
// Files by family: math_exp_log.cc, math_trig.cc, math_special.cc; coefficients stand beside their use.
// Those that are one formula on every target are in math_formulas.h.
// math_gpu.cc has shorter ways for modules whose target is an NVIDIA GPU, math_tables.cc where tables can
// be looked up.
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

class MathEmitter {
 public:
  using V = llvm::Value*;

  // `tables`: the functions may use those of math_tables.cc.
  MathEmitter(llvm::Module* module, bool tables)
      : module_(module), on_gpu_(module->getTargetTriple().isNVPTX()), tables_(tables && !on_gpu_) {}

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
  int ExpBelowShift() const { return tables_ ? 0 : kExpBelowScale; }

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
  V GpuExp(MathBuilder& m, V x);
  V GpuExp2(MathBuilder& m, V x);  // to 2^-22 of it; results below 2^-126 are 0
  V GpuTanh(MathBuilder& m, V x);
  V GpuOnePlusTanh(MathBuilder& m, V x);
  Quadrant GpuReduce(MathBuilder& m, V x);
  V GpuSinCos(MathBuilder& m, V x, LoopOpcode op);

  // math_tables.cc
  // Whether values of the type are looked up in tables: floats on AVX-512, scalars too, so that a value has
  // the same bits in a vector and in a loop over what is left.
  bool HasTables(llvm::Type* type) const;
  using Function = V (MathEmitter::*)(MathBuilder&, V);
  // `function`, which takes vectors of sixteen floats, of a scalar or a vector of any length.
  V InSixteens(MathBuilder& m, V x, Function function);
  // x * 2^n, rounded once, for |n| below twice the exponent range and x near 1; n as a float and as an
  // integer.
  V TimesPowerOfTwo(MathBuilder& m, V x, V whole, V n);
  V TableExp(MathBuilder& m, V x);
  V PlusTableExp(MathBuilder& m, V sum, V x);
  V TableErf(MathBuilder& m, V x);

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
  const bool on_gpu_;
  const bool tables_;
  V quadrant_of_ = nullptr;  // sine and cosine of one argument share its reduction
  Quadrant quadrant_;
};

}  // namespace kiln
