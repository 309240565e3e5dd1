// A tensor of a graph whose sizes and strides are numbers. Threads: pure functions. Errors: none; what is not
// there or not known has no value.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/graph/graph.h"

namespace kiln {

// Strides are in elements.
struct FixedTensor {
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  std::vector<int64_t> sizes, strides;

  // Of four dimensions, in the given memory format: channels-last or row-major.
  bool IsContiguous(bool channels_last) const;
};
std::optional<FixedTensor> FixedOf(const Graph& graph, ValueId value);

}  // namespace kiln
