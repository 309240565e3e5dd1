// Memory of a GPU's kernel.
//
// Whether addresses are aligned is decided on the device, where the schedule says that there is code for
// both; the order of combining is the same either way. What a kernel only reads is read once: later stages
// find it in registers. Accumulating stores are reductions in memory, which a thread does not wait for,
// unless the kernel reads the buffer again.
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
