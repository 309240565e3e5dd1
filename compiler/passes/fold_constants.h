// Pass: what is done to a tensor of one repeated value is done to the value: views, expansions, casts
// and arithmetic with scalars of `full` give another `full`.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"

namespace kiln {

absl::Status FoldConstants(Graph& graph);

}  // namespace kiln
