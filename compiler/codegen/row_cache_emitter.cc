#include "compiler/codegen/row_cache_emitter.h"

#include <algorithm>

#include "compiler/schedule/row_cache.h"

namespace kiln {

RowCacheEmitter::RowCacheEmitter(KernelContext* context, LoopState* state)
    : k_(*context),
      at_(*state),
      b_(k_.b),
      rows_(k_.kernel.schedule().vectors().rows()),
      skipped_(SkippedOps(k_.facts, rows_)) {}

void RowCacheEmitter::Enter() {
  if (!rows_.has_cache()) return;
  const int64_t elements = *k_.facts.ConstantExpr(k_.StageOf(rows_.cache().reader()).stage->inner(0));
  // A masked vector is kept whole, so the last one has room of its own.
  kept_ = b_.Slot(llvm::ArrayType::get(b_.getFloatTy(), elements + at_.vector_lanes), "kept");
  kept_->setAlignment(llvm::Align(k_.target.machine.cpu.cache_line_bytes));
  b_.function()->addFnAttr("probe-stack", "inline-asm");  // a frame larger than the guard behind a stack
  if (KeepsShifted(k_.facts, rows_)) scale_ = b_.Slot(b_.getFloatTy(), "scale");
}

llvm::Value* RowCacheEmitter::Place() {
  llvm::Value* position = at_.variables[k_.kernel.outer_size()];
  return b_.CreateInBoundsGEP(b_.getFloatTy(), kept_, position);
}

void RowCacheEmitter::Keep(uint32_t id) {
  if (kept_ == nullptr || rows_.cache().writer() != id) return;
  b_.CreateAlignedStore(at_.Broadcast(at_.values[id]), Place(),
                        llvm::Align(at_.vector_lanes * sizeof(float)));
}

LaneValue RowCacheEmitter::Read(uint32_t id) {
  if (kept_ == nullptr || rows_.cache().reader() != id) return {};
  return {Times(nullptr), true};
}

LaneValue RowCacheEmitter::AboutEstimate(uint32_t id, const v1::LoopOp& op) {
  if (scale_ == nullptr) return {};
  if (k_.facts.opcode(id) == LoopOpcode::kSoftmaxExp && rows_.cache().writer() == id) {
    const LaneValue exponent = at_.values[op.args(0)];
    return {k_.math.ShiftedExpBelow(b_, exponent.v), exponent.vector};
  }
  const auto& scaled = rows_.cache().scaled();
  if (std::find(scaled.begin(), scaled.end(), id) == scaled.end()) return {};
  const uint32_t inverse = op.args(op.args(0) == rows_.cache().reader() ? 1 : 0);
  return {Times(at_.values[inverse].v), true};
}

// The kept value, by its row's scale where there is one, times a number of the row or null.
llvm::Value* RowCacheEmitter::Times(llvm::Value* factor) {
  llvm::Type* type = at_.Wide(b_.getFloatTy());
  llvm::Value* value = b_.CreateAlignedLoad(type, Place(), llvm::Align(at_.vector_lanes * sizeof(float)));
  if (scale_ != nullptr) {
    llvm::Value* scale = b_.CreateLoad(b_.getFloatTy(), scale_);
    factor = factor == nullptr ? scale : b_.CreateFMul(scale, factor);
  }
  return factor == nullptr ? value : b_.CreateFMul(value, at_.Splat(factor));
}

}  // namespace kiln
