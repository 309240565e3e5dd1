// Index expressions as code: the same in all lanes, a constant stride along the lanes, or computed per lane.
//
// Ownership: borrows the kernel's context and the loop state. Threads: one. Errors: what it does not do fails
// the context. Limits: element numbers stay below 2^46 (support/compiler_limits.h), where lanes divide as
// F64.
#pragma once

#include <cstdint>
#include <optional>

#include "compiler/codegen/kernel_context.h"
#include "compiler/codegen/loop_state.h"

namespace kiln {

class IndexEmitter {
 public:
  IndexEmitter(KernelContext* context, LoopState* state) : k_(*context), at_(*state), b_(k_.b) {}

  // In the entry: those of all loops, into the context.
  void EmitExtents();

  // Of the vector variable: 0 uniform, a constant stride, or nullopt: per lane. As far as code is emitted: an
  // op that was computed may differ by lane.
  std::optional<int64_t> Coefficient(uint32_t expr) const;

  llvm::Value* Scalar(uint32_t expr);  // at the first lane
  llvm::Value* Vector(uint32_t expr);  // <lanes x i64>
  LaneValue ValueOf(uint32_t expr);    // as a value that ops compute with

 private:
  llvm::Value* ScalarExpr(const v1::ExprNode& node, llvm::ArrayRef<llvm::Value*> args);
  llvm::Value* VectorExpr(const v1::ExprNode& node, llvm::ArrayRef<llvm::Value*> args);
  llvm::Value* Power(const v1::ExprNode& node, llvm::Value* base);
  bool NonNegative(uint32_t expr) const;
  int Depth(uint32_t expr) const;
  llvm::Value* FloorDivide(llvm::Value* a, llvm::Value* b, bool both_non_negative);
  llvm::Value* FloorModulo(llvm::Value* a, llvm::Value* b, bool both_non_negative);

  KernelContext& k_;
  LoopState& at_;
  LoopBuilder& b_;
  bool wraps_ = false;  // sums and products of the expression may
};

}  // namespace kiln
