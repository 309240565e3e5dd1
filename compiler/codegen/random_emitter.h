// Philox4x32-10: key = seed, counter = (flat >> 2, op number), lane = flat & 3.
//
// Ownership: borrows all that it is made with. Threads: one. Errors: none.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "compiler/codegen/index_emitter.h"

namespace kiln {

class RandomEmitter {
 public:
  RandomEmitter(KernelContext* context, LoopState* state, IndexEmitter* index)
      : k_(*context), at_(*state), b_(k_.b), index_(*index) {}

  // `args`: the op's seed, flat number and op number, all as wide as the result.
  llvm::Value* RandBits(const v1::LoopOp& op, llvm::ArrayRef<llvm::Value*> args);

 private:
  using Words = std::array<llvm::Value*, 4>;  // of a counter

  Words Philox(llvm::Value* seed, llvm::Value* block, llvm::Value* number);
  std::pair<llvm::Value*, llvm::Value*> WideProduct(llvm::Value* v, uint32_t multiplier);
  llvm::Value* WholeCounters(const v1::LoopOp& op);

  KernelContext& k_;
  LoopState& at_;
  LoopBuilder& b_;
  IndexEmitter& index_;
};

}  // namespace kiln
