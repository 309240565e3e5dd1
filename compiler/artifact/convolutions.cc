#include "compiler/artifact/convolutions.h"

#include <optional>

#include "compiler/artifact/fixed_call.h"
#include "compiler/graph/operator_name.h"

namespace kiln {
namespace {

void Write(const std::vector<int64_t>& numbers, google::protobuf::RepeatedField<int64_t>* to) {
  to->Assign(numbers.begin(), numbers.end());
}

std::optional<v1::Convolution> Describe(v1::Convolution::Direction direction, const FixedWindow& window,
                                        const FixedTensor& input, const FixedTensor& weight,
                                        const FixedTensor& output, const v1::Numerics& numerics) {
  const v1::DType dtype = input.dtype;
  if (dtype != v1::F32 && dtype != v1::F16 && dtype != v1::BF16) return std::nullopt;
  bool by_rows = true, channels_last = true;
  for (const FixedTensor* tensor : {&input, &weight, &output}) {
    if (tensor->dtype != dtype || tensor->sizes.size() != 4) return std::nullopt;
    for (const int64_t size : tensor->sizes) {
      if (size <= 0) return std::nullopt;
    }
    by_rows = by_rows && tensor->LiesSo(false);
    channels_last = channels_last && tensor->LiesSo(true);
  }
  if (!by_rows && !channels_last) return std::nullopt;
  v1::Convolution convolution;
  convolution.set_direction(direction);
  convolution.set_dtype(dtype);
  Write(input.sizes, convolution.mutable_input());
  Write(weight.sizes, convolution.mutable_weight());
  Write(output.sizes, convolution.mutable_output());
  Write(window.stride, convolution.mutable_stride());
  Write(window.padding, convolution.mutable_padding());
  Write(window.dilation, convolution.mutable_dilation());
  convolution.set_channels_last(!by_rows);
  convolution.set_tf32(dtype == v1::F32 && !numerics.convolutions_without_tf32());
  convolution.set_deterministic(numerics.deterministic());
  return convolution;
}

// A window for each channel in row-major order, and dilated ones that have to repeat, are ATen's.
bool LeftToAten(const FixedWindow& window, const v1::Numerics& numerics) {
  const bool channels_last = window.input.strides[1] == 1 && window.input.sizes[1] > 1;
  if (window.groups > 1 && window.groups == window.input.sizes[1] && !channels_last) return true;
  const bool dilated = window.dilation != std::vector<int64_t>{1, 1};
  return numerics.deterministic() && dilated;
}

}  // namespace

std::vector<v1::Convolution> ConvolutionsOf(const v1::Program& program, const v1::Call& call,
                                            const v1::Numerics& numerics) {
  std::vector<v1::Convolution> found;
  const bool forward = call.target() == NameOf(Op::kConvolution);
  if (!forward && call.target() != NameOf(Op::kConvolutionBackward)) return found;
  const std::optional<FixedWindow> window = FixedWindowOf(program, call);
  if (!window.has_value() || LeftToAten(*window, numerics)) return found;
  const auto add = [&](v1::Convolution::Direction direction, const FixedTensor& input,
                       const FixedTensor& weight, const FixedTensor& output) {
    auto convolution = Describe(direction, *window, input, weight, output, numerics);
    if (convolution.has_value()) found.push_back(*std::move(convolution));
  };
  if (forward) {
    if (call.results_size() != 1 || window->covers_points()) return found;
    const std::optional<FixedTensor> output = FixedBuffer(program, call.results(0));
    if (output.has_value()) add(v1::Convolution::FORWARD, window->input, window->weight, *output);
    return found;
  }
  if (call.results_size() != 3 || call.results(2) >= 0) return found;
  const std::optional<FixedTensor> output = FixedArgument(program, call, "grad_output"),
                                   input = FixedBuffer(program, call.results(0)),
                                   weight = FixedBuffer(program, call.results(1));
  if (!output.has_value()) return found;
  if (input.has_value()) add(v1::Convolution::INPUT_GRADIENT, *input, window->weight, *output);
  if (weight.has_value()) add(v1::Convolution::WEIGHT_GRADIENT, window->input, *weight, *output);
  return found;
}

}  // namespace kiln
