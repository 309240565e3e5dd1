// LLVM's IRBuilder with helpers for control flow: branches, loops, stack slots.
//
// Ownership: borrows the context. Threads: one. Errors: none.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "llvm/IR/IRBuilder.h"

namespace kiln {

using CodeBody = absl::FunctionRef<void()>;
using LoopBody = absl::FunctionRef<void(llvm::Value* i)>;

class LoopBuilder : public llvm::IRBuilder<> {
 public:
  explicit LoopBuilder(llvm::LLVMContext& context) : llvm::IRBuilder<>(context) {}

  llvm::Function* function() const { return GetInsertBlock()->getParent(); }
  llvm::ConstantInt* I64(int64_t v) { return getInt64(static_cast<uint64_t>(v)); }
  // Whether any lane of the mask is set; i1.
  llvm::Value* Any(llvm::Value* mask);

  // An alloca in the entry block; mem2reg makes a scalar one a register.
  llvm::AllocaInst* Slot(llvm::Type* type, const char* name);

  // The loop's branch back, nullptr where it never runs.
  llvm::Instruction* ScalarLoop(llvm::Value* lo, llvm::Value* hi, llvm::Value* step, const char* name,
                                LoopBody body);
  void If(llvm::Value* condition, const char* name, CodeBody body, bool rarely = false);
  void Choose(llvm::Value* condition, CodeBody then, CodeBody otherwise);
};

}  // namespace kiln
