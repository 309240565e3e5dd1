// Arguments of a node, by the names that torch's schema gives them. Pure functions; what is not there, or of
// another kind, has no value.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "compiler/graph/graph.h"

namespace kiln {

// The tensor argument of that name; kNoValue where it is missing, None or no tensor.
ValueId TensorOf(const GraphNode& node, absl::string_view name);

// The number that an argument is; no value for a tensor, a symbolic integer, or none.
std::optional<double> NumberOf(const Graph& graph, const Argument* argument);

// The string argument of that name, which lives as long as the node does; empty where there is none.
absl::string_view StringOf(const GraphNode& node, absl::string_view name);

// Whether the boolean argument of that name is there and true.
bool FlagOf(const GraphNode& node, absl::string_view name);

}  // namespace kiln
