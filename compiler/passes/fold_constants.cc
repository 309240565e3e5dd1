#include "compiler/passes/fold_constants.h"

#include <cmath>
#include <optional>

#include "compiler/passes/core_set.h"
#include "compiler/passes/dead_code.h"
#include "compiler/passes/graph_rewrite.h"

namespace kiln {
namespace {

// The operators that move or repeat elements of a constant tensor, so that the value stays.
bool KeepsValue(const GraphNode& node) {
  if (node.target == Op::kClone) return true;
  return CoreClassOf(node.target) == CoreClass::kView && node.target != Op::kViewDtype;
}

const GraphNode* FullOf(const Graph& graph, const std::vector<int32_t>& producers, const GraphNode& node) {
  const ValueId self = TensorOf(node, "self");
  if (self == kNoValue || producers[self] < 0) return nullptr;
  const GraphNode& producer = graph.nodes[producers[self]];
  return producer.target == Op::kFull ? &producer : nullptr;
}

// The fill value after a cast; nullopt where the conversion is not exact to write down.
std::optional<Argument> CastFill(const Graph& graph, const Argument& fill, v1::DType from, v1::DType to) {
  if (from == to) return fill;
  double value = 0;
  if (const auto* number = std::get_if<FloatArg>(&fill)) {
    value = number->value;
  } else if (const auto* flag = std::get_if<BoolArg>(&fill)) {
    value = flag->value;
  } else if (const auto* integer = std::get_if<IntArg>(&fill)) {
    const auto constant = graph.exprs.AsConst(integer->value);
    if (!constant || std::abs(static_cast<double>(*constant)) > 16777216.0) return std::nullopt;
    value = static_cast<double>(*constant);
  } else {
    return std::nullopt;
  }
  if (from == v1::BOOL && value != 0 && value != 1) return std::nullopt;
  if (from == v1::F32) value = static_cast<float>(value);
  const bool small_integer =
      value == std::trunc(value) && std::abs(value) <= 256;  // exact in every dtype but signs and bools
  if (!small_integer || value < 0) {
    const bool widens = IsFloat(to) && (to == v1::F64 || to == v1::F32) && from == v1::F32;
    return widens ? std::optional<Argument>(FloatArg{value}) : std::nullopt;
  }
  if (to == v1::BOOL) return BoolArg{value != 0};
  if (IsFloat(to)) return FloatArg{value};
  if (value > 127) return std::nullopt;
  if (std::holds_alternative<IntArg>(fill)) return fill;
  return std::nullopt;
}

}  // namespace

absl::Status FoldConstants(Graph& graph) {
  const std::vector<int32_t> producers = Producers(graph);
  const std::vector<bool> escaping = EscapingValues(graph);
  for (GraphNode& node : graph.nodes) {
    const bool cast = node.target == Op::kToCopy;
    if ((!cast && !KeepsValue(node)) || node.results.size() != 1 || node.results[0] == kNoValue) continue;
    if (escaping[node.results[0]]) continue;  // keeps the memory that outputs may share
    const GraphNode* full = FullOf(graph, producers, node);
    if (full == nullptr || full->Find("fill_value") == nullptr) continue;
    const TensorType& type = graph.type(node.results[0]);
    const auto fill =
        CastFill(graph, *full->Find("fill_value"), graph.type(full->results[0]).dtype, type.dtype);
    if (!fill || type.device != graph.type(full->results[0]).device) continue;
    node.target = Op::kFull;
    node.args = {{"size", IntListArg{type.sizes}}, {"fill_value", *fill}, {"dtype", DTypeArg{type.dtype}}};
  }
  return RemoveDeadCode(graph);
}

}  // namespace kiln
