// Transposed access. Where loads are strided along the vectors but contiguous along the loop outside of them,
// the two loops are tiled into squares: a tile is read row by row, transposed in registers and kept on the
// stack, and the outer loop runs over it innermost. So each cache line is read once.
//
// Ownership: borrows all that it is made with. Threads: one. Errors: none.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/codegen/stage_emitter.h"

namespace kiln {

class TileEmitter {
 public:
  TileEmitter(KernelContext* context, LoopState* state, StageEmitter* stages, MemoryEmitter* memory);

  // Does the schedule run the last two outer loops in tiles?
  bool exists() const { return k_.kernel.schedule().vectors().has_tile(); }
  // The outer loop `loop` from lo to hi and the last one, which is within it; `body` at each point.
  void Tiles(uint32_t loop, llvm::Value* lo, llvm::Value* hi, CodeBody body);

 private:
  void Pack();
  void PackLoad(const v1::LoopOp& op, llvm::AllocaInst* slot);

  KernelContext& k_;
  LoopState& at_;
  LoopBuilder& b_;
  StageEmitter& stages_;
  MemoryEmitter& memory_;
  std::vector<const v1::LoopOp*> packable_;  // loads that a tile transposes
};

}  // namespace kiln
