// The value of a loop op from those of its arguments: constants, index expressions, arithmetic, comparison,
// logic and bits, casts, random bits; numerics by ir/ops.def.
//
// Ownership: borrows all that it is made with. Threads: one. Errors: UNIMPLEMENTED fails the context.
#pragma once

#include <cstdint>

#include "compiler/codegen/check_emitter.h"
#include "compiler/codegen/combine_emitter.h"
#include "compiler/codegen/convert_emitter.h"
#include "compiler/codegen/random_emitter.h"

namespace kiln {

class OpEmitter {
 public:
  OpEmitter(KernelContext* context, LoopState* state, IndexEmitter* index, FailureEmitter* failure)
      : k_(*context),
        at_(*state),
        b_(k_.b),
        index_(*index),
        convert_(context),
        combine_(context),
        checks_(context, state, index, failure),
        random_(context, state, index) {}

  // Of every op but loads, stores, reductions and scans.
  LaneValue Value(uint32_t id, const v1::LoopOp& op);

 private:
  llvm::Constant* Constant(const v1::LoopOp& op);
  llvm::Value* ComparePosition(const v1::LoopOp& op);
  bool IsShortVectorLoop() const;
  llvm::Value* Pointwise(uint32_t id, const v1::LoopOp& op, llvm::ArrayRef<llvm::Value*> args);
  llvm::Value* Arithmetic(uint32_t id, LoopOpcode op, v1::DType dtype, llvm::ArrayRef<llvm::Value*> args);
  llvm::Value* Float(LoopOpcode op, llvm::ArrayRef<llvm::Value*> args);
  llvm::Value* Integer(uint32_t id, LoopOpcode op, v1::DType dtype, llvm::ArrayRef<llvm::Value*> args);
  llvm::Value* Bool(LoopOpcode op, llvm::ArrayRef<llvm::Value*> args);
  llvm::Value* Compare(LoopOpcode op, v1::DType dtype, llvm::ArrayRef<llvm::Value*> args);
  llvm::Value* Shift(LoopOpcode op, v1::DType dtype, llvm::Value* a, llvm::Value* b);
  llvm::Value* IntegerPower(v1::DType dtype, llvm::Value* a, llvm::Value* b);

  KernelContext& k_;
  LoopState& at_;
  LoopBuilder& b_;
  IndexEmitter& index_;
  ConvertEmitter convert_;
  CombineEmitter combine_;
  CheckEmitter checks_;
  RandomEmitter random_;
};

}  // namespace kiln
