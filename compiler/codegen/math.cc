#include "compiler/codegen/math.h"

namespace kiln {

llvm::Value* MathEmitter::Emit(llvm::IRBuilder<>& b, LoopOpcode op, llvm::ArrayRef<llvm::Value*> args) {
  return nullptr;
}

}  // namespace kiln
