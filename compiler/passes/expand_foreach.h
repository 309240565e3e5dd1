// Pass: operators of lists of tensors (`_foreach_*`: what torch's optimizers are written in) become one
// ordinary operator a tensor, so that no later pass knows that there are lists.
//
// An overload that is not in the table, or whose lists differ in length, stays a library call.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"

namespace kiln {

absl::Status ExpandForeach(Graph& graph);

}  // namespace kiln
