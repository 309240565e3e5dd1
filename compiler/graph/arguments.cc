#include "compiler/graph/arguments.h"

#include <variant>

namespace kiln {

ValueId TensorOf(const GraphNode& node, absl::string_view name) {
  const Argument* argument = node.Find(name);
  const auto* tensor = argument == nullptr ? nullptr : std::get_if<TensorArg>(argument);
  return tensor == nullptr ? kNoValue : tensor->value;
}

std::optional<double> NumberOf(const Graph& graph, const Argument* argument) {
  if (argument == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<FloatArg>(argument)) return number->value;
  if (const auto* integer = std::get_if<IntArg>(argument)) {
    if (auto value = graph.exprs.AsConst(integer->value)) return static_cast<double>(*value);
  }
  return std::nullopt;
}

absl::string_view StringOf(const GraphNode& node, absl::string_view name) {
  const Argument* argument = node.Find(name);
  const auto* text = argument == nullptr ? nullptr : std::get_if<StringArg>(argument);
  return text == nullptr ? absl::string_view() : absl::string_view(text->value);
}

bool FlagOf(const GraphNode& node, absl::string_view name) {
  const Argument* argument = node.Find(name);
  const auto* flag = argument == nullptr ? nullptr : std::get_if<BoolArg>(argument);
  return flag != nullptr && flag->value;
}

}  // namespace kiln
