// Transposed access on a GPU. Where loads are strided across threads but contiguous along another outer loop,
// a block takes a tile of the two loops: it loads along that loop into shared memory, and computes along the
// last loop from there. So loads and stores are both coalesced.
//
// Ownership: borrows all that it is made with. Threads: one. Errors: none.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/codegen/thread_points.h"

namespace kiln {

class ThreadTile {
 public:
  ThreadTile(KernelContext* context, LoopState* state, ThreadStages* stages, ThreadMemory* memory,
             ThreadBlock* block, ThreadPoints* points);

  // All tiles of the kernel.
  void Emit();

 private:
  // From `across` and `along` on, in its two loops.
  struct Tile {
    llvm::Value* across;
    llvm::Value* along;
    llvm::Value* column = nullptr;  // of this thread, in its first iteration
    llvm::Value* row = nullptr;
    bool every_iteration = false;  // exists
  };
  uint32_t last() const { return static_cast<uint32_t>(k_.kernel.outer_size()) - 1; }

  void MakeSlots();
  void EmitTile(Tile tile);
  // Of a whole one nothing is tested, and all loads of a thread are in flight at once.
  void ByWhole(Tile* tile, llvm::Value* whole, CodeBody body);
  void Read(const Tile& tile);
  void Compute(const Tile& tile);
  // A thread's iterations; neighbours are neighbours in the last loop, or in the first of the two.
  void Iterations(const Tile& tile, bool neighbours_in_last, bool unrolled, LoopBody body);
  llvm::Value* Position(const v1::LoopOp& op, llvm::Value* row, llvm::Value* column);

  KernelContext& k_;
  LoopState& at_;
  LoopBuilder& b_;
  ThreadStages& stages_;
  ThreadMemory& memory_;
  ThreadBlock& block_;
  ThreadPoints& points_;
  const v1::TileThreads& tile_;
  const unsigned threads_;
  std::vector<const v1::LoopOp*> packable_;  // loads that a tile transposes
};

}  // namespace kiln
