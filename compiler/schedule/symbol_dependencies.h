// Which nodes have to come behind others because of unbacked symbols.
//
// What uses such a symbol, in loops, indices, arguments or in the sizes of a buffer, comes behind the node
// that sets it and behind every check of it: kernels trust what is checked. What stores to an input comes
// behind all checks, so that a call that fails has changed nothing.
//
// Threads: one. Deterministic.
#pragma once

#include <vector>

#include "absl/functional/function_ref.h"
#include "compiler/lower/loop_graph.h"
#include "compiler/schedule/fuse.h"

namespace kiln {

class SymbolDependencies {
 public:
  explicit SymbolDependencies(const LoopGraph& graph);

  // For each node in the graph's order; `depend` is called with the nodes that have to come before it.
  void Visit(uint32_t node, const NodeAccess& access, absl::FunctionRef<void(int64_t)> depend);

 private:
  void UsedBy(const LoopGraphNode& node, const NodeAccess& access);
  void Add(ExprId id);
  void Add(const BufferView& view);

  const LoopGraph& graph_;
  bool any_ = false;
  std::vector<std::vector<uint32_t>> before_;  // by symbol: the nodes that set or check it
  std::vector<uint32_t> checks_;
  std::vector<uint32_t> used_;  // symbols of the node at hand
};

}  // namespace kiln
