// A failure on a GPU: the thread runs on and traps at the kernel's end, as torch's device assertions do, so
// that no barrier waits for it.
//
// Ownership: borrows the builder. Threads: one. Errors: none.
#pragma once

#include "compiler/codegen/failure_emitter.h"
#include "compiler/codegen/loop_builder.h"

namespace kiln {

class ThreadFailure : public FailureEmitter {
 public:
  explicit ThreadFailure(LoopBuilder* builder) : b_(*builder) {}

  void FailWhere(llvm::Value* bad, int32_t code, uint32_t op, llvm::Value* value, llvm::Value* bound,
                 bool is_unsigned) override;
  // At the kernel's end.
  void Trap();

 private:
  LoopBuilder& b_;
  llvm::AllocaInst* failed_ = nullptr;
};

}  // namespace kiln
