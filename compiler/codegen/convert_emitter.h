// Casts, and values between registers and memory. F16 and BF16 are 16-bit patterns that are widened where
// they are used.
//
// Ownership: borrows the kernel's context. Threads: one. Errors: a dtype without values fails the context.
#pragma once

#include "compiler/codegen/kernel_context.h"

namespace kiln {

class ConvertEmitter {
 public:
  explicit ConvertEmitter(KernelContext* context) : k_(*context), b_(k_.b) {}

  llvm::Value* Cast(v1::DType from, v1::DType to, llvm::Value* v);
  llvm::Value* Bitcast(v1::DType from, v1::DType to, llvm::Value* v);
  llvm::Value* FloatFromHalf(v1::DType from, llvm::Value* v);
  llvm::Value* HalfFromFloat(v1::DType to, llvm::Value* v);
  // BOOL is i1 in a register, i8 in memory.
  llvm::Value* FromMemory(llvm::Value* v, v1::DType dtype);
  llvm::Value* ToMemory(llvm::Value* v, v1::DType dtype);

 private:
  KernelContext& k_;
  LoopBuilder& b_;
};

}  // namespace kiln
