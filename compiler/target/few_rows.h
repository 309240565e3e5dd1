// The gemms of few rows that kiln's own kernel does on a GPU, by their sizes and strides: for who chooses it
// (library/choice) and who deals it to blocks (schedule/skinny_schedule.h).
//
// Threads: values and pure functions. Errors: UNIMPLEMENTED for a gemm that the kernel does not do,
// INVALID_ARGUMENT for one whose sizes do not fit together.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln {

// The gemm: d = activation(a * b + c + bias). Strides are in elements.
struct SkinnyGemm {
  static constexpr int64_t kRowsMax = 64;
  static constexpr int64_t kRowsByFmaMax = 24;  // sums in registers: two a row and tile

  static absl::StatusOr<SkinnyGemm> Of(const v1::Gemm& gemm);

  struct Strides {
    int64_t row = 0, column = 0;
  };

  v1::DType dtype = v1::F32;
  int64_t rows = 0, columns = 0, depth = 0;
  int64_t a_stride = 0;
  int64_t b_stride = 0;  // between columns, or between terms where the weights lie along N
  Strides c, d;
  bool along_n = false;
  bool has_c = false, has_bias = false;
  bool tensor_cores = false;
  v1::Activation activation = v1::ACTIVATION_NONE;

  int64_t element_bytes() const { return dtype == v1::F32 ? 4 : 2; }
  int64_t terms() const { return 16 / element_bytes(); }  // of K in 16 bytes
  int64_t step_terms() const { return 4 * terms(); }
  int64_t steps() const { return (depth + step_terms() - 1) / step_terms(); }
  uint32_t row_groups() const { return static_cast<uint32_t>((rows + 7) / 8); }
};

// Whether a kernel of loops that sums these products, c and what follows aside, may have such a schedule on a
// GPU with clusters, as far as sizes say: its columns are whole tiles, and its sums need no F64
// (schedule/long_sums.h).
bool FitsGemmLoops(const v1::Gemm& gemm);

}  // namespace kiln
