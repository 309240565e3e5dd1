// The schedule of a gemm of few rows on a GPU (compiler/codegen/skinny_sums.h): which ones are worth
// measuring, and the numbers that the code is made of. Which gemms there are, target/few_rows.h says.
//
// Threads: values and pure functions. Errors: UNIMPLEMENTED for a gemm that the kernel does not do,
// INVALID_ARGUMENT for a schedule that does not fit the gemm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/schedule/thread_walk.h"
#include "compiler/target/few_rows.h"
#include "compiler/target/machine.h"
#include "kiln/v1/kernel.pb.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln {

// How the schedule deals it to blocks, warps and lanes.
struct SkinnyShape {
  static constexpr int64_t kPartialSumsBytesMax = 48 << 10;

  static absl::StatusOr<SkinnyShape> Of(const v1::Gemm& gemm, const v1::SkinnySchedule& schedule);

  SkinnyGemm gemm;
  uint32_t tiles = 0, warps = 0, blocks = 0, steps = 0;
  uint32_t steps_of_warp = 0;  // a multiple of `steps`

  bool steps_fit() const { return int64_t{steps_of_warp} * slots() * gemm.step_terms() == gemm.depth; }
  uint32_t threads() const { return kWarp * warps; }
  uint32_t columns() const { return 16 * tiles; }  // of a block
  uint32_t slots() const { return warps * blocks; }
  uint32_t sums_of_lane() const {
    return gemm.tensor_cores ? 4 * tiles * gemm.row_groups() : 2 * tiles * static_cast<uint32_t>(gemm.rows);
  }
  uint32_t owned_rows() const { return gemm.row_groups() * 8 / blocks; }
  uint32_t slot_stride() const { return columns() + 4; }  // fragments meet no bank twice
  uint32_t slot_elements() const { return owned_rows() * slot_stride(); }
  uint32_t iterations() const { return (owned_rows() * columns() + threads() - 1) / threads(); }
  uint32_t units() const {
    return static_cast<uint32_t>((gemm.columns + columns() - 1) / columns()) * blocks;
  }
  // Words of registers that a step's loads fill, of one lane.
  uint32_t words_of_step() const {
    return 4 * (2 * tiles + (gemm.tensor_cores ? gemm.row_groups() : static_cast<uint32_t>(gemm.rows)));
  }
};

// Those worth measuring, the most promising first, at most `wanted`.
absl::StatusOr<std::vector<v1::SkinnySchedule>> SkinnySchedules(const v1::Gemm& gemm, const Machine& machine,
                                                                size_t wanted);

}  // namespace kiln
