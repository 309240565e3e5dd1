// Lets images between convolutions be channels-last: on a GPU as cuDNN's kernels for tensor
// cores want them; in inference on a CPU where oneDNN would else take longer to reorder the images than it
// now takes for the weights, or where 1×1 convolutions become gemms of oneDNN's, which reorder no weights;
// in training on a CPU where each convolution is depthwise or has no groups, since
// oneDNN's copies of row-major images would be new pages at each call and leave holes between what is saved.
//
// Only strides of computed values change, which lowering takes as the layout to give them: results of
// convolutions and their gradients, and of what keeps the order of points and channels behind them. Values
// that leave the graph keep their declared layout, but those that a forward graph saves for its backward:
// they have the layout that the graph computes them in, on a GPU where all sizes are known. Copies that
// gradients of convolutions read on a CPU, and weights there, stay as they are. Errors: none.
#pragma once

#include "compiler/graph/graph.h"
#include "compiler/target/machine.h"

namespace kiln {

// True where a value has another layout than before.
bool PreferChannelsLast(Graph& graph, const Machine& machine);

}  // namespace kiln
