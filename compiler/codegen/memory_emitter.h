// Loads and stores: contiguous, the same address in all lanes, or one address per lane. Back-ends override
// what differs.
//
// Ownership: borrows all that it is made with. Threads: one. Errors: none. No alignment is assumed but
// VectorAlign's; masked-off elements are not accessed.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/codegen/convert_emitter.h"
#include "compiler/codegen/index_emitter.h"
#include "llvm/ADT/DenseMap.h"

namespace kiln {

// The transposed elements of a tile's load.
struct PackedTile {
  llvm::Type* type = nullptr;  // an array
  llvm::Value* slots = nullptr;
  llvm::Value* position = nullptr;  // of the values that are being computed
};
using PackedTiles = llvm::DenseMap<const v1::LoopOp*, PackedTile>;  // by load

class MemoryEmitter {
 public:
  MemoryEmitter(KernelContext* context, LoopState* state, IndexEmitter* index)
      : k_(*context), at_(*state), b_(k_.b), index_(*index), convert_(context) {}
  virtual ~MemoryEmitter() = default;

  // In the entry, once the buffers are known, and before any access.
  void Enter();

  LaneValue Load(const v1::LoopOp& op);
  void Store(const v1::LoopOp& op);

  llvm::Value* Address(const v1::LoopOp& op);  // of the first lane's element
  // What is known of the address of a contiguous vector.
  virtual llvm::Align VectorAlign(const v1::LoopOp& op) const;
  // Adds alias metadata: which buffers the access does not touch.
  virtual llvm::Instruction* Annotate(llvm::Instruction* access, uint32_t buffer);

  // Loads that read from a tile instead, as long as they stand there.
  PackedTiles& packed() { return packed_; }

 protected:
  virtual void ScalarStore(const v1::LoopOp& op, llvm::Value* index, llvm::Value* value);
  // Of a whole contiguous vector, in its form of memory.
  virtual void VectorStore(const v1::LoopOp& op, llvm::Value* value, llvm::Value* pointer);
  // Before a contiguous vector is loaded.
  virtual void Prefetch(const v1::LoopOp& op) {}

  KernelContext& k_;
  LoopState& at_;
  LoopBuilder& b_;
  IndexEmitter& index_;

 private:
  llvm::Value* ScalarLoad(const v1::LoopOp& op, llvm::Value* index, llvm::Value* condition);
  llvm::Value* Gather(const v1::LoopOp& op, llvm::Value* indices, llvm::Value* mask);
  llvm::Value* ElementGather(const v1::LoopOp& op, llvm::Value* indices, llvm::Value* mask);
  void ContiguousStore(const v1::LoopOp& op, llvm::Value* value, llvm::Value* active);
  void ElementStore(const v1::LoopOp& op, llvm::Value* value, llvm::Value* mask);
  llvm::Value* Accumulated(v1::DType dtype, llvm::Value* old_value, llvm::Value* value);

  ConvertEmitter convert_;
  std::vector<llvm::MDNode*> own_scope_;  // by buffer
  std::vector<llvm::MDNode*> other_scopes_;
  llvm::Value* zero_slot_ = nullptr;  // 64 zero bits: what a masked-off load reads
  PackedTiles packed_;
};

}  // namespace kiln
