// Lets images between convolutions on a GPU lie by points (channels last), as cuDNN's kernels for tensor
// cores want them.
//
// Only strides of computed values change, which lowering takes as the layout to give them: results of
// convolutions, and of what keeps the order of points and channels behind them. Values that leave the graph
// keep their declared layout. Errors: none.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"

namespace kiln {

absl::Status PreferChannelsLast(Graph& graph);

}  // namespace kiln
