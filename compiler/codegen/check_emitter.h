// Ops at which a kernel can fail: an index out of range, an integer division by zero.
//
// Ownership: borrows all that it is made with. Threads: one. Errors: none.
#pragma once

#include <cstdint>

#include "compiler/codegen/failure_emitter.h"
#include "compiler/codegen/index_emitter.h"

namespace kiln {

class CheckEmitter {
 public:
  CheckEmitter(KernelContext* context, LoopState* state, IndexEmitter* index, FailureEmitter* failure)
      : at_(*state), b_(context->b), index_(*index), failure_(*failure) {}

  // The index, counted from the start.
  LaneValue CheckIndex(uint32_t id, const v1::LoopOp& op);
  // Division never traps: a zero divisor is reported and replaced, and so is -1 (INT_MIN / -1 wraps).
  llvm::Value* Divide(uint32_t id, LoopOpcode op, v1::DType dtype, llvm::Value* a, llvm::Value* b);

 private:
  LoopState& at_;
  LoopBuilder& b_;
  IndexEmitter& index_;
  FailureEmitter& failure_;
};

}  // namespace kiln
