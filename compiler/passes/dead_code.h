// Pass: removes nodes whose results nobody reads. Mutations stay, and what draws where the next draw depends
// on it.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"

namespace kiln {

absl::Status RemoveDeadCode(Graph& graph);

}  // namespace kiln
