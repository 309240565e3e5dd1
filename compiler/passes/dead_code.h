// Pass: removes nodes whose results nobody reads. Mutations stay.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"

namespace kiln {

absl::Status RemoveDeadCode(Graph& graph);

}  // namespace kiln
