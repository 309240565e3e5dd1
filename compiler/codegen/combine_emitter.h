// The combine step of reductions: two partial results become one.
//
// Ownership: borrows the kernel's context. Threads: one. Errors: none.
#pragma once

#include "compiler/codegen/kernel_context.h"

namespace kiln {

class CombineEmitter {
 public:
  explicit CombineEmitter(KernelContext* context) : k_(*context), b_(k_.b) {}

  llvm::Constant* Identity(v1::ReduceKind kind, v1::DType dtype);
  llvm::Value* Combine(v1::ReduceKind kind, v1::DType dtype, llvm::Value* a, llvm::Value* b);

  // A reduction that gives a position. Takes `other` where it beats the value; `ordered`: ties go to the
  // smaller position. `active`: only in these lanes; null: in all.
  void CombineArg(v1::ReduceKind kind, v1::DType dtype, llvm::Value** value, llvm::Value** position,
                  llvm::Value* other, llvm::Value* other_position, bool ordered, llvm::Value* active);

  // Merges a partial result of later elements into *value, and *position for argmax and argmin.
  void Fold(v1::ReduceKind kind, v1::DType kept, llvm::Value** value, llvm::Value** position,
            llvm::Value* other, llvm::Value* other_position);

  // NaN if either is NaN; of booleans: or, and.
  llvm::Value* Maximum(v1::DType dtype, llvm::Value* a, llvm::Value* b, bool maximum);
  // As TargetOperations::maximum, of vectors of whole registers. nullptr: there is no such instruction for
  // values of this type.
  llvm::Value* VectorMaximum(llvm::Value* a, llvm::Value* b, bool maximum);

 private:
  KernelContext& k_;
  LoopBuilder& b_;
};

}  // namespace kiln
