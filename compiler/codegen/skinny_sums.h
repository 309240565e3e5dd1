// The sums of a gemm of few rows on a GPU, and what is done with each: d = finish(a b), with at most 64 rows
// of a, and b read once, which is what its time is.
//
// The sum over K is split twice. The warps of a block take a piece of K each, and so do the blocks of a
// cluster (sm_90 and later). Each warp multiplies its piece of a tile of columns by the tensor cores, weights
// as the operand of sixteen rows, or by FMA where F32 may not be rounded; loads of a piece are in flight
// together. Then every warp stores its partial sums into the shared memory of the block that owns the
// element, and after one barrier that block adds the pieces in a fixed order, and finishes the element. So
// bits do not depend on what runs when; and as nothing lies in global memory but the operands, there is no
// workspace, no counter and nothing that launches side by side could share.
//
// Sizes and strides are constants of the code. The launch has the shape's blocks, no fewer.
//
// Ownership: borrows the builder, at whose place it emits. Threads: one. Errors: none; the shape was checked.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "absl/functional/function_ref.h"
#include "compiler/codegen/loop_builder.h"
#include "compiler/schedule/skinny_schedule.h"
#include "llvm/IR/Module.h"

namespace kiln {

// An element of d that a thread completes, one of its iterations; both i32.
struct SkinnyElement {
  uint32_t iteration = 0;
  llvm::Value *row = nullptr, *column = nullptr;
};

// The terms of a row of a, or of a column of b, from `term` on, both i32: the words of 16 bytes. `aligned`:
// in code that runs where SkinnyFactors::aligned holds.
using SkinnyWords =
    std::function<std::array<llvm::Value*, 4>(llvm::Value* number, llvm::Value* term, bool aligned)>;

// Factors are read as they lie, from their first elements in global memory, or made where there is who makes
// them; of a made b the terms are beside each other.
struct SkinnyFactors {
  llvm::Value *a = nullptr, *b = nullptr;
  // i1: whether those that are read stand at 16 bytes, and with that each row or column of them; else
  // elements are loaded one by one. nullptr: they do.
  llvm::Value* aligned = nullptr;
  SkinnyWords make_a = {}, make_b = {};
};

// `before` is emitted for every element before the sums are made, so that what it loads is in flight
// meanwhile: an element of d, where there is none for the thread any other. `finish`, with an element's sum,
// a float, only where it is the thread's.
void EmitSkinnySums(const SkinnyShape& shape, const SkinnyFactors& factors, llvm::Module* module,
                    LoopBuilder* builder, absl::FunctionRef<void(const SkinnyElement&)> before,
                    absl::FunctionRef<void(const SkinnyElement&, llvm::Value* sum)> finish);

}  // namespace kiln
