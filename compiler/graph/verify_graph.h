// Is a graph in memory well formed? Run after import and after every pass.
//
// Checked: values are defined once and before their use, types are whole (dtype, equal numbers of
// sizes and strides, no size or stride that can only be negative), every expression is of the
// graph's pool, argument names are unique, outputs exist.
// Threads: pure function. Errors: INTERNAL (a pass is wrong), naming the node by index and target.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"

namespace kiln {

absl::Status VerifyGraph(const Graph& graph);

}  // namespace kiln
