// Pass for x86 without AVX-512, last in its pipeline: constants that arithmetic on
// vectors takes from memory.
//
// LLVM makes a constant vector by a broadcast. Sixteen registers don't hold those of an exponential beside a
// loop's own values, so it broadcasts again and again: an instruction that AVX2 cannot fold into the one
// that uses it, as it can a load of a whole register. In functions of many constants this pass gives each use
// such a load, of a table in the image. It is volatile: LLVM would else see that they are equal, and keep
// one in a register.
//
// Threads: any. Ownership: borrows the module.
#pragma once

#include "llvm/IR/PassManager.h"

namespace kiln {

struct ConstantLoadsPass : llvm::PassInfoMixin<ConstantLoadsPass> {
  llvm::PreservedAnalyses run(llvm::Function& function, llvm::FunctionAnalysisManager& analyses);
};

}  // namespace kiln
