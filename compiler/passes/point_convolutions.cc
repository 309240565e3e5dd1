#include "compiler/passes/point_convolutions.h"

#include <utility>
#include <variant>
#include <vector>

#include "compiler/graph/channels_last.h"
#include "compiler/passes/graph_builder.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

// Above, the library's convolution is faster than its product by what laying the weights anew takes: the two
// are even at 38 million (MobileNetV2's 16 to 96 channels of 112 × 112), at 103 million the product takes
// 1.1 × as long (ResNet-50's 64 to 256 channels of 56 × 56).
constexpr int64_t kOperationsMax = 64'000'000;
constexpr int64_t kWeightsMax = 1 << 18;
// Of weights, for images of unknown sizes: many weights meet images of hundreds of points and more, as the
// 1024 to 256 channels of ResNet-50 and of SegFormer's head do, whose product takes 1.2 × as long.
constexpr int64_t kWeightsOfUnknownImagesMax = 3 << 16;
// oneDNN's own product is never slower up to this size (an EPYC with AVX-512, two threads: 0.32 to 0.98 of
// the convolution's time), above it by up to a fifth, unless laying the weights anew takes long.
constexpr int64_t kOnednnOperationsMax = 256'000'000;
constexpr int64_t kOnednnManyWeights = 1 << 19;

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

bool IsSmall(const Graph& graph, const TensorType& weight, const TensorType& result) {
  int64_t operations = 2;
  for (ExprId size : weight.sizes) {
    const auto value = graph.exprs.AsConst(size);
    if (!value || __builtin_mul_overflow(operations, *value, &operations)) return false;
  }
  if (operations > 2 * kWeightsMax) return false;
  const bool many_weights = operations > 2 * kWeightsOfUnknownImagesMax;
  for (size_t dim : {0, 2, 3}) {
    const auto value = graph.exprs.AsConst(result.sizes[dim]);
    if (!value && many_weights) return false;
    if (value && __builtin_mul_overflow(operations, *value, &operations)) return false;
  }
  return operations <= kOperationsMax;
}

bool IsSmallForOnednn(const Graph& graph, const TensorType& weight, const TensorType& result) {
  const auto from = graph.exprs.AsConst(weight.sizes[1]), to = graph.exprs.AsConst(weight.sizes[0]);
  int64_t operations = 0;
  if (!from || !to || __builtin_mul_overflow(*from, *to, &operations)) return false;
  if (operations >= kOnednnManyWeights) return true;
  operations *= 2;
  for (size_t dim : {0, 2, 3}) {
    const auto value = graph.exprs.AsConst(result.sizes[dim]);
    if (!value) return true;
    if (__builtin_mul_overflow(operations, *value, &operations)) return false;
  }
  return operations <= kOnednnOperationsMax;
}

}  // namespace

bool IsPointConvolution(const Graph& graph, const GraphNode& node) {
  if (node.target != "aten.convolution.default" || node.results.size() != 1) return false;
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
  const TensorType made = b.Dense(type.dtype, {points, to});
  Value product;
  if (bias == kNoValue) {
    product = MatrixProduct(rows, Transpose(weights, 0, 1));
  } else {
    const Value columns = Transpose(weights, 0, 1);
    product = b.Node(
        "aten.addmm.default",
        {{"self", TensorArg{bias}}, {"mat1", TensorArg{rows.id()}}, {"mat2", TensorArg{columns.id()}}}, made);
  }
  return Permute(View(product, {type.sizes[0], type.sizes[2], type.sizes[3], to}), {0, 3, 1, 2});
}

}  // namespace

absl::Status MultiplyPointConvolutions(Graph& graph, bool by_onednn) {
  const auto becomes_product = [&](const GraphNode& node) {
    if (!IsPointConvolution(graph, node)) return false;
    const TensorType &weight = graph.type(TensorOf(node, "weight")), &result = graph.type(node.results[0]);
    return IsChannelsLast(graph.exprs, result) &&
           (by_onednn ? IsSmallForOnednn(graph, weight, result) : IsSmall(graph, weight, result));
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
