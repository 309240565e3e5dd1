// Pass: arithmetic that does nothing (x * 1, x / 1, x - 0) and chains of views, permutations,
// casts and expansions that one of them can do.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"

namespace kiln {

absl::Status SimplifyAlgebra(Graph& graph);

}  // namespace kiln
