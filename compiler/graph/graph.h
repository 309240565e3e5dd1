// The graph in memory: what `frontend/import` makes of canonical bytes and what the passes up to
// lowering transform. Value semantics; one ExprPool for all sizes.
//
// Threads: none shared. Errors: the structure is checked by graph/verify.h, after import and after
// every pass.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "compiler/graph/dtypes.h"
#include "compiler/graph/expr.h"
#include "compiler/graph/operator_name.h"
#include "kiln/v1/graph.pb.h"

namespace kiln {

using ValueId = uint32_t;
inline constexpr ValueId kNoValue = UINT32_MAX;

struct TensorType {
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;  // unspecified: an undefined result
  v1::DeviceType device = v1::CPU;
  std::vector<ExprId> sizes;
  std::vector<ExprId> strides;  // in elements; empty only for rank 0
  ExprId offset = 0;            // storage offset in elements; 0 for computed values
  size_t rank() const { return sizes.size(); }
};

// Argument kinds. Literal and symbolic integers are one kind here: an ExprId.
// clang-format off
struct NoneArg {};
struct TensorArg { ValueId value; };
struct TensorListArg { std::vector<ValueId> values; };            // kNoValue is None
struct IntArg { ExprId value; };
struct IntListArg { std::vector<ExprId> values; };
struct FloatArg { double value; };
struct FloatListArg { std::vector<double> values; };
struct BoolArg { bool value; };
struct BoolListArg { std::vector<bool> values; };
struct StringArg { std::string value; };
struct DTypeArg { v1::DType value; };
struct MemoryFormatArg { uint32_t value; };  // as v1::Argument.as_memory_format
struct LayoutArg { uint32_t value; };
struct DeviceArg { v1::DeviceType value; };
// clang-format on
using Argument =
    std::variant<NoneArg, TensorArg, TensorListArg, IntArg, IntListArg, FloatArg, FloatListArg, BoolArg,
                 BoolListArg, StringArg, DTypeArg, MemoryFormatArg, LayoutArg, DeviceArg>;

struct GraphNode {
  OperatorName target;                                 // "prims.…" never; kiln's own start with "kiln."
  std::vector<std::pair<std::string, Argument>> args;  // by schema name; defaults omitted
  std::vector<ValueId> results;
  uint32_t origin = 0;  // index of the imported node it comes from, for notes and errors

  const Argument* Find(absl::string_view name) const;  // nullptr when omitted or None
};

// Whether nothing is known of the symbol before a call, so that no guard can be over it; a call's inputs may
// bind it.
bool IsUnbacked(const v1::Symbol& symbol);
// Whether a value of the graph binds it: its value is known only behind that value's node.
bool IsBoundByValue(const v1::Symbol& symbol);
bool HasUnbacked(const ExprPool& exprs, const std::vector<v1::Symbol>& symbols, ExprId id);

// Whether the operator is none of torch's: a library that the caller has loaded registers it. What it
// computes is not known here; the client refuses those that mutate their arguments or return them.
bool IsCustom(absl::string_view target);

struct GraphInput {
  ValueId value = kNoValue;       // a tensor input
  std::optional<ExprId> sym_int;  // or an integer input
  v1::InputFact fact;
};

struct GraphOutput {
  ValueId value = kNoValue;
  ValueId memory = kNoValue;  // of the graph as traced: outputs of one share memory, others have their own
  ValueId traced = kNoValue;  // the value as traced: outputs of one are one tensor, others each their own
  std::optional<ExprId> sym_int;  // neither: None
  std::optional<ExprId> offset;   // of a value: where in its storage it has to begin
  v1::OutputFact fact;
};

struct Graph {
  v1::GraphKind kind = v1::INFERENCE;
  ExprPool exprs;
  std::vector<v1::Symbol> symbols;
  std::vector<GraphInput> inputs;
  std::vector<TensorType> values;  // by ValueId
  std::vector<GraphNode> nodes;    // in program order
  std::vector<GraphOutput> outputs;
  std::vector<ExprId> guards;      // what the request says that holds, beyond the symbols' ranges
  std::vector<ExprId> conditions;  // what passes assume beyond them
  // Random operators draw from the caller's generator, in program order, whether their results are used or
  // not.
  bool draws_in_order = false;

  ValueId NewValue(TensorType type);
  const TensorType& type(ValueId value) const { return values[value]; }
  std::string ToString() const;  // one line a node
};

// Strides of a dense row-major tensor.
std::vector<ExprId> ContiguousStrides(ExprPool& pool, const std::vector<ExprId>& sizes);

}  // namespace kiln
