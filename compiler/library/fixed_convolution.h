// A convolution of images in memory: sizes, strides and window are numbers, as the runtime is called with.
//
// A graph's, whose sizes may be symbols, is a Convolution (convolution.h).
//
// Strides are in elements. Threads: pure functions. Errors: none.
#pragma once

#include <cstdint>

#include "compiler/library/conv1x1_gemm.h"
#include "compiler/library/sliding_window.h"
#include "kiln/v1/graph.pb.h"

namespace kiln {

// Not transposed, without a bias; the convolution itself or a gradient of it.
struct FixedConvolution {
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;  // of images and weights
  StridedTensor images, weights;            // of four dimensions each
  Window window;
  int64_t groups = 1;
};

// As IsConv1x1 of a graph's convolution, but of one group alone: Conv1x1AsGemm's.
bool IsConv1x1(const FixedConvolution& convolution);

}  // namespace kiln
