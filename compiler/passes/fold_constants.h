// Pass: constant folding of `full`: views, expansions, casts and arithmetic with scalars of one become
// another `full`.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"

namespace kiln {

absl::Status FoldConstants(Graph& graph);

}  // namespace kiln
