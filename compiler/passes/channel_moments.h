// Mean and variance of every channel of images that are channels-last in one pass over them.
//
// Two passes read large images twice. Here blocks of points are summed relative to their own first point,
// which bounds what cancels: the squares about a block's mean are at least the first point's, so that their
// sum loses at most as many units in the last place as a block has points. The blocks' means and squares are
// then combined by Chan's formula. Needs known sizes and F32. Runs after PreferChannelsLast. Errors: none.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"
#include "compiler/target/machine.h"

namespace kiln {

absl::Status CombineChannelMoments(Graph& graph, const Machine& machine);

}  // namespace kiln
