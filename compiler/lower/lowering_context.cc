#include "compiler/lower/lowering_context.h"

#include "absl/strings/str_cat.h"

namespace kiln {
namespace {

// The loop graph before the first node.
LoopGraph StartOf(const Graph& graph) {
  LoopGraph out;
  out.exprs = graph.exprs;
  out.symbols = graph.symbols;
  out.inputs = graph.inputs;
  out.given = graph.guards;
  return out;
}

}  // namespace

LoweringContext::LoweringContext(const Graph& graph, const ValueFacts& facts, const LowerOptions& options)
    : graph_(graph),
      facts_(facts),
      options_(options),
      out_(StartOf(graph)),
      checks_(out_),
      loops_(graph, out_, checks_, options.round_values),
      memory_(out_, checks_, loops_),
      storage_(out_, checks_, memory_),
      seed_(out_),
      values_(graph.values.size()),
      own_memory_(graph.values.size(), false) {}

const TensorType& LoweringContext::ResultType(const GraphNode& node, size_t result) {
  static const TensorType* none = new TensorType;
  if (result >= node.results.size()) {
    checks_.Invalid(absl::StrCat("result ", result, " is missing"));
    return *none;
  }
  return graph_.type(node.results[result]);
}

void LoweringContext::SetResult(const GraphNode& node, LoweredTensor tensor, size_t result) {
  if (result >= node.results.size()) return;
  const TensorType& type = graph_.type(node.results[result]);
  if (type.dtype == v1::DTYPE_UNSPECIFIED) return;
  if (tensor.rank() != type.rank() || tensor.dtype != type.dtype) {
    checks_.Invalid(absl::StrCat("the result is declared ", DTypeName(type.dtype), " of rank ", type.rank(),
                                 " but is ", DTypeName(tensor.dtype), " of rank ", tensor.rank()));
    return;
  }
  values_[node.results[result]] = std::move(tensor);
}

}  // namespace kiln
