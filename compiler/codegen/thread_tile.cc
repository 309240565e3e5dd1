#include "compiler/codegen/thread_tile.h"

#include <utility>

#include "compiler/ir/dtype_groups.h"
#include "compiler/schedule/tile_threads.h"

namespace kiln {

ThreadTile::ThreadTile(KernelContext* context, LoopState* state, ThreadStages* stages, ThreadMemory* memory,
                       ThreadBlock* block, ThreadPoints* points)
    : k_(*context),
      at_(*state),
      b_(k_.b),
      stages_(*stages),
      memory_(*memory),
      block_(*block),
      points_(*points),
      tile_(k_.kernel.schedule().threads().tile()),
      threads_(k_.kernel.schedule().threads().threads()) {
  for (const uint32_t load : tile_.transposed()) packable_.push_back(k_.facts.ops()[load]);
}

void ThreadTile::MakeSlots() {
  const int64_t side = tile_.side();
  for (const v1::LoopOp* op : packable_) {
    const v1::DType dtype = k_.BufferDType(*op);
    const int64_t elements = side * TileRowElements(side, ir::ByteWidth(dtype));
    llvm::Type* type = llvm::ArrayType::get(k_.MemoryType(dtype), static_cast<uint64_t>(elements));
    memory_.packed()[op] = {
        type, block_.SharedSlots(k_.MemoryType(dtype), static_cast<unsigned>(elements), "tile")};
  }
}

void ThreadTile::Emit() {
  const int64_t side = tile_.side();
  std::vector<llvm::Value*> extents = k_.outer_extents;
  for (const uint32_t loop : {tile_.loop(), last()}) {
    extents[loop] = b_.CreateUDiv(b_.CreateNSWAdd(extents[loop], b_.I64(side - 1)), b_.I64(side), "tiles");
  }
  llvm::Value* tiles = points_.Count(extents);
  MakeSlots();
  b_.ScalarLoop(block_.Number(), tiles, block_.Count(), "tile", [&](llvm::Value* number) {
    points_.SetPoint(number, extents);
    llvm::Value* along = b_.CreateNSWMul(at_.variables[last()], b_.I64(side));
    llvm::Value* across = b_.CreateNSWMul(at_.variables[tile_.loop()], b_.I64(side));
    EmitTile({across, along});
  });
  memory_.packed().clear();
}

void ThreadTile::EmitTile(Tile tile) {
  llvm::Value* size = b_.I64(tile_.side());
  const auto fits = [&](llvm::Value* begin, uint32_t loop) {
    return b_.CreateICmpSLE(b_.CreateNSWAdd(begin, size), k_.outer_extents[loop]);
  };
  llvm::Value* whole = b_.CreateAnd(fits(tile.across, tile_.loop()), fits(tile.along, last()), "whole");
  llvm::Value* thread = block_.Thread();
  tile.column = b_.CreateURem(thread, size);
  tile.row = b_.CreateUDiv(thread, size);
  ByWhole(&tile, whole, [&] { Read(tile); });
  block_.Barrier();
  ByWhole(&tile, whole, [&] { Compute(tile); });
  block_.Barrier();
}

void ThreadTile::ByWhole(Tile* tile, llvm::Value* whole, CodeBody body) {
  b_.Choose(
      whole,
      [&] {
        tile->every_iteration = true;
        body();
        tile->every_iteration = false;
      },
      body);
}

void ThreadTile::Iterations(const Tile& tile, bool neighbours_in_last, bool unrolled, LoopBody body) {
  const uint32_t first = neighbours_in_last ? last() : tile_.loop();
  const uint32_t second = neighbours_in_last ? tile_.loop() : last();
  llvm::Value* first_begin = neighbours_in_last ? tile.along : tile.across;
  llvm::Value* second_begin = neighbours_in_last ? tile.across : tile.along;
  const auto iteration = [&](llvm::Value* begin) {
    llvm::Value* own = b_.CreateNSWAdd(begin, tile.row);
    at_.variables[first] = b_.CreateNSWAdd(first_begin, tile.column);
    at_.variables[second] = b_.CreateNSWAdd(second_begin, own);
    if (tile.every_iteration) {
      body(own);
      return;
    }
    b_.If(b_.CreateAnd(b_.CreateICmpSLT(at_.variables[first], k_.outer_extents[first]),
                       b_.CreateICmpSLT(at_.variables[second], k_.outer_extents[second])),
          "inside", [&] { body(own); });
  };
  const int64_t step = threads_ / tile_.side();
  if (tile.every_iteration && unrolled) {
    for (int64_t begin = 0; begin < tile_.side(); begin += step) iteration(b_.I64(begin));
  } else {
    b_.ScalarLoop(b_.I64(0), b_.I64(tile_.side()), b_.I64(step), "iteration", iteration);
  }
}

llvm::Value* ThreadTile::Position(const v1::LoopOp& op, llvm::Value* row, llvm::Value* column) {
  const int64_t width = ir::ByteWidth(k_.BufferDType(op));
  return b_.CreateNSWAdd(b_.CreateNSWMul(row, b_.I64(TileRowElements(tile_.side(), width))), column);
}

void ThreadTile::Read(const Tile& tile) {
  std::vector<std::pair<llvm::Value*, llvm::Value*>> elements;  // and their places: loads first, then stores
  const auto put = [&] {
    for (const auto& [element, place] : elements) b_.CreateStore(element, place);
    elements.clear();
  };
  Iterations(tile, /*neighbours_in_last=*/false, /*unrolled=*/true, [&](llvm::Value* iteration) {
    for (const v1::LoopOp* op : packable_) {
      llvm::Type* type = k_.MemoryType(k_.BufferDType(*op));
      llvm::Value* from = memory_.Address(*op);
      llvm::Value* element = memory_.Annotate(b_.CreateLoad(type, from), op->buffer());
      const PackedTile& packed = memory_.packed()[op];
      llvm::Value* position = Position(*op, iteration, tile.column);
      elements.emplace_back(element, b_.CreateInBoundsGEP(packed.type, packed.slots, {b_.I64(0), position}));
    }
    if (!tile.every_iteration) put();
  });
  put();
}

void ThreadTile::Compute(const Tile& tile) {
  Iterations(tile, /*neighbours_in_last=*/true, tile_.unrolled(), [&](llvm::Value* iteration) {
    for (const v1::LoopOp* op : packable_) {
      memory_.packed()[op].position = Position(*op, tile.column, iteration);
    }
    stages_.Stages();
  });
}

}  // namespace kiln
