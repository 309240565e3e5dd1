// The thread block: indices, barriers, warp shuffles, shared memory.
//
// Ownership: borrows the builder, at whose place it emits. Threads: one. Errors: none.
#pragma once

#include "llvm/IR/IRBuilder.h"

namespace kiln {

class ThreadBlock {
 public:
  // Points of `threads` threads each; of several a block, each is a warp's.
  ThreadBlock(llvm::IRBuilder<>* builder, unsigned threads, unsigned points)
      : b_(*builder), threads_(threads), points_(points) {}

  // From there on in `function`; `by_parameters`: its last two are Number and Count.
  void Enter(llvm::Function* function, bool by_parameters);

  // As i64.
  llvm::Value* Number();  // among those of the launch, or of its member
  llvm::Value* Count();   // how many these are
  llvm::Value* Thread();  // its number among those that share a point
  llvm::Value* Warp();    // its number in the block

  void Barrier();  // of the threads that share a point
  void BlockBarrier();

  // Another lane's value: `id` is one of nvvm_shfl_sync_*_i32, which `lane` belongs to.
  llvm::Value* Shuffle(llvm::Intrinsic::ID id, llvm::Value* value, unsigned lane);

  // Shared memory of so many elements.
  llvm::Value* SharedSlots(llvm::Type* type, unsigned count, const char* name);

 private:
  llvm::Value* Special(llvm::Intrinsic::ID id);

  llvm::IRBuilder<>& b_;
  const unsigned threads_;
  const unsigned points_;
  llvm::Function* function_ = nullptr;
  bool by_parameters_ = false;
};

}  // namespace kiln
