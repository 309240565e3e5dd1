// A convolution of images in memory: sizes, strides and window are numbers. Who computes it?
//
// For two who have to say the same, or what was measured is not found: max-autotune describes a program's
// calls (artifact/convolution_tunables), the runtime what it is called with (client/runtime/torch_gemms,
// torch_convolutions). A graph's, whose sizes may be symbols, is a Convolution (convolution.h).
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

// As IsConv1x1 of a graph's convolution, by the same rule (IsOfPoints). Its result's sizes are not asked:
// they follow.
bool IsConv1x1(const FixedConvolution& convolution);
// ATen hands it to cuDNN as it stands, and so does the runtime. A window for each channel in row-major order,
// and dilated ones that have to repeat, ATen computes itself.
bool GoesToCudnn(const FixedConvolution& convolution, bool deterministic);

// Images, or weights, are channels-last, else row-major, without gaps: no others go to cuDNN.
bool IsContiguous(const StridedTensor& images, bool channels_last);

}  // namespace kiln
