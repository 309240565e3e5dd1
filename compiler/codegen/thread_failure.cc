#include "compiler/codegen/thread_failure.h"

namespace kiln {

void ThreadFailure::FailWhere(llvm::Value* bad, int32_t, uint32_t, llvm::Value*, llvm::Value*, bool) {
  if (failed_ == nullptr) {
    failed_ = b_.Slot(b_.getInt1Ty(), "failed");
    llvm::IRBuilder<> at_entry(failed_->getNextNode());
    at_entry.CreateStore(b_.getFalse(), failed_);
  }
  b_.CreateStore(b_.CreateOr(b_.CreateLoad(b_.getInt1Ty(), failed_), b_.Any(bad)), failed_);
}

void ThreadFailure::Trap() {
  if (failed_ == nullptr) return;
  b_.If(b_.CreateLoad(b_.getInt1Ty(), failed_), "fail",
        [&] { b_.CreateIntrinsic(b_.getVoidTy(), llvm::Intrinsic::trap, llvm::ArrayRef<llvm::Value*>{}); });
}

}  // namespace kiln
