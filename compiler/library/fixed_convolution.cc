#include "compiler/library/fixed_convolution.h"

namespace kiln {

bool IsConv1x1(const FixedConvolution& convolution) {
  return convolution.groups == 1 &&
         IsOfPoints(convolution.images.sizes, convolution.weights.sizes, convolution.window);
}

}  // namespace kiln
