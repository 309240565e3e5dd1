#include "compiler/passes/pinned_layouts.h"

#include "absl/algorithm/container.h"
#include "absl/strings/string_view.h"
#include "compiler/passes/graph_rewrite.h"

namespace kiln {
namespace {

// The value whose memory a node returns; kNoValue where its results have their own.
ValueId Viewed(const GraphNode& node) {
  ValueId viewed = kNoValue;
  if (!IsViewNode(node) && !IsMutation(node)) return viewed;
  ForEachOperand(node, [&](ValueId value) {
    if (viewed == kNoValue) viewed = value;
  });
  return viewed;
}

bool ReadsByStorage(const GraphNode& node) {
  constexpr Op kReaders[] = {Op::kAsStrided, Op::kAsStridedCopy, Op::kAsStridedScatter, Op::kViewDtype,
                             Op::kViewCopyDtype};
  return absl::c_linear_search(kReaders, node.target.op()) || IsCustom(node.target);
}

}  // namespace

std::vector<ValueId> MemoryOwners(const Graph& graph) {
  std::vector<ValueId> owners = IdentityReplacement(graph);
  for (const GraphNode& node : graph.nodes) {
    const ValueId viewed = Viewed(node);
    if (viewed == kNoValue) continue;
    for (ValueId result : node.results) {
      if (result != kNoValue) owners[result] = owners[viewed];
    }
  }
  return owners;
}

// Backwards, so that what a pinned view is a view of is pinned, too.
std::vector<bool> PinnedLayouts(const Graph& graph) {
  std::vector<bool> pinned(graph.values.size(), false);
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    if (ReadsByStorage(*node)) {
      ForEachOperand(*node, [&](ValueId value) { pinned[value] = true; });
    }
    const ValueId viewed = Viewed(*node);
    if (viewed == kNoValue) continue;
    for (ValueId result : node->results) {
      if (result != kNoValue && pinned[result]) pinned[viewed] = true;
    }
  }
  return pinned;
}

std::vector<bool> SharedByOutputs(const Graph& graph) {
  const std::vector<ValueId> owners = MemoryOwners(graph);
  std::vector<bool> shared(graph.values.size(), false), visible = shared;
  std::vector<ValueId> first(graph.values.size(), kNoValue);  // by owner: an output
  for (const GraphOutput& output : graph.outputs) {
    if (output.value == kNoValue) continue;
    const ValueId owner = owners[output.value];
    visible[owner] = visible[owner] || output.fact.user_visible();
    shared[owner] = shared[owner] || (first[owner] != kNoValue && first[owner] != output.value);
    first[owner] = output.value;
  }
  for (size_t value = 0; value < shared.size(); ++value) shared[value] = shared[value] && visible[value];
  return shared;
}

void RelateOutputs(Graph& graph) {
  const std::vector<ValueId> owners = MemoryOwners(graph);
  for (GraphOutput& output : graph.outputs) {
    if (output.value == kNoValue) continue;
    output.memory = owners[output.value];
    output.traced = output.value;
  }
}

}  // namespace kiln
