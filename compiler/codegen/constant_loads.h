// Pass for x86 without AVX-512, last in its pipeline: constants that arithmetic on
// vectors takes from memory.
//
// LLVM materialises a constant vector by a broadcast. Sixteen registers can't hold an exponential's constants
// beside a loop's live values, so they are rematerialised in the loop, by a broadcast that AVX2 cannot fold
// into its user as it can a full-width load. In functions of many constants this pass gives each use such a
// load, from a table in the image. The loads are volatile: LLVM would otherwise merge and hoist them.
//
// Threads: any. Ownership: borrows the module.
#pragma once

#include "llvm/IR/PassManager.h"

namespace kiln {

struct ConstantLoadsPass : llvm::PassInfoMixin<ConstantLoadsPass> {
  llvm::PreservedAnalyses run(llvm::Function& function, llvm::FunctionAnalysisManager& analyses);
};

}  // namespace kiln
