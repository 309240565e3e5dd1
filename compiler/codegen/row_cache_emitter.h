// A row's values that two stages compute alike: exponentials of a softmax, whose sum must be known before any
// is divided by it. The first stage keeps them on the stack, which for rows of this size is the second-level
// cache; the other one reads them there, not the row, whose exponentials would cost more than memory does.
//
// Exponentials that were made about a row's estimate (shifted_reduction_emitter.h) are kept so, and scaled
// when they are read.
//
// Ownership: borrows the kernel's context and the loop state. Threads: one. Errors: none. Without a cache in
// the schedule it keeps nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/codegen/loop_state.h"

namespace kiln {

class RowCacheEmitter {
 public:
  RowCacheEmitter(KernelContext* context, LoopState* state);

  void Enter();  // in the entry, after the extents

  // Whether the op is dead, since its users are read from the cache.
  bool Skips(uint32_t id) const { return skipped_[id]; }
  // The op's value where it was kept, else none.
  LaneValue Read(uint32_t id);
  // Of ops whose kept operand or result is about the row's estimate: the writer's exponential, and the
  // schedule's products. Else none.
  LaneValue AboutEstimate(uint32_t id, const v1::LoopOp& op);
  // After the op was emitted.
  void Keep(uint32_t id);

  // By which a row's kept exponentials are multiplied; nullptr: they are as they are.
  llvm::AllocaInst* scale() const { return scale_; }

 private:
  llvm::Value* Place();
  llvm::Value* Times(llvm::Value* factor);

  KernelContext& k_;
  LoopState& at_;
  LoopBuilder& b_;
  const v1::RowSchedule& rows_;
  const std::vector<bool> skipped_;  // by op
  llvm::AllocaInst* kept_ = nullptr;
  llvm::AllocaInst* scale_ = nullptr;
};

}  // namespace kiln
