// Greedy fusion: which loop nodes become one kernel, and the order of everything.
//
// Rounds over pairs that touch a common buffer, the best score first, until nothing changes. A fusion
// that would close a cycle through other nodes is refused. The order of the result is topological and
// otherwise that of the graph, but for loops that nothing waits for: they go where they free memory.
// Deterministic. Threads: one. Errors: INTERNAL.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "compiler/schedule/draft.h"

namespace kiln {

// One step of the result: a draft (loops), or the position of a call or seeds node.
struct FusedGroup {
  Draft draft;
  uint32_t node = 0;
  bool loops = false;
};

struct FuseOptions {
  bool fuse = true;
};

absl::StatusOr<std::vector<FusedGroup>> FuseLoops(LoopContext& context, const FuseOptions& options);

// The buffers that one node of the graph reads and writes.
struct NodeAccess {
  std::vector<BufferId> reads;
  std::vector<BufferId> writes;
};
NodeAccess AccessOf(const LoopGraphNode& node);

}  // namespace kiln
