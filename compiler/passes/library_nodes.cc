#include "compiler/passes/library_nodes.h"

#include <optional>
#include <utility>

#include "compiler/library/attention.h"
#include "compiler/library/gemm.h"

namespace kiln {

void MakeLibraryNodes(Graph& graph) {
  for (GraphNode& node : graph.nodes) {
    std::optional<GraphNode> made = GemmNodeOf(graph, node);
    if (!made) made = AttentionNodeOf(graph, node);
    if (made) node = *std::move(made);
  }
}

}  // namespace kiln
