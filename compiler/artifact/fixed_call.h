// Arguments and tensors of a program's library call, as far as they are fixed at compile time.
//
// Threads: pure functions. Errors: none; what is not there, not of this kind or not fixed has no value.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "compiler/library/sliding_window.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln {

struct FixedTensor {
  v1::DType dtype;
  std::vector<int64_t> sizes, strides;

  // Whether images are channels-last, or by rows, without gaps.
  bool LiesSo(bool channels_last) const;
};

// What a convolution of images and its gradients have in common.
struct FixedConvolution {
  FixedTensor input, weight;
  Window window;
  int64_t groups = 1;

  bool is_conv1x1() const { return groups == 1 && window.covers_points(); }
};

const v1::Argument* FindArgument(const v1::Call& call, absl::string_view name);
std::optional<FixedTensor> FixedBuffer(const v1::Program& program, int64_t id);
std::optional<FixedTensor> FixedArgument(const v1::Program& program, const v1::Call& call,
                                         absl::string_view name);
// Not of a transposed convolution, nor of one with a bias.
std::optional<FixedConvolution> FixedConvolutionOf(const v1::Program& program, const v1::Call& call);

}  // namespace kiln
