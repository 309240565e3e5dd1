// How one composite operator becomes core ones: a `Decomposition` reads the arguments of a
// `DecomposeContext`, computes with the builder, and returns the results. The table has one row an overload;
// the rows stand in one file a subject (decompose_*.cc).
//
//   bool Silu(DecomposeContext& m) {
//     Value x = ToCompute(m.Tensor("self"));
//     return m.Return(x * Sigmoid(x));
//   }
//
// A decomposition returns false, having emitted what will be thrown away, when it does not cover an
// instance; the node then stays as it is. Errors are sticky in the builder; a wrong or missing
// argument is INVALID_ARGUMENT. Numerics are ATen's: F16 and BF16 are computed in F32 and rounded once,
// by the cast that Return inserts. Threads: none shared.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "compiler/graph/graph.h"
#include "compiler/passes/graph_builder.h"
#include "compiler/target/machine.h"

namespace kiln {

class DecomposeContext {
 public:
  DecomposeContext(GraphBuilder& builder, const GraphNode& node, const Machine& machine);

  GraphBuilder& b() { return b_; }
  ExprPool& exprs() { return b_.exprs(); }
  const GraphNode& node() const { return node_; }
  const Machine& machine() const { return machine_; }

  // ---- arguments, by schema name; a missing required one, or one of the wrong kind, is an error
  bool Has(absl::string_view name) const { return node_.Find(name) != nullptr; }
  Value Tensor(absl::string_view name);                // required
  Value OptionalTensor(absl::string_view name);        // !ok() when None
  std::vector<Value> Tensors(absl::string_view name);  // entries may be !ok() (None)
  Operand Scalar(absl::string_view name,
                 std::optional<Operand> otherwise = std::nullopt);  // a tensor or a number
  double Float(absl::string_view name, std::optional<double> otherwise = std::nullopt);
  int64_t Int(absl::string_view name, std::optional<int64_t> otherwise = std::nullopt);  // constant
  ExprId Sym(absl::string_view name, std::optional<ExprId> otherwise = std::nullopt);
  std::vector<ExprId> Syms(absl::string_view name);   // empty when missing
  std::vector<int64_t> Ints(absl::string_view name);  // constants; empty when missing
  // Dimension list of a tensor: normalized; all of them when missing or empty.
  std::vector<int64_t> Dims(absl::string_view name, const Value& of);
  int64_t Dim(absl::string_view name, const Value& of, std::optional<int64_t> otherwise = std::nullopt);
  bool Bool(absl::string_view name, bool otherwise);
  std::vector<bool> Bools(absl::string_view name);
  std::string String(absl::string_view name, absl::string_view otherwise);
  v1::DType DType(absl::string_view name, v1::DType otherwise);

  // ---- results
  size_t result_count() const { return node_.results.size(); }
  bool Wanted(size_t i) const;    // declared, with a dtype
  TensorType Type(size_t i = 0);  // declared type of a result
  // Gives result `i` the value; dtype and layout are brought to the declared ones by the driver.
  void Set(size_t i, const Value& value) { SetAs(i, value, /*view=*/false); }
  bool Return(const Value& value) { return Set(0, value), true; }
  // The same for an operator that ATen defines as a view of its argument.
  void SetView(size_t i, const Value& value) { SetAs(i, value, /*view=*/true); }
  bool ReturnView(const Value& value) { return SetView(0, value), true; }

  struct Result {
    Value value;
    bool is_view = false;
  };
  const std::vector<Result>& results() const { return results_; }

 private:
  void SetAs(size_t i, const Value& value, bool view);
  const Argument* Required(absl::string_view name);

  GraphBuilder& b_;
  const GraphNode& node_;
  const Machine& machine_;
  std::vector<Result> results_;
};

// Whether eager reads the tensor's value when the operator runs, and raises where `type` does not hold it;
// the library call does too. On a GPU that is a wait, which no recording bears: the value wraps there.
bool ConvertsAtRunTime(const Operand& value, const TensorType& type);

using Decomposition = bool (*)(DecomposeContext&);
using DecompositionTable = absl::flat_hash_map<OperatorName, Decomposition>;

struct DecompositionRow {
  // Without "aten." ("prims." and "kiln." are written); ".default" where no overload is named. By its text: a
  // composite that no other code names is not in the list of operators.
  absl::string_view target;
  Decomposition decompose;
};

// The whole table, and its parts by subject.
const DecompositionTable& Decompositions();
// Those that draw random numbers other than eager does; left out under fallback_random.
bool IsRandomDecomposition(const OperatorName& target);

absl::Span<const DecompositionRow> ActivationRows();
absl::Span<const DecompositionRow> AttentionRows();
absl::Span<const DecompositionRow> ConvolutionRows();
absl::Span<const DecompositionRow> CreationRows();
absl::Span<const DecompositionRow> IndexRows();
absl::Span<const DecompositionRow> LossRows();
absl::Span<const DecompositionRow> MatmulRows();
absl::Span<const DecompositionRow> NormalizationRows();
absl::Span<const DecompositionRow> PointwiseRows();
// Of integers, what ops.def has of one argument of floats.
absl::Span<const DecompositionRow> UnaryRows();
absl::Span<const DecompositionRow> PoolingRows();
absl::Span<const DecompositionRow> RandomRows();
absl::Span<const DecompositionRow> DropoutRows();
absl::Span<const DecompositionRow> ReductionRows();
absl::Span<const DecompositionRow> ResizeRows();
absl::Span<const DecompositionRow> ShapeRows();

}  // namespace kiln
