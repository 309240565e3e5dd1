// Memory of a GPU's kernel.
//
// Where the schedule versions the code by alignment, the device tests the addresses; the reduction order is
// the same either way. What a kernel only reads is loaded once and kept in registers for later stages.
// Accumulating stores are asynchronous reductions in memory (`red`), unless the kernel reads the buffer
// again.
//
// Ownership, threads, errors: as MemoryEmitter.
#pragma once

#include "compiler/codegen/memory_emitter.h"

namespace kiln {

class ThreadMemory : public MemoryEmitter {
 public:
  using MemoryEmitter::MemoryEmitter;

  llvm::Align VectorAlign(const v1::LoopOp& op) const override;
  llvm::Instruction* Annotate(llvm::Instruction* access, uint32_t buffer) override;

  // Are the addresses aligned of all of the stages' vectors, where code is being emitted?
  llvm::Value* IsAligned(llvm::ArrayRef<const StageInfo*> stages);
  // And at the first vector of every stage's row?
  llvm::Value* IsRowAligned();
  // The code twice: for aligned vectors where `aligned` holds, and for any address.
  void EmitByAlignment(llvm::Value* aligned, CodeBody emit);

 protected:
  void ScalarStore(const v1::LoopOp& op, llvm::Value* index, llvm::Value* value) override;

 private:
  bool aligned_ = false;  // in code that runs where IsAligned
};

}  // namespace kiln
