#include "compiler/passes/channels_last.h"

#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "compiler/graph/channels_last.h"
#include "compiler/passes/core_set.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/passes/types.h"

namespace kiln {
namespace {

bool IsConvolution(const Graph& graph, const GraphNode& node) {
  if (node.target != "aten.convolution.default" || node.results.size() != 1) return false;
  const v1::DType dtype = graph.type(node.results[0]).dtype;
  if (dtype != v1::F16 && dtype != v1::BF16 && dtype != v1::F32) return false;  // cuDNN has no F64 by points
  const Argument *groups = node.Find("groups"), *transposed = node.Find("transposed");
  const auto* count = groups == nullptr ? nullptr : std::get_if<IntArg>(groups);
  const auto* flag = transposed == nullptr ? nullptr : std::get_if<BoolArg>(transposed);
  if (IsDepthwise(graph, node)) return !IsWindowPerChannel(graph, node);
  return count != nullptr && graph.exprs.AsConst(count->value) == 1 && flag != nullptr && !flag->value;
}

// Operators of ours whose result lies well as their argument does.
bool KeepsOrder(const Graph& graph, const GraphNode& node) {
  const CoreClass core = CoreClassOf(node.target);
  if (core == CoreClass::kPointwise) return true;
  for (const char* target : {"aten.clone.default", "aten.cat.default", "aten.constant_pad_nd.default"}) {
    if (node.target == target) return true;
  }
  for (const char* prefix : {"aten.max_pool2d_with_indices.", "aten.avg_pool2d.", "aten.upsample_nearest2d.",
                             "aten.upsample_bilinear2d."}) {
    if (absl::StartsWith(node.target, prefix)) return true;
  }
  return IsWindowPerChannel(graph, node);
}

bool ReadsByPoints(Graph& graph, const GraphNode& node) {
  bool found = false;
  ForEachOperand(node, [&](ValueId value) {
    if (value != kNoValue) found = found || IsChannelsLast(graph.exprs, graph.type(value));
  });
  return found;
}

}  // namespace

absl::Status PreferChannelsLast(Graph& graph) {
  const std::vector<bool> escaping = EscapingValues(graph);
  for (const GraphNode& node : graph.nodes) {
    bool wanted = false, known = false;
    for (ValueId result : node.results) {
      if (result == kNoValue || escaping[result]) continue;
      TensorType& type = graph.values[result];
      if (type.device != v1::CUDA || type.rank() != 4 || !IsDense(graph.exprs, type)) continue;
      if (!known)
        wanted = IsConvolution(graph, node) || (KeepsOrder(graph, node) && ReadsByPoints(graph, node));
      known = true;
      if (wanted) type.strides = ChannelsLastStrides(graph.exprs, type.sizes);
    }
  }
  return absl::OkStatus();
}

}  // namespace kiln
