#include "compiler/artifact/fixed_call.h"

#include "compiler/library/convolution.h"

namespace kiln {
namespace {

// One number stands for both dimensions.
bool ReadPair(const v1::Call& call, absl::string_view name, int64_t (&pair)[2]) {
  const v1::Argument* argument = FindArgument(call, name);
  if (argument == nullptr || argument->kind_case() != v1::Argument::kAsInts) return false;
  const auto& values = argument->as_ints().values();
  if (values.empty() || values.size() > 2) return false;
  pair[0] = values.Get(0);
  pair[1] = values.Get(values.size() - 1);
  return true;
}

bool IsAbsent(const v1::Argument* argument) {
  return argument == nullptr || argument->kind_case() == v1::Argument::kAsNone;
}

}  // namespace

bool FixedTensor::LiesSo(bool channels_last) const {
  if (sizes.size() != 4) return false;
  const std::vector<size_t> order =
      channels_last ? std::vector<size_t>{1, 3, 2, 0} : std::vector<size_t>{3, 2, 1, 0};
  int64_t stride = 1;
  for (const size_t d : order) {
    if (sizes[d] > 1 && strides[d] != stride) return false;
    stride *= sizes[d];
  }
  return true;
}

const v1::Argument* FindArgument(const v1::Call& call, absl::string_view name) {
  for (const v1::NamedArgument& argument : call.args()) {
    if (argument.name() == name) return &argument.value();
  }
  return nullptr;
}

std::optional<FixedTensor> FixedBuffer(const v1::Program& program, int64_t id) {
  if (id < 0 || id >= program.buffers_size()) return std::nullopt;
  const v1::ProgramBuffer& buffer = program.buffers(static_cast<int>(id));
  if (buffer.sizes_size() != buffer.strides_size()) return std::nullopt;
  FixedTensor fixed{buffer.dtype(), {}, {}};
  for (int d = 0; d < buffer.sizes_size(); ++d) {
    if (buffer.sizes(d).has_expr() || buffer.strides(d).has_expr()) return std::nullopt;
    fixed.sizes.push_back(buffer.sizes(d).value());
    fixed.strides.push_back(buffer.strides(d).value());
  }
  return fixed;
}

std::optional<FixedTensor> FixedArgument(const v1::Program& program, const v1::Call& call,
                                         absl::string_view name) {
  const v1::Argument* argument = FindArgument(call, name);
  if (argument == nullptr || argument->kind_case() != v1::Argument::kAsTensor) return std::nullopt;
  return FixedBuffer(program, argument->as_tensor());
}

std::optional<FixedConvolution> FixedConvolutionOf(const v1::Program& program, const v1::Call& call) {
  using Names = ConvolutionArguments;
  const std::optional<FixedTensor> input = FixedArgument(program, call, Names::kInput),
                                   weight = FixedArgument(program, call, Names::kWeight);
  const v1::Argument *transposed = FindArgument(call, Names::kTransposed),
                     *groups = FindArgument(call, Names::kGroups);
  Window window;
  if (!input.has_value() || !weight.has_value() || !ReadPair(call, Names::kStride, window.stride) ||
      !ReadPair(call, Names::kPadding, window.padding) ||
      !ReadPair(call, Names::kDilation, window.dilation) || transposed == nullptr || groups == nullptr) {
    return std::nullopt;
  }
  if (transposed->kind_case() != v1::Argument::kAsBool || transposed->as_bool()) return std::nullopt;
  if (groups->kind_case() != v1::Argument::kAsInt || !IsAbsent(FindArgument(call, Names::kBias)))
    return std::nullopt;
  if (input->sizes.size() != 4 || weight->sizes.size() != 4 || input->dtype != weight->dtype ||
      weight->sizes[1] * groups->as_int() != input->sizes[1]) {
    return std::nullopt;
  }
  for (size_t i = 0; i < 2; ++i) window.kernel[i] = weight->sizes[2 + i];
  return FixedConvolution{*input, *weight, window, groups->as_int()};
}

}  // namespace kiln
