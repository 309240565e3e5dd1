#include "compiler/passes/dead_code.h"

#include <algorithm>
#include <utility>

#include "compiler/passes/graph_rewrite.h"

namespace kiln {

absl::Status RemoveDeadCode(Graph& graph) {
  std::vector<bool> live(graph.values.size(), false);
  for (const GraphOutput& output : graph.outputs) {
    if (output.value != kNoValue) live[output.value] = true;
  }
  std::vector<GraphNode> kept;
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    bool needed = IsMutation(*node) || IsAssertion(*node) || BindsSymbol(*node) ||
                  (graph.draws_in_order && IsRandom(*node));
    for (ValueId result : node->results) needed = needed || (result != kNoValue && live[result]);
    if (!needed) continue;
    ForEachOperand(std::as_const(*node), [&](ValueId value) { live[value] = true; });
    kept.push_back(std::move(*node));
  }
  std::reverse(kept.begin(), kept.end());
  graph.nodes = std::move(kept);
  return absl::OkStatus();
}

}  // namespace kiln
