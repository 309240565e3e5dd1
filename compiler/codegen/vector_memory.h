// Memory of a CPU's kernel beyond the cache: the schedule's nontemporal stores and prefetches.
//
// Stores past the cache: a result larger than the cache is gone from it before anybody reads it; stored as
// usual, each of its lines would also be read first. What is written once, whole vectors side by side, goes
// to memory directly.
//
// Reads ahead: where several stages read one row, the first waits for memory, and while the others compute,
// memory would wait for them. So they ask for the next row's lines. What is walked once, front to back, is
// asked for a page and a half before its turn: the processor's own prefetching ends with a page, and finding
// the next one takes as long as a read or longer where pages of 4 KiB lie anywhere in a virtual machine's
// memory. A loop that computes has too few lines in flight to bridge that. Where the processor goes on to the
// next page by itself, only what waits beside other walks of the same loop is asked for.
//
// Ownership, threads, errors: as MemoryEmitter.
#pragma once

#include <vector>

#include "compiler/codegen/memory_emitter.h"

namespace kiln {

class VectorMemory : public MemoryEmitter {
 public:
  VectorMemory(KernelContext* context, LoopState* state, IndexEmitter* index);

  // In the entry: sizes may be known at run time only, so nontemporal stores have a condition by buffer.
  void EmitConditions();
  // At the kernel's end: nontemporal stores are not ordered with others, and what says that the kernel has
  // ended comes after them.
  void FenceNontemporalStores();

 protected:
  void VectorStore(const v1::LoopOp& op, llvm::Value* value, llvm::Value* pointer) override;
  void Prefetch(const v1::LoopOp& op) override;

 private:
  llvm::Value* StartOfVectors(const v1::LoopOp& op, llvm::Value* pointer);
  llvm::Value* AddressAhead(const v1::LoopOp& op, const v1::Prefetch& prefetch);

  const v1::VectorSchedule& schedule_;
  std::vector<llvm::Value*> is_nontemporal_;  // by buffer: is it large enough? null: never
  std::vector<const v1::LoopOp*> nontemporal_stores_;
  llvm::DenseMap<const v1::LoopOp*, const v1::Prefetch*> prefetches_;
};

}  // namespace kiln
