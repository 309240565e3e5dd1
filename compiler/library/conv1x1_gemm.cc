#include "compiler/library/conv1x1_gemm.h"

namespace kiln {

std::optional<Conv1x1Gemm> Conv1x1AsGemm(const StridedTensor& images, const StridedTensor& weights) {
  const int64_t count = images.sizes[0], inputs = images.sizes[1], outputs = weights.sizes[0],
                points = images.sizes[2] * images.sizes[3];
  if (count <= 0 || inputs <= 0 || outputs <= 0 || points <= 0) return std::nullopt;
  const absl::Span<const int64_t> at = images.strides, step = weights.strides;
  if (inputs > 1 && points > 1 && at[1] == 1) {
    return Conv1x1Gemm{.channels_last = true,
                       .a = {count * points, inputs, at[3], 1, 0},
                       .b = {inputs, outputs, step[1], step[0], 0},
                       .d = {count * points, outputs, outputs, 1, 0}};
  }
  return Conv1x1Gemm{.batch = count,
                     .a = {outputs, inputs, step[0], step[1], 0},
                     .b = {inputs, points, at[1], at[3], at[0]},
                     .d = {outputs, points, points, 1, points * outputs}};
}

}  // namespace kiln
