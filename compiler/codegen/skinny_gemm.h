// A gemm of few rows on a GPU as a kernel of our own: d = activation(a b (+ c) (+ bias)), with at
// most 64 rows of a, and b read once, which is what its time is.
//
// The sum over K is split twice. The warps of a block take a piece of K each, and so do the blocks of a
// cluster (sm_90 and later). Each warp multiplies its piece of a tile of columns by the tensor cores, weights
// as the operand of sixteen rows, or by FMA where F32 may not be rounded; loads of a piece are in flight
// together. Then every warp stores its partial sums into the shared memory of the block that owns the element,
// and after one barrier that block adds the pieces in a fixed order, with bias, c and activation, and rounds
// once. So bits do not depend on what runs when; and as nothing lies in global memory but the operands, there
// is no workspace, no counter and nothing that launches side by side could share.
//
// Sizes and strides are constants of the code. Every address is aligned to 16 bytes. c may be d.
//
// Threads: pure functions. Errors: UNIMPLEMENTED for a gemm that the kernel does not do, INVALID_ARGUMENT
// for a schedule that does not fit the gemm.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compiler/image/gpu_image.h"
#include "compiler/target/machine.h"
#include "kiln/v1/tuning.pb.h"

namespace llvm {
class Module;
}

namespace kiln {

struct SkinnySchedule {
  uint32_t tiles = 1;   // of sixteen columns that a block takes: 1, 2 or 4
  uint32_t warps = 8;   // of a block
  uint32_t blocks = 1;  // that share a tile's sum, as a cluster: 1, 2, 4 or 8
  uint32_t steps = 1;   // of K, 64 bytes each, whose loads a warp has in flight together

  friend bool operator==(const SkinnySchedule&, const SkinnySchedule&) = default;
};

// "16 columns, 8 warps, 2 blocks": for people.
std::string SkinnyName(const SkinnySchedule& schedule);

// Those worth measuring on a machine of `architecture` (90: sm_90), the most promising first, at most
// `wanted`.
absl::StatusOr<std::vector<SkinnySchedule>> SkinnySchedules(const v1::MatrixProduct& product,
                                                            const Machine& machine, uint32_t architecture,
                                                            size_t wanted);

// Adds the kernel kGpuEntryName to the module: its parameters are the addresses of a, b, c and bias where
// there are such, and d. Returns its launch, without code: a unit is a block.
struct SkinnyLaunch {
  GpuImage image;
  uint32_t units = 0;
};
absl::StatusOr<SkinnyLaunch> EmitSkinnyGemm(const v1::MatrixProduct& product, const SkinnySchedule& schedule,
                                            llvm::Module* module);

}  // namespace kiln
