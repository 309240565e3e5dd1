#include "compiler/codegen/thread_strip.h"

#include <algorithm>

#include "compiler/schedule/thread_walk.h"

namespace kiln {

ThreadStrip::ThreadStrip(KernelContext* context, LoopState* state, ThreadStages* stages, ThreadMemory* memory,
                         ThreadBlock* block, ThreadPoints* points, StripSums* sums)
    : k_(*context),
      at_(*state),
      b_(k_.b),
      stages_(*stages),
      memory_(*memory),
      block_(*block),
      points_(*points),
      sums_(*sums),
      chosen_(k_.kernel.schedule().threads()) {}

void ThreadStrip::MakeSlots() {
  llvm::Type* type = b_.getFloatTy();
  for (StripSum& sum : sums_) {
    llvm::Type* wide = at_.vector_lanes == 1
                           ? type
                           : static_cast<llvm::Type*>(llvm::FixedVectorType::get(type, at_.vector_lanes));
    const int64_t iterations = IterationsOf(k_.facts, chosen_, k_.NumberOf(*sum.info));
    for (int64_t k = 0; k < iterations; k += chosen_.threads()) sum.slots.push_back(b_.Slot(wide, "sum"));
    if (chosen_.rows().points_per_block() > 1) {
      sum.shared =
          block_.SharedSlots(type, static_cast<unsigned>(iterations * at_.vector_lanes), "strip_sum");
    }
  }
}

void ThreadStrip::Emit() {
  llvm::Value* rows = points_.Count(k_.outer_extents);
  llvm::Value* chunk = b_.I64(k_.kernel.schedule().chunk());
  llvm::Value* strips =
      b_.CreateUDiv(b_.CreateNSWAdd(rows, b_.I64(int64_t{k_.kernel.schedule().chunk()} - 1)), chunk);
  MakeSlots();
  b_.ScalarLoop(block_.Number(), strips, block_.Count(), "strip", [&](llvm::Value* strip) {
    llvm::Value* begin = b_.CreateNSWMul(strip, chunk);
    llvm::Value* end = b_.CreateNSWAdd(begin, chunk);
    end = b_.CreateSelect(b_.CreateICmpSLT(end, rows), end, rows);
    const auto emit = [&] { Strip(begin, end); };
    at_.variables.assign(1, begin);
    if (chosen_.aligned() == v1::ALIGNED_NONE) {
      emit();
    } else {
      memory_.EmitByAlignment(memory_.IsRowAligned(), emit);
    }
  });
}

// Of warps that have rows each, the first one's sums begin with what is in memory.
void ThreadStrip::Strip(llvm::Value* begin, llvm::Value* end) {
  const unsigned warps = chosen_.rows().points_per_block();
  llvm::Value* warp = b_.I64(0);
  if (warps > 1) {
    warp = block_.Warp();
    for (StripSum& sum : sums_) {
      for (llvm::AllocaInst* slot : sum.slots)
        b_.CreateStore(llvm::Constant::getNullValue(slot->getAllocatedType()), slot);
    }
  }
  b_.If(b_.CreateICmpEQ(warp, b_.I64(0)), "first_warp", [&] { LoadSums(begin); });
  b_.ScalarLoop(b_.CreateNSWAdd(begin, warp), end, b_.I64(warps), "row",
                [&](llvm::Value* row) { points_.Point(row, k_.outer_extents); });
  if (warps == 1) {
    StoreSums(begin);
  } else {
    Combine(begin, warp);
  }
}

void ThreadStrip::LoadSums(llvm::Value* begin) {
  ForSums(begin, [&](const Iteration& iteration) {
    b_.CreateStore(
        b_.CreateAlignedLoad(iteration.slot->getAllocatedType(), iteration.pointer, iteration.align),
        iteration.slot);
  });
}

void ThreadStrip::StoreSums(llvm::Value* begin) {
  ForSums(begin, [&](const Iteration& iteration) {
    b_.CreateAlignedStore(b_.CreateLoad(iteration.slot->getAllocatedType(), iteration.slot),
                          iteration.pointer, iteration.align);
  });
}

// One warp after the other adds what it has; the last one knows the strip's sums.
void ThreadStrip::Combine(llvm::Value* begin, llvm::Value* warp) {
  const unsigned warps = chosen_.rows().points_per_block();
  b_.ScalarLoop(b_.I64(0), b_.I64(warps), b_.I64(1), "warp", [&](llvm::Value* number) {
    b_.If(b_.CreateICmpEQ(warp, number), "its_turn", [&] {
      ForSums(begin, [&](const Iteration& iteration) {
        llvm::Type* type = iteration.slot->getAllocatedType();
        llvm::Value* shared =
            b_.CreateInBoundsGEP(b_.getFloatTy(), iteration.sum.shared, {iteration.element});
        const llvm::Align align(std::min<uint64_t>(kAccessBytes, uint64_t{4} * at_.vector_lanes));
        llvm::Value* own = b_.CreateLoad(type, iteration.slot);
        llvm::Value* both = b_.CreateFAdd(b_.CreateAlignedLoad(type, shared, align), own);
        b_.CreateStore(b_.CreateSelect(b_.CreateICmpEQ(number, b_.I64(0)), own, both), iteration.slot);
        b_.CreateAlignedStore(b_.CreateLoad(type, iteration.slot), shared, align);
      });
    });
    block_.BlockBarrier();
  });
  b_.If(b_.CreateICmpEQ(warp, b_.I64(warps - 1)), "last_warp", [&] { StoreSums(begin); });
}

// All iterations of this thread.
void ThreadStrip::ForSums(llvm::Value* begin, absl::FunctionRef<void(const Iteration&)> body) {
  at_.lanes = at_.vector_lanes;
  for (const StripSum& sum : sums_) {
    const v1::LoopOp& op = *sum.op;
    stages_.Iterations(
        block_.Thread(), b_.I64(IterationsOf(k_.facts, chosen_, k_.NumberOf(*sum.info))),
        static_cast<unsigned>(sum.slots.size()), [&](llvm::Value* number) {
          llvm::Value* element = b_.CreateNSWMul(number, b_.I64(at_.vector_lanes));
          at_.variables = {begin, element};
          llvm::Value* pointer = memory_.Address(op);
          body({sum, sum.slots[stages_.iteration()], pointer, memory_.VectorAlign(op), element});
        });
  }
  at_.lanes = 1;
}

}  // namespace kiln
