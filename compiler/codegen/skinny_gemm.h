// A gemm of few rows on a GPU as a kernel of our own: d = activation(a b (+ c) (+ bias)), with at
// most 64 rows of a, and b read once, which is what its time is.
//
// The sum over K is split twice. The warps of a block take a piece of K each, and so do the blocks of a
// cluster (sm_90 and later). Each warp multiplies its piece of a tile of columns by the tensor cores, weights
// as the operand of sixteen rows, or by FMA where F32 may not be rounded; loads of a piece are in flight
// together. Then every warp stores its partial sums into the shared memory of the block that owns the
// element, and after one barrier that block adds the pieces in a fixed order, with bias, c and activation,
// and rounds once. So bits do not depend on what runs when; and as nothing lies in global memory but the
// operands, there is no workspace, no counter and nothing that launches side by side could share.
//
// Sizes and strides are constants of the code. Every address is aligned to 16 bytes. c may be d.
//
// Threads: pure functions. Errors: those of schedule/skinny_schedule.h, which checks gemm and schedule.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "compiler/image/gpu_image.h"
#include "kiln/v1/kernel.pb.h"
#include "kiln/v1/tuning.pb.h"

namespace llvm {
class Module;
}

namespace kiln {

// Adds the kernel kGpuEntryName to the module: its parameters are the addresses of a, b, c and bias where
// there are such, and d. Returns its launch, without code: a unit is a block.
struct SkinnyLaunch {
  GpuImage image;
  uint32_t units = 0;
};
absl::StatusOr<SkinnyLaunch> EmitSkinnyGemm(const v1::Gemm& gemm, const v1::SkinnySchedule& schedule,
                                            llvm::Module* module);

}  // namespace kiln
