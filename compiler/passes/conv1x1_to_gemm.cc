#include "compiler/passes/conv1x1_to_gemm.h"

#include <utility>
#include <variant>
#include <vector>

#include "compiler/graph/channels_last.h"
#include "compiler/passes/graph_builder.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/support/status_macros.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

// The numbers are all `wanted`.
bool AreAll(const Graph& graph, const GraphNode& node, absl::string_view name, int64_t wanted) {
  const Argument* argument = node.Find(name);
  const auto* numbers = argument == nullptr ? nullptr : std::get_if<IntListArg>(argument);
  if (numbers == nullptr) return false;
  for (ExprId number : numbers->values) {
    if (graph.exprs.AsConst(number) != wanted) return false;
  }
  return true;
}

cost::Conv1x1 SizesOf(const Graph& graph, const TensorType& weight, const TensorType& result) {
  const ExprPool& exprs = graph.exprs;
  return {.from = exprs.AsConst(weight.sizes[1]),
          .to = exprs.AsConst(weight.sizes[0]),
          .images = exprs.AsConst(result.sizes[0]),
          .rows = exprs.AsConst(result.sizes[2]),
          .columns = exprs.AsConst(result.sizes[3])};
}

}  // namespace

bool IsConv1x1(const Graph& graph, const GraphNode& node) {
  if (node.target != Op::kConvolution || node.results.size() != 1) return false;
  const TensorType& result = graph.type(node.results[0]);
  const ValueId input = TensorOf(node, "input"), weight = TensorOf(node, "weight");
  if (result.device != v1::CPU || result.dtype != v1::F32 || result.rank() != 4 || input == kNoValue ||
      weight == kNoValue) {
    return false;
  }
  const TensorType &image = graph.type(input), &window = graph.type(weight);
  if (image.dtype != v1::F32 || image.rank() != 4 || window.dtype != v1::F32 || window.rank() != 4)
    return false;
  if (graph.exprs.AsConst(window.sizes[2]) != 1 || graph.exprs.AsConst(window.sizes[3]) != 1 ||
      window.sizes[1] != image.sizes[1] || window.sizes[0] != result.sizes[1]) {
    return false;
  }
  for (size_t dim : {0, 2, 3}) {
    if (image.sizes[dim] != result.sizes[dim]) return false;
  }
  const ValueId bias = TensorOf(node, "bias");
  if (bias != kNoValue && (graph.type(bias).dtype != v1::F32 || graph.type(bias).rank() != 1 ||
                           graph.type(bias).sizes[0] != window.sizes[0])) {
    return false;
  }
  const Argument* transposed = node.Find("transposed");
  const auto* flag = transposed == nullptr ? nullptr : std::get_if<BoolArg>(transposed);
  return (flag == nullptr || !flag->value) && AreAll(graph, node, "stride", 1) &&
         AreAll(graph, node, "padding", 0);
}

namespace {

// The result of the convolution, `type`, as a view of a product's.
Value Product(GraphBuilder& b, const GraphNode& node, const TensorType& type) {
  const Value image = b.Use(TensorOf(node, "input")), weight = b.Use(TensorOf(node, "weight"));
  const ExprId from = weight.size(1), to = weight.size(0);
  const ExprId points = b.exprs().Product({type.sizes[0], type.sizes[2], type.sizes[3]});
  const Value rows = View(Permute(image, {0, 2, 3, 1}), {points, from});
  const Value weights = View(weight, {to, from});
  const ValueId bias = TensorOf(node, "bias");
  const Value columns = Transpose(weights, 0, 1);
  const Value product =
      bias == kNoValue ? MatrixProduct(rows, columns) : MatrixProduct(rows, columns, b.Use(bias));
  return Permute(View(product, {type.sizes[0], type.sizes[2], type.sizes[3], to}), {0, 3, 1, 2});
}

}  // namespace

absl::Status Conv1x1ToGemm(Graph& graph, bool by_onednn, const Machine& machine) {
  const auto becomes_product = [&](const GraphNode& node) {
    if (!IsConv1x1(graph, node)) return false;
    const TensorType &weight = graph.type(TensorOf(node, "weight")), &result = graph.type(node.results[0]);
    return IsChannelsLast(graph.exprs, result) &&
           cost::PaysConv1x1AsGemm(machine, SizesOf(graph, weight, result), by_onednn);
  };
  std::vector<GraphNode> nodes;
  std::vector<std::pair<ValueId, ValueId>> replaced;
  for (GraphNode& node : graph.nodes) {
    if (!becomes_product(node)) {
      nodes.push_back(std::move(node));
      continue;
    }
    const TensorType type = graph.type(node.results[0]);
    GraphBuilder b(graph, &nodes, node.origin);
    const Value product = Product(b, node, type);
    KILN_RETURN_IF_ERROR(b.status());
    replaced.emplace_back(node.results[0], product.id());
  }
  graph.nodes = std::move(nodes);
  std::vector<ValueId> replacement = IdentityReplacement(graph);
  for (const auto& [before, after] : replaced) replacement[before] = after;
  ReplaceUses(graph, replacement);
  return absl::OkStatus();
}

}  // namespace kiln
