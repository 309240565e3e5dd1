// Transposed access on a GPU. Where loads run against the threads but along another outer loop, a block takes
// a square of the two loops: it reads the loads' elements along that loop into shared memory, and computes
// along the last loop from there. So both ways neighbouring threads touch neighbouring elements.
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

  // All squares of the kernel.
  void Emit();

 private:
  // From `across` and `along` on, in its two loops.
  struct Square {
    llvm::Value* across;
    llvm::Value* along;
    llvm::Value* column = nullptr;  // of this thread, in its first iteration
    llvm::Value* row = nullptr;
    bool every_iteration = false;  // exists
  };
  uint32_t last() const { return static_cast<uint32_t>(k_.kernel.outer_size()) - 1; }

  void MakeSlots();
  void EmitSquare(Square square);
  // Of a whole one nothing is tested, and all loads of a thread are in flight at once.
  void ByWhole(Square* square, llvm::Value* whole, CodeBody body);
  void Read(const Square& square);
  void Compute(const Square& square);
  // A thread's iterations; neighbours are neighbours in the last loop, or in the first of the two.
  void Iterations(const Square& square, bool neighbours_in_last, bool in_a_row, LoopBody body);
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
  std::vector<const v1::LoopOp*> packable_;  // loads that a tile turns round
};

}  // namespace kiln
