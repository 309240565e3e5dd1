// A window that moves over rows and columns: of pooling and of convolutions. Values; two numbers each. What a
// window makes of a convolution is asked of its sizes, whether they are numbers or a graph's expressions.
#pragma once

#include <cstdint>

namespace kiln {

struct Window {
  int64_t kernel[2] = {1, 1};  // 0 where it is not known
  int64_t stride[2] = {1, 1};
  int64_t padding[2] = {0, 0};
  int64_t dilation[2] = {1, 1};

  // One point of the image for each point of the result: what convolves so is a gemm over the channels.
  bool is_conv1x1() const { return AreAll(kernel, 1) && AreAll(stride, 1) && AreAll(padding, 0); }
  bool is_dilated() const { return !AreAll(dilation, 1); }
  // Windows of several points that neither overlap nor leave a gap.
  bool cuts_patches() const {
    return kernel[0] >= 1 && kernel[1] >= 1 && kernel[0] * kernel[1] > 1 && stride[0] == kernel[0] &&
           stride[1] == kernel[1] && AreAll(padding, 0) && AreAll(dilation, 1);
  }

 private:
  static bool AreAll(const int64_t (&pair)[2], int64_t wanted) {
    return pair[0] == wanted && pair[1] == wanted;
  }
};

// Sizes are [images, channels, rows, columns] and [outputs, channels, rows, columns]: the 1×1 convolution, of
// all channels together.
template <typename Sizes>
bool IsOfPoints(const Sizes& images, const Sizes& weights, const Window& window) {
  return images.size() == 4 && weights.size() == 4 && weights[1] == images[1] && window.is_conv1x1();
}

}  // namespace kiln
