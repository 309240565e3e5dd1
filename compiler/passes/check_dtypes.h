// Pass: refuses operands whose dtypes eager refuses together, INVALID_ARGUMENT by the operator's name. Its
// decomposition or lowering would convert them. The client has PyTorch run the node, whose operator raises
// its own error.
//
// Most operators promote dtypes, or torch has looked when the graph was traced; library calls look for
// themselves. To add one: a row, and a case in tests/integration/test_integers_and_numbers.py.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"

namespace kiln {

absl::Status CheckDTypes(const Graph& graph);

}  // namespace kiln
