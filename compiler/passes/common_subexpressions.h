// Pass: common-subexpression elimination. Random operators, mutations, and values whose identity as separate
// memory is visible (two outputs of the graph) are left alone.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"

namespace kiln {

absl::Status MergeCommonSubexpressions(Graph& graph);

}  // namespace kiln
