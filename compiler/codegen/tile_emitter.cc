#include "compiler/codegen/tile_emitter.h"

namespace kiln {

TileEmitter::TileEmitter(KernelContext* context, LoopState* state, StageEmitter* stages,
                         MemoryEmitter* memory)
    : k_(*context), at_(*state), b_(k_.b), stages_(*stages), memory_(*memory) {
  for (const uint32_t load : k_.kernel.schedule().vectors().tile().packed())
    packable_.push_back(k_.facts.ops()[load]);
}

void TileEmitter::Tiles(uint32_t loop, llvm::Value* lo, llvm::Value* hi, CodeBody body) {
  llvm::Value* size = b_.I64(at_.vector_lanes);
  b_.ScalarLoop(lo, hi, size, "tile", [&](llvm::Value* start) {
    llvm::Value* stop = b_.CreateNSWAdd(start, size);
    stop = b_.CreateSelect(b_.CreateICmpSLT(stop, hi), stop, hi);
    llvm::Value* whole = b_.CreateICmpEQ(b_.CreateNSWSub(stop, start), size);
    stages_.VectorLoop(loop + 1, b_.I64(0), k_.outer_extents[loop + 1], 1, [&] {
      const auto rows = [&] {
        b_.ScalarLoop(start, stop, b_.I64(1), "row", [&](llvm::Value* i) {
          at_.variables[loop] = i;
          for (auto& [op, tile] : memory_.packed()) tile.position = b_.CreateNSWSub(i, start);
          body();
        });
      };
      if (at_.mask != nullptr || packable_.empty()) {
        rows();
        return;
      }
      b_.If(whole, "packed", [&] {
        at_.variables[loop] = start;
        Pack();
        rows();
        memory_.packed().clear();
      });
      b_.If(b_.CreateNot(whole), "rows", rows);
    });
  });
}

void TileEmitter::Pack() {
  for (const v1::LoopOp* op : packable_) {
    llvm::Type* row = at_.Wide(k_.MemoryType(op->dtype()));
    llvm::AllocaInst* slot = b_.Slot(llvm::ArrayType::get(row, at_.vector_lanes), "tile");
    memory_.packed()[op] = {slot->getAllocatedType(), slot};
    PackLoad(*op, slot);
  }
}

// Reads lanes × lanes elements along the loop outside and stores them as vectors along the lanes.
void TileEmitter::PackLoad(const v1::LoopOp& op, llvm::AllocaInst* slot) {
  llvm::Type* element = k_.MemoryType(op.dtype());
  llvm::Type* type = at_.Wide(element);
  const unsigned lanes = at_.vector_lanes;
  llvm::Value* first = at_.variables[at_.vector_variable];
  llvm::SmallVector<llvm::Value*, 64> rows;
  for (unsigned lane = 0; lane < lanes; ++lane) {
    at_.variables[at_.vector_variable] = b_.CreateNSWAdd(first, b_.I64(lane));
    llvm::Value* pointer = memory_.Address(op);
    const llvm::Align align(element->getScalarSizeInBits() / 8);
    rows.push_back(memory_.Annotate(b_.CreateAlignedLoad(type, pointer, align), op.buffer()));
  }
  at_.variables[at_.vector_variable] = first;
  // Swaps the off-diagonal blocks of 1, 2, 4, … elements.
  for (unsigned step = 1; step < lanes; step *= 2) {
    llvm::SmallVector<int, 64> upper, lower;
    for (unsigned lane = 0; lane < lanes; ++lane) {
      const bool odd = (lane & step) != 0;
      upper.push_back(static_cast<int>(odd ? lanes + lane - step : lane));
      lower.push_back(static_cast<int>(odd ? lanes + lane : lane + step));
    }
    for (unsigned row = 0; row < lanes; ++row) {
      if ((row & step) != 0) continue;
      llvm::Value* a = rows[row];
      llvm::Value* c = rows[row + step];
      rows[row] = b_.CreateShuffleVector(a, c, upper);
      rows[row + step] = b_.CreateShuffleVector(a, c, lower);
    }
  }
  for (unsigned row = 0; row < lanes; ++row) {
    b_.CreateStore(rows[row], b_.CreateConstGEP2_32(slot->getAllocatedType(), slot, 0, row));
  }
}

}  // namespace kiln
