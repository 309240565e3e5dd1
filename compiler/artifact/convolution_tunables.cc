#include "compiler/artifact/convolution_tunables.h"

#include <optional>

#include "compiler/library/convolution.h"
#include "compiler/library/fixed_convolution.h"
#include "compiler/library/fixed_tensor.h"

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
  bool row_major = true, channels_last = true;
  for (const FixedTensor* tensor : {&input, &weight, &output}) {
    if (tensor->dtype != dtype || tensor->sizes.size() != 4) return std::nullopt;
    for (const int64_t size : tensor->sizes) {
      if (size <= 0) return std::nullopt;
    }
    row_major = row_major && tensor->IsContiguous(false);
    channels_last = channels_last && tensor->IsContiguous(true);
  }
  if (!row_major && !channels_last) return std::nullopt;
  v1::Convolution convolution;
  convolution.set_direction(direction);
  convolution.set_dtype(dtype);
  Write(input.sizes, convolution.mutable_input());
  Write(weight.sizes, convolution.mutable_weight());
  Write(output.sizes, convolution.mutable_output());
  Write(window.stride, convolution.mutable_stride());
  Write(window.padding, convolution.mutable_padding());
  Write(window.dilation, convolution.mutable_dilation());
  convolution.set_channels_last(!row_major);
  convolution.set_tf32(dtype == v1::F32 && !numerics.convolutions_without_tf32());
  convolution.set_deterministic(numerics.deterministic());
  return convolution;
}

}  // namespace

std::vector<v1::Convolution> ConvolutionsOf(const Graph& calls, const GraphNode& call,
                                            const v1::Numerics& numerics) {
  std::vector<v1::Convolution> found;
  const std::optional<Convolution> convolution = ConvolutionOf(calls, call);
  if (!convolution || convolution->transposed || !convolution->groups || convolution->bias != kNoValue)
    return found;
  const std::optional<Window> window = WindowOf(calls, *convolution);
  const std::optional<FixedTensor> input = FixedOf(calls, convolution->input),
                                   weight = FixedOf(calls, convolution->weight);
  if (!window || !input || !weight || input->dtype != weight->dtype) return found;
  const FixedConvolution fixed{.dtype = input->dtype,
                               .images = {input->sizes, input->strides},
                               .weights = {weight->sizes, weight->strides},
                               .window = *window,
                               .groups = *convolution->groups};
  if (!GoesToCudnn(fixed, numerics.deterministic())) return found;
  const auto add = [&](v1::Convolution::Direction direction, const std::optional<FixedTensor>& input,
                       const std::optional<FixedTensor>& weight, const std::optional<FixedTensor>& output) {
    if (!input || !weight || !output) return;
    auto described = Describe(direction, *window, *input, *weight, *output, numerics);
    if (described.has_value()) found.push_back(*std::move(described));
  };
  if (!convolution->gradients) {
    if (!IsConv1x1(calls, *convolution))
      add(v1::Convolution::FORWARD, input, weight, FixedOf(calls, convolution->result));
    return found;
  }
  if (call.results.size() != 3 || call.results[2] != kNoValue) return found;
  const std::optional<FixedTensor> output = FixedOf(calls, convolution->gradient);
  add(v1::Convolution::INPUT_GRADIENT, FixedOf(calls, call.results[0]), weight, output);
  add(v1::Convolution::WEIGHT_GRADIENT, input, FixedOf(calls, call.results[1]), output);
  return found;
}

}  // namespace kiln
