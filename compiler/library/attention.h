// Attention, softmax(scale query keyᵀ + bias) value, or the gradients of it. In a graph either is a node of
// its own, whichever of ATen's operators it was written as: passes/library_nodes makes the nodes once.
//
//   kiln.attention(query, key, value, bias?, …, kernel) -> what the kernel's operator gives
//   kiln.attention_backward(…) -> gradients
//
// ATen has an operator for each of its kernels, which differ in what else they give and take: `kernel` names
// the operator, and its other arguments (scale, dropout_p, is_causal, …) are the node's, by their names. The
// operators are one table (AttentionForms): AttentionOf reads a node, AttentionNodeOf makes one of a call,
// AttentionCallOf, for lowering, a call of one.
//
// Pure functions. Errors: none. What lacks an operand or is of complex numbers is no such node: it stays the
// call that it is.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "compiler/graph/graph.h"

namespace kiln {

struct AttentionForm {
  Op target;
  absl::string_view bias;  // name of the argument; empty where the operator takes none
  bool gradients = false;
};
absl::Span<const AttentionForm> AttentionForms();
// nullptr for an operator that is no attention.
const AttentionForm* AttentionFormOf(const OperatorName& target);

struct Attention {
  const AttentionForm* form = nullptr;  // the call that computes it
  ValueId query = kNoValue, key = kNoValue, value = kNoValue;
  ValueId bias = kNoValue;            // added to the scores; kNoValue: nothing is
  bool default_scale = true;          // one over the root of the query's depth
  std::optional<double> scale;        // where it is not the default; no value: not known
  std::optional<double> dropout = 0;  // a probability; no value: not known
  bool causal = false;
  bool keeps_sums = false;  // asks for the logarithms of the sums, which gradients read
};

std::optional<Attention> AttentionOf(const Graph& graph, const GraphNode& node);

// All operands have four dimensions (images, heads, rows, depth) and this dtype, and agree in the first two.
bool IsOfHeads(const Graph& graph, const Attention& attention, v1::DType dtype);
// Nothing but the result is asked for, and nothing is random or masked but by the bias: what gemms and a
// softmax compute as well.
bool IsPlain(const Attention& attention);

// ---- nodes and calls

// A node of ATen's as kiln's, with the same results.
std::optional<GraphNode> AttentionNodeOf(const Graph& graph, const GraphNode& node);
// The call that computes it. Of nodes with a description.
GraphNode AttentionCallOf(const Attention& attention, const GraphNode& node);

}  // namespace kiln
