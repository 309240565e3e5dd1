// A 1×1 convolution of images in memory as a gemm: which matrices are multiplied, how large, with which
// strides.
//
// Of numbers, for two who have to say the same, or what was measured is not found: max-autotune describes a
// program's calls (artifact/gemm_tunable), the runtime what it is called with
// (client/runtime/torch_gemms). Within a graph, whose sizes may be symbols, the gemm is made of nodes
// (passes/conv1x1_to_gemm).
//
// Strides are in elements. Threads: pure function. Errors: none.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/types/span.h"

namespace kiln {

struct StridedTensor {
  absl::Span<const int64_t> sizes, strides;
};

struct StridedMatrix {
  int64_t rows = 0, columns = 0;
  int64_t row_stride = 0, column_stride = 0;
  int64_t batch_stride = 0;
};

// d = a b.
struct Conv1x1Gemm {
  // Images that are stored point by point are a, the whole batch in one matrix, and the weights are b. Of
  // those stored channel by channel each is a b of its own, and the weights are a.
  bool channels_last = false;
  int64_t batch = 1;
  StridedMatrix a, b;
  StridedMatrix d;  // without gaps, stored as the images are
};

// Images are [images, channels, rows, columns], weights [outputs, channels, 1, 1]. REQUIRES: a 1×1
// convolution of one group (IsConv1x1 of convolution.h or fixed_convolution.h), of images whose pixels
// have one stride, those of the whole batch where it is one matrix. No value where there is nothing to
// compute.
std::optional<Conv1x1Gemm> Conv1x1AsGemm(const StridedTensor& images, const StridedTensor& weights);

}  // namespace kiln
