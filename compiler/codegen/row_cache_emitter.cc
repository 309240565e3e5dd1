// A row's values that two stages compute alike: exponentials of a softmax, whose sum must be known before any
// is divided by it. The first stage keeps them on the stack, which for rows of this size is the second-level
// cache; the other one reads them there, not the row, whose exponentials would cost more than memory does.
#include "compiler/codegen/kernel_emitter.h"

namespace kiln {

void KernelEmitter::UseRowCache() {
  if (!rows_.has_cache()) return;
  const int64_t elements = *ConstantExpr(StageOf(rows_.cache().reader()).stage->inner(0));
  // A masked vector is kept whole, so the last one has room of its own.
  kept_ = Slot(llvm::ArrayType::get(b_.getFloatTy(), elements + vector_lanes_), "kept");
  kept_->setAlignment(llvm::Align(target_.machine.cpu.cache_line_bytes));
  function_->addFnAttr("probe-stack", "inline-asm");  // a frame larger than the guard behind a stack
}

llvm::Value* KernelEmitter::KeptSlot() {
  llvm::Value* position = variables_[kernel_.outer_size()];
  return b_.CreateInBoundsGEP(b_.getFloatTy(), kept_, position);
}

void KernelEmitter::KeepValue(uint32_t id) {
  if (kept_ == nullptr || rows_.cache().writer() != id) return;
  b_.CreateAlignedStore(Broadcast(values_[id]), KeptSlot(), llvm::Align(vector_lanes_ * sizeof(float)));
}

bool KernelEmitter::ReadKeptValue(uint32_t id) {
  if (kept_ == nullptr || rows_.cache().reader() != id) return false;
  values_[id] = {KeptTimes(nullptr), true};
  return true;
}

// The kept value, by its row's scale where there is one, times a number of the row or null.
llvm::Value* KernelEmitter::KeptTimes(llvm::Value* factor) {
  llvm::Type* type = Wide(b_.getFloatTy());
  llvm::Value* value = b_.CreateAlignedLoad(type, KeptSlot(), llvm::Align(vector_lanes_ * sizeof(float)));
  if (shifted_ && shifted_->scale != nullptr) {
    llvm::Value* scale = b_.CreateLoad(b_.getFloatTy(), shifted_->scale);
    factor = factor == nullptr ? scale : b_.CreateFMul(scale, factor);
  }
  return factor == nullptr ? value : b_.CreateFMul(value, Splat(factor));
}

}  // namespace kiln
