// Emits a stage, its loops and their ops, at the builder's insertion point.
//
// A back-end whose lanes are threads overrides how loops run. What a row keeps of its values is the row
// cache's (row_cache_emitter.h).
//
// Ownership: borrows all that it is made with. Threads: one. Errors: as its parts.
#pragma once

#include <cstdint>

#include "compiler/codegen/memory_emitter.h"
#include "compiler/codegen/op_emitter.h"
#include "compiler/codegen/reduce_emitter.h"

namespace kiln {

class RowCacheEmitter;

class StageEmitter {
 public:
  // `cache`: nullptr where no row keeps values.
  StageEmitter(KernelContext* context, LoopState* state, OpEmitter* ops, MemoryEmitter* memory,
               ReduceEmitter* reductions, RowCacheEmitter* cache)
      : k_(*context),
        at_(*state),
        b_(k_.b),
        ops_(*ops),
        memory_(*memory),
        reductions_(*reductions),
        cache_(cache) {}
  virtual ~StageEmitter() = default;

  void Stage(const StageInfo& info);
  void Ops(const StageInfo& info);  // in the stage's loops
  void Op(uint32_t id, const v1::LoopOp& op);

  // Full vectors, `unroll` at a time, then what is left with a mask.
  virtual void VectorLoop(uint32_t variable, llvm::Value* lo, llvm::Value* hi, unsigned unroll,
                          CodeBody body);
  // How often the schedule unrolls the stage's vector loop.
  unsigned Unroll(const StageInfo& info) const;
  // How many of these the loop has, where its length is known.
  unsigned SideBySide(const StageInfo& info) const;

 protected:
  virtual void InnerFrom(const StageInfo& info, uint32_t level);
  // One inner loop of a stage that is not its vector loop.
  virtual void InnerLoop(const StageInfo& info, uint32_t level, LoopBody body);
  virtual LaneValue Load(const v1::LoopOp& op) { return memory_.Load(op); }
  virtual void Store(const v1::LoopOp& op) { memory_.Store(op); }
  // The last, partial vector, from i on.
  void MaskedVector(uint32_t variable, llvm::Value* i, llvm::Value* hi, CodeBody body);

  KernelContext& k_;
  LoopState& at_;
  LoopBuilder& b_;

 private:
  bool IsLoadedFirst(const v1::LoopOp& op) const;
  bool ReadKept(uint32_t id);

  OpEmitter& ops_;
  MemoryEmitter& memory_;
  ReduceEmitter& reductions_;
  RowCacheEmitter* const cache_;
};

}  // namespace kiln
