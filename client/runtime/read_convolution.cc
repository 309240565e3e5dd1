#include "client/runtime/read_convolution.h"

#include "absl/strings/string_view.h"
#include "compiler/library/convolution.h"

namespace kiln::runtime {
namespace {

using Names = ConvolutionArguments;

// One number stands for both.
bool ReadPair(const CallArguments& call, absl::string_view name, int64_t (&pair)[2]) {
  const CallValue* value = call.Find(name);
  if (value == nullptr || value->numbers.empty() || value->numbers.size() > 2) return false;
  pair[0] = value->numbers.front(), pair[1] = value->numbers.back();
  return true;
}

}  // namespace

std::optional<FixedConvolution> ReadConvolution(const CallArguments& call) {
  const CallValue *input = call.Find(Names::kInput), *weight = call.Find(Names::kWeight),
                  *transposed = call.Find(Names::kTransposed), *groups = call.Find(Names::kGroups);
  if (input == nullptr || weight == nullptr || groups == nullptr) return std::nullopt;
  if (transposed == nullptr || transposed->number != 0) return std::nullopt;
  const TensorMemory &images = input->memory, &weights = weight->memory;
  if (images.dtype != weights.dtype || images.sizes.size() != 4 || weights.sizes.size() != 4)
    return std::nullopt;
  FixedConvolution convolution{.dtype = images.dtype,
                               .images = {images.sizes, images.strides},
                               .weights = {weights.sizes, weights.strides},
                               .window = {.kernel = {weights.sizes[2], weights.sizes[3]}},
                               .groups = groups->number};
  Window& window = convolution.window;
  if (!ReadPair(call, Names::kStride, window.stride) || !ReadPair(call, Names::kPadding, window.padding) ||
      !ReadPair(call, Names::kDilation, window.dilation)) {
    return std::nullopt;
  }
  return convolution;
}

}  // namespace kiln::runtime
