#include "compiler/library/fixed_tensor.h"

#include "compiler/library/fixed_convolution.h"

namespace kiln {

bool FixedTensor::IsContiguous(bool channels_last) const {
  return kiln::IsContiguous({sizes, strides}, channels_last);
}

std::optional<FixedTensor> FixedOf(const Graph& graph, ValueId value) {
  if (value == kNoValue) return std::nullopt;
  const TensorType& type = graph.type(value);
  if (type.sizes.size() != type.strides.size()) return std::nullopt;
  FixedTensor fixed{.dtype = type.dtype};
  for (size_t d = 0; d < type.rank(); ++d) {
    const auto size = graph.exprs.AsConst(type.sizes[d]), stride = graph.exprs.AsConst(type.strides[d]);
    if (!size || !stride) return std::nullopt;
    fixed.sizes.push_back(*size);
    fixed.strides.push_back(*stride);
  }
  return fixed;
}

}  // namespace kiln
