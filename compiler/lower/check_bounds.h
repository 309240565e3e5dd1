// Checks that all loops access their buffers in bounds. The sizes of a graph's values are the caller's claim:
// a result that is declared larger than its operands would make a loop read past them.
//
// What a mask or an index that is not linear hides is checked by dimension before, while the loops are
// recorded (LoweringChecks::CheckIndex). This looks at every load and store that no mask protects and
// whose index is linear in the loop variables. Where the largest or least index cannot be proved to be
// inside, the condition becomes a guard of the graph; where it can be proved not to be, the graph is
// refused.
//
// Threads: none shared. Errors: INVALID_ARGUMENT naming the node.
#pragma once

#include "absl/status/status.h"
#include "compiler/lower/loop_graph.h"

namespace kiln {

absl::Status CheckBounds(LoopGraph& loops);

}  // namespace kiln
