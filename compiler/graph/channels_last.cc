#include "compiler/graph/channels_last.h"

#include <optional>
#include <variant>

#include "absl/strings/string_view.h"

namespace kiln {
namespace {

constexpr int64_t kWindowMax = 25;  // points; cuDNN's kernels are better for wider ones (ConvNeXt's 7×7)

const TensorType* TypeOf(const Graph& graph, const GraphNode& node, absl::string_view name) {
  const Argument* argument = node.Find(name);
  const auto* tensor = argument == nullptr ? nullptr : std::get_if<TensorArg>(argument);
  return tensor == nullptr || tensor->value == kNoValue ? nullptr : &graph.type(tensor->value);
}

}  // namespace

std::vector<ExprId> ChannelsLastStrides(ExprPool& pool, const std::vector<ExprId>& sizes) {
  const ExprId channels = sizes[1], row = pool.Mul(sizes[3], channels);
  return {pool.Mul(sizes[2], row), pool.Const(1), row, channels};
}

bool IsChannelsLast(ExprPool& pool, const TensorType& type) {
  if (type.rank() != 4 || type.strides.size() != 4) return false;
  const ExprId one = pool.Const(1);
  if (type.sizes[1] == one || (type.sizes[2] == one && type.sizes[3] == one)) return false;
  const std::vector<ExprId> wanted = ChannelsLastStrides(pool, type.sizes);
  for (size_t dim = 0; dim < 4; ++dim) {
    if (type.sizes[dim] != one && type.strides[dim] != wanted[dim]) return false;
  }
  return true;
}

bool IsDepthwise(const Graph& graph, const GraphNode& node) {
  if (node.target != Op::kConvolution && node.target != Op::kConvolutionBackward) return false;
  const TensorType *input = TypeOf(graph, node, "input"), *weight = TypeOf(graph, node, "weight");
  if (input == nullptr || weight == nullptr || input->rank() != 4 || weight->rank() != 4) return false;
  const auto constant = [&](ExprId id) { return graph.exprs.AsConst(id).value_or(0); };
  const auto argument = [&](absl::string_view name) -> int64_t {
    const Argument* found = node.Find(name);
    if (found == nullptr) return 0;
    if (const auto* flag = std::get_if<BoolArg>(found)) return flag->value ? 1 : 0;
    const auto* number = std::get_if<IntArg>(found);
    return number == nullptr ? -1 : constant(number->value);
  };
  const int64_t channels = constant(input->sizes[1]), outputs = constant(weight->sizes[0]);
  return argument("transposed") == 0 && channels > 1 && argument("groups") == channels &&
         constant(weight->sizes[1]) == 1 && outputs > 0 && outputs % channels == 0;
}

bool IsWindowPerChannel(const Graph& graph, const GraphNode& node) {
  if (node.target != Op::kConvolution || !IsDepthwise(graph, node)) return false;
  const TensorType *input = TypeOf(graph, node, "input"), *weight = TypeOf(graph, node, "weight");
  if (!IsFloat(input->dtype) || input->dtype != weight->dtype) return false;
  const auto rows = graph.exprs.AsConst(weight->sizes[2]), columns = graph.exprs.AsConst(weight->sizes[3]);
  return rows && columns && *rows > 0 && *columns > 0 && *rows <= kWindowMax &&
         *columns <= kWindowMax / *rows;
}

}  // namespace kiln
