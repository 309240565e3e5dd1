// Sums down the columns of rows that blocks take in strips: a strip's sums stay in registers from its first
// row to its last.
#include <algorithm>
#include <vector>

#include "compiler/codegen/thread_emitter.h"

namespace kiln {

void ThreadEmitter::EmitStrips(llvm::Value* rows) {
  llvm::Value* chunk = b_.I64(k_.kernel.schedule().chunk());
  llvm::Value* strips =
      b_.CreateUDiv(b_.CreateNSWAdd(rows, b_.I64(int64_t{k_.kernel.schedule().chunk()} - 1)), chunk);
  llvm::Type* type = b_.getFloatTy();
  for (StripSum& sum : strip_sums_) {
    llvm::Type* wide = at_.vector_lanes == 1
                           ? type
                           : static_cast<llvm::Type*>(llvm::FixedVectorType::get(type, at_.vector_lanes));
    const int64_t turns = TurnsOf(k_.facts, chosen_, k_.NumberOf(*sum.info));
    for (int64_t k = 0; k < turns; k += threads_) sum.slots.push_back(b_.Slot(wide, "sum"));
    if (warps_ > 1) {
      sum.shared = block_.SharedSlots(type, static_cast<unsigned>(turns * at_.vector_lanes), "strip_sum");
    }
  }
  b_.ScalarLoop(block_.Number(), strips, block_.Count(), "strip", [&](llvm::Value* strip) {
    llvm::Value* begin = b_.CreateNSWMul(strip, chunk);
    llvm::Value* end = b_.CreateNSWAdd(begin, chunk);
    end = b_.CreateSelect(b_.CreateICmpSLT(end, rows), end, rows);
    const auto emit = [&] { EmitStrip(begin, end); };
    at_.variables.assign(1, begin);
    if (chosen_.aligned() == v1::ALIGNED_NONE) {
      emit();
    } else {
      thread_memory_.EmitByAlignment(thread_memory_.IsRowAligned(), emit);
    }
  });
}

// Of warps that have rows each, the first one's sums begin with what is in memory.
void ThreadEmitter::EmitStrip(llvm::Value* begin, llvm::Value* end) {
  llvm::Value* warp = b_.I64(0);
  if (warps_ > 1) warp = block_.Warp();
  if (warps_ > 1) {
    for (StripSum& sum : strip_sums_) {
      for (llvm::AllocaInst* slot : sum.slots)
        b_.CreateStore(llvm::Constant::getNullValue(slot->getAllocatedType()), slot);
    }
  }
  b_.If(b_.CreateICmpEQ(warp, b_.I64(0)), "first_warp", [&] {
    ForStripSums(begin, [&](const StripSum&, llvm::AllocaInst* slot, llvm::Value* pointer, llvm::Align align,
                            llvm::Value*) {
      b_.CreateStore(b_.CreateAlignedLoad(slot->getAllocatedType(), pointer, align), slot);
    });
  });
  b_.ScalarLoop(b_.CreateNSWAdd(begin, warp), end, b_.I64(warps_), "row",
                [&](llvm::Value* row) { EmitPoint(row, k_.outer_extents); });
  if (warps_ == 1) {
    ForStripSums(begin, [&](const StripSum&, llvm::AllocaInst* slot, llvm::Value* pointer, llvm::Align align,
                            llvm::Value*) {
      b_.CreateAlignedStore(b_.CreateLoad(slot->getAllocatedType(), slot), pointer, align);
    });
    return;
  }
  CombineStrip(begin, warp);
}

// One warp after the other adds what it has; the last one knows the strip's sums.
void ThreadEmitter::CombineStrip(llvm::Value* begin, llvm::Value* warp) {
  b_.ScalarLoop(b_.I64(0), b_.I64(warps_), b_.I64(1), "warp", [&](llvm::Value* turn) {
    b_.If(b_.CreateICmpEQ(warp, turn), "its_turn", [&] {
      ForStripSums(begin, [&](const StripSum& sum, llvm::AllocaInst* slot, llvm::Value*, llvm::Align,
                              llvm::Value* element) {
        llvm::Type* type = slot->getAllocatedType();
        llvm::Value* shared = b_.CreateInBoundsGEP(b_.getFloatTy(), sum.shared, {element});
        const llvm::Align align(std::min<uint64_t>(kAccessBytes, uint64_t{4} * at_.vector_lanes));
        llvm::Value* own = b_.CreateLoad(type, slot);
        llvm::Value* both = b_.CreateFAdd(b_.CreateAlignedLoad(type, shared, align), own);
        b_.CreateStore(b_.CreateSelect(b_.CreateICmpEQ(turn, b_.I64(0)), own, both), slot);
        b_.CreateAlignedStore(b_.CreateLoad(type, slot), shared, align);
      });
    });
    block_.BlockBarrier();
  });
  b_.If(b_.CreateICmpEQ(warp, b_.I64(warps_ - 1)), "last_warp", [&] {
    ForStripSums(begin, [&](const StripSum&, llvm::AllocaInst* slot, llvm::Value* pointer, llvm::Align align,
                            llvm::Value*) {
      b_.CreateAlignedStore(b_.CreateLoad(slot->getAllocatedType(), slot), pointer, align);
    });
  });
}

void ThreadEmitter::ForStripSums(llvm::Value* begin, StripBody body) {
  at_.lanes = at_.vector_lanes;
  for (const StripSum& sum : strip_sums_) {
    const v1::LoopOp& op = *sum.op;
    EmitTurns(block_.Thread(), b_.I64(TurnsOf(k_.facts, chosen_, k_.NumberOf(*sum.info))),
              static_cast<unsigned>(sum.slots.size()), [&](llvm::Value* turn) {
                llvm::Value* element = b_.CreateNSWMul(turn, b_.I64(at_.vector_lanes));
                at_.variables = {begin, element};
                llvm::Value* pointer = memory_.Address(op);
                body(sum, sum.slots[turn_], pointer, memory_.VectorAlign(op), element);
              });
  }
  at_.lanes = 1;
}

void ThreadEmitter::EmitStore(const v1::LoopOp& op) {
  const auto sum = std::find_if(strip_sums_.begin(), strip_sums_.end(),
                                [&](const StripSum& candidate) { return candidate.op == &op; });
  if (sum == strip_sums_.end()) {
    const bool one_stores = rows_ > 1 && at_.stage->stage->inner_size() == 0 && !in_first_row_;
    if (one_stores) {
      IfFirstRow([&] { KernelEmitter::EmitStore(op); });
    } else {
      KernelEmitter::EmitStore(op);
    }
    return;
  }
  llvm::AllocaInst* slot = sum->slots[turn_];
  llvm::Value* before = b_.CreateLoad(slot->getAllocatedType(), slot);
  b_.CreateStore(b_.CreateFAdd(before, at_.Broadcast(at_.values[op.args(0)])), slot);
}

}  // namespace kiln
