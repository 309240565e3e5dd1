// A program's library calls as nodes of a graph again, gemms and attention as those of compiler/library,
// which describes them.
//
// Threads: pure functions. Errors: none; what is not there or not fixed has no value.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/graph/graph.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln {

// Its values are the program's buffers, by number, its nodes the calls in their order. What is not fixed at
// compile time is a symbol. Arguments of kinds that no description reads are left out.
Graph CallsOf(const v1::Program& program);

// A tensor whose sizes and strides are numbers.
struct FixedTensor {
  v1::DType dtype;
  std::vector<int64_t> sizes, strides;

  // Of four dimensions, in the given memory format: channels-last or row-major.
  bool IsContiguous(bool channels_last) const;
};
std::optional<FixedTensor> FixedOf(const Graph& graph, ValueId value);

}  // namespace kiln
