// Inline math functions on scalars and vectors of float and double: within 4 ulp over the whole range,
// no library calls. Functions that are long and rarely bound a kernel's speed are emitted once a module
// as internal functions and called.
//
// Files by family: math_exp_log.cc, math_trig.cc, math_special.cc; coefficients stand beside their use.
// Threads: one. Ownership: borrows the module.
#pragma once

#include "compiler/codegen/vector_target.h"
#include "compiler/ir/ops.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Module.h"

namespace kiln {

class MathEmitter {
 public:
  MathEmitter(const VectorTarget& target, llvm::Module* module) : target_(target), module_(module) {}

  // A function of ops.def's floating point section that is not a plain instruction. `args` have one
  // type: float, double or a vector of them.
  llvm::Value* Emit(llvm::IRBuilder<>& b, LoopOpcode op, llvm::ArrayRef<llvm::Value*> args);

 private:
  const VectorTarget& target_;
  llvm::Module* module_;
};

}  // namespace kiln
