#include "compiler/library/fixed_convolution.h"

#include <array>
#include <cstddef>

#include "compiler/library/convolution.h"

namespace kiln {

bool IsConv1x1(const FixedConvolution& convolution) {
  return convolution.groups == 1 &&
         IsOfPoints(convolution.images.sizes, convolution.weights.sizes, convolution.window);
}

bool GoesToCudnn(const FixedConvolution& convolution, bool deterministic) {
  if (!CudnnConvolves(convolution.dtype)) return false;
  const int64_t channels = convolution.images.sizes[1], groups = convolution.groups;
  if (convolution.weights.sizes[1] * groups != channels) return false;
  const bool channels_last = convolution.images.strides[1] == 1 && channels > 1;
  if (groups > 1 && groups == channels && !channels_last) return false;
  return !deterministic || !convolution.window.is_dilated();
}

bool IsContiguous(const StridedTensor& images, bool channels_last) {
  if (images.sizes.size() != 4) return false;
  const std::array<size_t, 4> order =  // of the strides, the smallest first
      channels_last ? std::array<size_t, 4>{1, 3, 2, 0} : std::array<size_t, 4>{3, 2, 1, 0};
  int64_t stride = 1;
  for (const size_t d : order) {
    if (images.sizes[d] > 1 && images.strides[d] != stride) return false;
    stride *= images.sizes[d];
  }
  return true;
}

}  // namespace kiln
