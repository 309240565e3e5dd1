// Checks a LoopGraph: what lowering must leave and scheduling may rely on.
//
// Checked: buffers and op ids exist and are used after their definition; memory ops have their buffer's
// type; operands have one type, of a kind the op takes; index expressions use the node's own loops and
// checked ops of its own body; every node stores; calls' tensors and results are buffers.
// Threads: pure function. Errors: INTERNAL (lowering is wrong), naming the node by its position.
#pragma once

#include "absl/status/status.h"
#include "compiler/lower/loop_graph.h"

namespace kiln {

absl::Status VerifyLoopGraph(const LoopGraph& graph);

}  // namespace kiln
