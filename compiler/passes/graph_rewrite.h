// What several passes need to know about nodes and values, and how they replace values.
#pragma once

#include <vector>

#include "absl/functional/function_ref.h"
#include "compiler/graph/arguments.h"
#include "compiler/graph/graph.h"

namespace kiln {

// Calls `f` on every value a node reads, in place.
void ForEachOperand(GraphNode& node, absl::FunctionRef<void(ValueId&)> f);
void ForEachOperand(const GraphNode& node, absl::FunctionRef<void(ValueId)> f);

// Results may share memory with the first tensor argument.
bool IsViewNode(const GraphNode& node);
// Writes to an argument (the trailing copy_ of an input mutation).
bool IsMutation(const GraphNode& node);
// Says what must be true of values, and raises where it is not.
bool IsAssertion(const GraphNode& node);
// Gives an unbacked symbol its value.
bool BindsSymbol(const GraphNode& node);
// Draws random numbers, or may: two equal nodes have different results.
bool IsRandom(const GraphNode& node);

// Position of the node that defines each value; -1 for inputs.
std::vector<int32_t> Producers(const Graph& graph);
// Number of uses by nodes and outputs.
std::vector<uint32_t> UseCounts(const Graph& graph);
// Values whose identity as separate memory, and whose layout, is visible: outputs of the graph, what is
// copied into inputs at its end and what is read by storage (pinned_layouts.h), followed back through views.
std::vector<bool> EscapingValues(const Graph& graph);
// The same of those outputs alone for which `counts` holds.
std::vector<bool> EscapingValues(const Graph& graph, absl::FunctionRef<bool(const GraphOutput&)> counts);

// Replaces uses (by nodes and outputs): value v becomes replacement[v], followed transitively.
void ReplaceUses(Graph& graph, const std::vector<ValueId>& replacement);
// replacement[v] == v for all.
std::vector<ValueId> IdentityReplacement(const Graph& graph);

}  // namespace kiln
