// A gemm: d = activation(alpha a b + beta c). In a graph it is a node of its own, kiln.gemm, whichever
// operator it was written as: passes/library_nodes makes the nodes once, so that no other pass sees an
// operator of ATen's.
//
//   kiln.gemm(a, b, c?, beta?, alpha?, activation?: "relu" | "gelu_tanh", library?: "onednn") -> d
//
// Left out are c where nothing is added, factors of 1, an activation where there is none, the library where
// it is ATen's. All three operands are matrices, or batches of them. GemmOf reads a node: where an operand is
// rewritten, so is what it says. Outside of graphs a gemm is a call of an operator. Those, and how they name
// their operands, are one table (GemmForms), by which a call becomes a node (GemmNodeOf) and lowering makes a
// call of a node (GemmCallOf); the runtime reads a program's calls by it.
//
// Pure functions. Errors: none. What is no gemm, lacks an operand, has one that is no matrix, is of complex
// numbers or says what no form says is no such node, and stays the call that it is. Whether sizes agree is
// not asked here.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "compiler/graph/graph.h"

namespace kiln {

struct GemmForm {
  Op target;
  absl::string_view a, b, c;  // names of arguments; c is empty where nothing is added
  bool batched = false;       // all three are batches of matrices
  bool onednn = false;        // an operator of oneDNN's: b has a row for each column, c may be None
  bool into_results = true;   // fills memory that its caller gives it
  bool integers = false;      // of I8, summed in I32
  // An argument: whether GELU is done to d, else ReLU is. Empty where nothing is done to it.
  absl::string_view gelu = "";
};
inline constexpr Op kOnednnGemm = Op::kMkldnnLinearPointwise;
absl::Span<const GemmForm> GemmForms();
// nullptr for an operator that is no gemm.
const GemmForm* GemmFormOf(const OperatorName& target);

struct Gemm {
  enum class Activation { kNone, kRelu, kGeluTanh };

  const GemmForm* form = nullptr;  // the call that computes it
  ValueId a = kNoValue, b = kNoValue, d = kNoValue;
  ValueId c = kNoValue;                       // kNoValue: nothing is added
  std::optional<double> alpha = 1, beta = 1;  // no value: not known
  Activation activation = Activation::kNone;
  ExprId rows = 0, columns = 0, summed = 0;  // as the factors have them

  // As mm and addmm write it: two matrices, row by column, and nothing behind the sum.
  bool is_plain() const { return !form->batched && !form->onednn && activation == Activation::kNone; }
};

std::optional<Gemm> GemmOf(const Graph& graph, const GraphNode& node);

// ---- questions about a gemm

// Both factors have d's dtype.
bool HasOneDType(const Graph& graph, const Gemm& gemm);
// What is added is one row, for all of d's.
bool AddsRow(const Graph& graph, const Gemm& gemm);
// It is a bias: a row of d's dtype, its elements beside each other, taken once.
bool AddsBias(const Graph& graph, const Gemm& gemm);
// With an estimate for sizes that change; no value where they have none.
std::optional<double> Multiplications(const Graph& graph, const Gemm& gemm);

// ---- nodes that are gemms

using Arguments = std::vector<std::pair<std::string, Argument>>;

struct GemmOperands {
  ValueId a = kNoValue, b = kNoValue, c = kNoValue;
};
Arguments GemmArguments(const GemmOperands& operands);
// A node's arguments with other operands; all else that they say stays.
Arguments WithOperands(const GraphNode& node, const GemmOperands& operands);
// With an activation, which the node has none of; `library`: computed by oneDNN.
void SetActivation(GraphNode& node, Gemm::Activation activation);
void SetOnednn(GraphNode& node);

// ---- nodes and calls

// The node, or the call of a program as one, as kiln.gemm: the same results, the same numbers.
std::optional<GraphNode> GemmNodeOf(const Graph& graph, const GraphNode& node);
// The call that computes it, its arguments in the order of the schema. Of nodes with a description.
GraphNode GemmCallOf(const Gemm& gemm, const GraphNode& node);

}  // namespace kiln
