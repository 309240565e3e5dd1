// A gemm of few rows on a GPU as a kernel of our own: d = activation(a b (+ c) (+ bias)), with at
// most 64 rows of a, and b read once, which is what its time is.
//
// It is what max-autotune measures beside the library's gemm. A gemm that fuses with what follows is a kernel
// of loops (thread_gemm.h), by the same sums (skinny_sums.h).
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
