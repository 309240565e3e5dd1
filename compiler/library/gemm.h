// A gemm: d = activation(alpha a b + beta c), in one description, whichever operator it is written as.
//
// The operators that are gemms, and how they name their operands, are one table (GemmForms): GemmOf reads a
// node by it, GemmArguments writes one, lowering calls them, and a program's calls are read by it too: by
// what describes them for measuring, and by the runtime that makes them. Passes look at the description,
// never at names and positions of arguments.
//
// Pure functions. Errors: none. A node that is no gemm, lacks an operand, or whose operands are not matrices
// (batches of them, where the operator takes batches) has no description: it stays the call that it is.
// Whether sizes agree is not asked here.
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
  // An argument: whether GELU is done to d, else ReLU is. Empty where nothing is done to it.
  absl::string_view gelu = "";
};
inline constexpr Op kOnednnGemm = Op::kMkldnnLinearPointwise;
absl::Span<const GemmForm> GemmForms();
// nullptr for an operator that is no gemm.
const GemmForm* GemmFormOf(const OperatorName& target);

struct Gemm {
  enum class Activation { kNone, kRelu, kGeluTanh };

  const GemmForm* form = nullptr;
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
// Of an operator of the table, in its schema's order, and with what else it requires.
Arguments GemmArguments(Op target, const GemmOperands& operands);
// The arguments of a gemm's node with other operands; all else that they say stays.
Arguments WithOperands(const GraphNode& node, const GemmOperands& operands);

}  // namespace kiln
