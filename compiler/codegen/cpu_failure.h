// A failure on a CPU: the first failing thread writes the launch's status, and the kernel returns its code.
//
// Ownership: borrows the builder and the module of a kernel whose first parameter is its KilnArgs. Threads:
// one. Errors: none.
#pragma once

#include "compiler/codegen/failure_emitter.h"
#include "compiler/codegen/loop_builder.h"
#include "llvm/IR/Module.h"

namespace kiln {

class CpuFailure : public FailureEmitter {
 public:
  CpuFailure(LoopBuilder* builder, llvm::Module* module) : b_(*builder), module_(module) {}

  void FailWhere(llvm::Value* bad, int32_t code, uint32_t op, llvm::Value* value, llvm::Value* bound,
                 bool is_unsigned) override;

 private:
  llvm::Function* FailFunction();

  LoopBuilder& b_;
  llvm::Module* const module_;
};

}  // namespace kiln
