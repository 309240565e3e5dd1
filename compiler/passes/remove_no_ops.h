// Pass: removes nodes that return their argument: clones and copies of the same layout, expands and views to
// the same sizes, casts to the same dtype.
//
// A clone stays where its being separate memory is visible: when it reaches an output of the graph or
// a write to an input, through views or directly.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"

namespace kiln {

absl::Status RemoveNoOps(Graph& graph);

}  // namespace kiln
