// A node as a call of the host's library: its arguments in memory, its results in buffers that the call fills
// or makes.
//
// Functions on a LoweringContext. Errors: the context's, and INVALID_ARGUMENT of a result that is declared
// without strides.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "compiler/lower/lowering_context.h"

namespace kiln {

// How a tensor argument is passed.
struct CallOperand {
  std::vector<ExprId> strides;
  LoweredTensor* tensor = nullptr;  // instead of the argument's value
};
using CallOperands = absl::flat_hash_map<std::string, CallOperand>;  // by the arguments' names

// `reason` says why the node is not lowered to loops. The program allocates the results where their layout is
// known. Arguments that `operands` does not name keep their traced layout, since the results' strides may
// depend on it.
absl::Status CallLibrary(LoweringContext& context, const GraphNode& node, absl::string_view reason,
                         bool into_results, const CallOperands& operands = {});

}  // namespace kiln
