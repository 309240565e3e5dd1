// Runs a LoopGraph directly, one scalar at a time: what lowering means, without scheduling or code
// generation. For tests: slow, checks every address.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/lower/loop_graph.h"

namespace kiln {

// Elements of one buffer, in the dtype's own bytes.
using BufferBytes = std::string;

struct LoopEvalResult {
  std::vector<BufferBytes> inputs;   // after mutations
  std::vector<BufferBytes> outputs;  // gathered row-major from the views; empty for None and integers
  std::vector<int64_t> sym_ints;     // by output; 0 for tensors
  int status_code = 0;               // KilnStatusCode: an index out of range, a division by zero
};

// `inputs` are the buffers' elements from the first on (empty for integer inputs); `symbols` by symbol
// number. Calls of mm, addmm and bmm on F32 are computed; any other call is UNIMPLEMENTED.
absl::StatusOr<LoopEvalResult> EvalLoopGraph(const LoopGraph& graph, const std::vector<BufferBytes>& inputs,
                                             const std::vector<int64_t>& symbols, int64_t seed = 1);

}  // namespace kiln
