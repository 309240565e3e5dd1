// Dead-code elimination in a loop body. Internal to compiler/lower.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "compiler/lower/loop_graph.h"

namespace kiln {

struct LiveOps {
  std::vector<LoopOpData> ops;    // renumbered, order kept; EXPR_INDIRECT leaves renamed with them
  std::vector<LoopOpId> new_ids;  // by old id; meaningless for dead ops
};

// The ops that `roots`, all stores and all checks of indices need. `exprs` gains the renamed index
// expressions.
LiveOps KeepLiveOps(ExprPool& exprs, const LoopBody& body, absl::Span<const LoopOpId> roots);

}  // namespace kiln
