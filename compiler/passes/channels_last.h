// Lets images between convolutions lie by points (channels last): on a GPU as cuDNN's kernels for tensor
// cores want them; in inference on a CPU where oneDNN would else take longer to lay the images anew than it
// now takes for the weights.
//
// Only strides of computed values change, which lowering takes as the layout to give them: results of
// convolutions, and of what keeps the order of points and channels behind them. Values that leave the graph
// keep their declared layout, and so do copies that gradients of convolutions read on a CPU. Errors: none.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"

namespace kiln {

absl::Status PreferChannelsLast(Graph& graph);

}  // namespace kiln
