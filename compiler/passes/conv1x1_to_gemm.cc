#include "compiler/passes/conv1x1_to_gemm.h"

#include <optional>
#include <utility>
#include <vector>

#include "compiler/graph/channels_last.h"
#include "compiler/library/choice.h"
#include "compiler/passes/graph_builder.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

// The result of the convolution, `type`, as a view of a gemm's.
Value AsGemm(GraphBuilder& b, const Convolution& convolution, const TensorType& type) {
  const Value image = b.Use(convolution.input), weight = b.Use(convolution.weight);
  const ExprId from = weight.size(1), to = weight.size(0);
  const ExprId points = b.exprs().Product({type.sizes[0], type.sizes[2], type.sizes[3]});
  const Value rows = View(Permute(image, {0, 2, 3, 1}), {points, from});
  const Value weights = View(weight, {to, from});
  const Value columns = Transpose(weights, 0, 1);
  const Value gemm =
      convolution.bias == kNoValue ? Matmul(rows, columns) : Matmul(rows, columns, b.Use(convolution.bias));
  return Permute(View(gemm, {type.sizes[0], type.sizes[2], type.sizes[3], to}), {0, 3, 1, 2});
}

}  // namespace

absl::Status Conv1x1ToGemm(Graph& graph, const Machine& machine) {
  const auto becomes_gemm = [&](const Convolution& convolution) {
    return Choose(graph, convolution, machine) == Implementation::kGemm &&
           IsChannelsLast(graph.exprs, graph.type(convolution.result));
  };
  std::vector<GraphNode> nodes;
  std::vector<std::pair<ValueId, ValueId>> replaced;
  for (GraphNode& node : graph.nodes) {
    const std::optional<Convolution> convolution = ConvolutionOf(graph, node);
    if (!convolution || !becomes_gemm(*convolution)) {
      nodes.push_back(std::move(node));
      continue;
    }
    const TensorType type = graph.type(convolution->result);
    GraphBuilder b(graph, &nodes, node.origin);
    const Value gemm = AsGemm(b, *convolution, type);
    KILN_RETURN_IF_ERROR(b.status());
    replaced.emplace_back(convolution->result, gemm.id());
  }
  graph.nodes = std::move(nodes);
  std::vector<ValueId> replacement = IdentityReplacement(graph);
  for (const auto& [before, after] : replaced) replacement[before] = after;
  ReplaceUses(graph, replacement);
  return absl::OkStatus();
}

}  // namespace kiln
