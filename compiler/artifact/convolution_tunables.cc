#include "compiler/artifact/convolution_tunables.h"

#include <optional>

#include "compiler/artifact/fixed_call.h"
#include "compiler/graph/operator_name.h"
#include "compiler/library/convolution.h"

namespace kiln {
namespace {

void Write(const std::vector<int64_t>& numbers, google::protobuf::RepeatedField<int64_t>* to) {
  to->Assign(numbers.begin(), numbers.end());
}

void Write(const int64_t (&pair)[2], google::protobuf::RepeatedField<int64_t>* to) {
  to->Assign(pair, pair + 2);
}

std::optional<v1::Convolution> Describe(v1::Convolution::Direction direction, const Window& window,
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
bool LeftToAten(const FixedConvolution& call, const v1::Numerics& numerics) {
  const bool channels_last = call.input.strides[1] == 1 && call.input.sizes[1] > 1;
  if (call.groups > 1 && call.groups == call.input.sizes[1] && !channels_last) return true;
  const bool dilated = call.window.dilation[0] != 1 || call.window.dilation[1] != 1;
  return numerics.deterministic() && dilated;
}

}  // namespace

std::vector<v1::Convolution> ConvolutionsOf(const v1::Program& program, const v1::Call& call,
                                            const v1::Numerics& numerics) {
  std::vector<v1::Convolution> found;
  const OperatorName target(call.target());
  if (!IsConvolution(target)) return found;
  const std::optional<FixedConvolution> fixed = FixedConvolutionOf(program, call);
  if (!fixed.has_value() || LeftToAten(*fixed, numerics)) return found;
  const auto add = [&](v1::Convolution::Direction direction, const FixedTensor& input,
                       const FixedTensor& weight, const FixedTensor& output) {
    auto convolution = Describe(direction, fixed->window, input, weight, output, numerics);
    if (convolution.has_value()) found.push_back(*std::move(convolution));
  };
  if (target == Op::kConvolution) {
    if (call.results_size() != 1 || fixed->is_conv1x1()) return found;
    const std::optional<FixedTensor> output = FixedBuffer(program, call.results(0));
    if (output.has_value()) add(v1::Convolution::FORWARD, fixed->input, fixed->weight, *output);
    return found;
  }
  if (call.results_size() != 3 || call.results(2) >= 0) return found;
  const std::optional<FixedTensor> output = FixedArgument(program, call, ConvolutionArguments::kGradient),
                                   input = FixedBuffer(program, call.results(0)),
                                   weight = FixedBuffer(program, call.results(1));
  if (!output.has_value()) return found;
  if (input.has_value()) add(v1::Convolution::INPUT_GRADIENT, *input, fixed->weight, *output);
  if (weight.has_value()) add(v1::Convolution::WEIGHT_GRADIENT, fixed->input, *weight, *output);
  return found;
}

}  // namespace kiln
