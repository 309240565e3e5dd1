// Pass: dead-code elimination. Mutations stay, and so do random operators where the next draw depends on
// them.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"

namespace kiln {

absl::Status RemoveDeadCode(Graph& graph);

}  // namespace kiln
