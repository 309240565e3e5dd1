// A row's values that two stages compute alike: exponentials of a softmax, whose sum must be known before any
// is divided by it. The first stage keeps them on the stack, which for rows of this size is the second-level
// cache; the other one reads them there, not the row, whose exponentials would cost more than memory does.
#include "compiler/codegen/kernel_emitter.h"

namespace kiln {

void KernelEmitter::UseRowCache() {
  if (!rows_.has_cache()) return;
  const int64_t elements = *k_.facts.ConstantExpr(k_.StageOf(rows_.cache().reader()).stage->inner(0));
  // A masked vector is kept whole, so the last one has room of its own.
  kept_ = b_.Slot(llvm::ArrayType::get(b_.getFloatTy(), elements + at_.vector_lanes), "kept");
  kept_->setAlignment(llvm::Align(k_.target.machine.cpu.cache_line_bytes));
  b_.function()->addFnAttr("probe-stack", "inline-asm");  // a frame larger than the guard behind a stack
}

llvm::Value* KernelEmitter::KeptSlot() {
  llvm::Value* position = at_.variables[k_.kernel.outer_size()];
  return b_.CreateInBoundsGEP(b_.getFloatTy(), kept_, position);
}

void KernelEmitter::KeepValue(uint32_t id) {
  if (kept_ == nullptr || rows_.cache().writer() != id) return;
  b_.CreateAlignedStore(at_.Broadcast(at_.values[id]), KeptSlot(),
                        llvm::Align(at_.vector_lanes * sizeof(float)));
}

bool KernelEmitter::ReadKeptValue(uint32_t id) {
  if (kept_ == nullptr || rows_.cache().reader() != id) return false;
  at_.values[id] = {KeptTimes(nullptr), true};
  return true;
}

// The kept value, by its row's scale where there is one, times a number of the row or null.
llvm::Value* KernelEmitter::KeptTimes(llvm::Value* factor) {
  llvm::Type* type = at_.Wide(b_.getFloatTy());
  llvm::Value* value = b_.CreateAlignedLoad(type, KeptSlot(), llvm::Align(at_.vector_lanes * sizeof(float)));
  if (shifted_ && shifted_->scale != nullptr) {
    llvm::Value* scale = b_.CreateLoad(b_.getFloatTy(), shifted_->scale);
    factor = factor == nullptr ? scale : b_.CreateFMul(scale, factor);
  }
  return factor == nullptr ? value : b_.CreateFMul(value, at_.Splat(factor));
}

// Where a row's kept exponentials are about the row's guess: they themselves, and their products with the
// inverse of their sum. No value: op is neither.
LaneValue KernelEmitter::EmitAboutShift(uint32_t id, const v1::LoopOp& op) {
  if (kept_ == nullptr || !shifted_ || shifted_->scale == nullptr) return {};
  const LoopOpcode opcode = k_.facts.opcode(id);
  if (opcode == LoopOpcode::kSoftmaxExp && rows_.cache().writer() == id) {
    const LaneValue exponent = at_.values[op.args(0)];
    return {k_.math.ShiftedExpBelow(b_, exponent.v), exponent.vector};
  }
  if (opcode != LoopOpcode::kMul) return {};
  for (int k : {0, 1}) {
    // Of other factors the product with the row's scale might be too small.
    const uint32_t factor = op.args(1 - k);
    const bool inverse = k_.facts.opcode(factor) == LoopOpcode::kReciprocal &&
                         k_.facts.op(factor).args(0) == rows_.shifted().sum();
    if (op.args(k) == rows_.cache().reader() && inverse) return {KeptTimes(at_.values[factor].v), true};
  }
  return {};
}

}  // namespace kiln
