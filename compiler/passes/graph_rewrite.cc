#include "compiler/passes/graph_rewrite.h"

#include <numeric>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "compiler/passes/core_set.h"
#include "compiler/passes/pinned_layouts.h"

namespace kiln {

void ForEachOperand(GraphNode& node, absl::FunctionRef<void(ValueId&)> f) {
  for (auto& [name, argument] : node.args) {
    if (auto* tensor = std::get_if<TensorArg>(&argument)) {
      if (tensor->value != kNoValue) f(tensor->value);
    } else if (auto* list = std::get_if<TensorListArg>(&argument)) {
      for (ValueId& value : list->values) {
        if (value != kNoValue) f(value);
      }
    }
  }
}

void ForEachOperand(const GraphNode& node, absl::FunctionRef<void(ValueId)> f) {
  ForEachOperand(const_cast<GraphNode&>(node), [&](ValueId& value) { f(value); });
}

bool IsViewNode(const GraphNode& node) {
  static const auto* others = new absl::flat_hash_set<OperatorName>{Op::kDetach,
                                                                    Op::kAlias,
                                                                    Op::kT,
                                                                    Op::kTransposeInt,
                                                                    Op::kSqueeze,
                                                                    Op::kSqueezeDim,
                                                                    Op::kSplitTensor,
                                                                    Op::kSplitWithSizes,
                                                                    Op::kUnbindInt,
                                                                    Op::kChunk,
                                                                    Op::kReshapeAlias,
                                                                    Op::kUnsafeView,
                                                                    Op::kUnsafeSplitTensor,
                                                                    Op::kUnsafeSplitWithSizes,
                                                                    Op::kUnsafeChunk,
                                                                    Op::kPrivateConj,
                                                                    Op::kNegView,
                                                                    Op::kReal,
                                                                    Op::kImag,
                                                                    Op::kConj,
                                                                    Op::kViewAs,
                                                                    Op::kSwapaxes,
                                                                    Op::kNumpyT,
                                                                    Op::kFlattenUsingInts,
                                                                    Op::kUnflattenInt,
                                                                    Op::kSplitSizes,
                                                                    Op::kTensorSplitSections,
                                                                    Op::kReshape,
                                                                    Op::kNarrow,
                                                                    Op::kUnfold,
                                                                    Op::kViewAsReal,
                                                                    Op::kViewAsComplex,
                                                                    Op::kExpandAs,
                                                                    Op::kLift,
                                                                    Op::kLiftFresh,
                                                                    Op::kMovedimInt,
                                                                    Op::kMovedimIntlist};
  return CoreClassOf(node.target) == CoreClass::kView || others->contains(node.target);
}

// By torch's convention, as any operator of a caller's may be one.
bool IsMutation(const GraphNode& node) {
  const absl::string_view name = node.target;
  const size_t dot = name.rfind('.');
  return dot != absl::string_view::npos && dot > 0 && name[dot - 1] == '_';
}

bool IsAssertion(const GraphNode& node) {
  return node.target == Op::kAssertAsync || node.target == Op::kAssertAsyncMsg ||
         node.target == Op::kFunctionalAssertAsyncMsg || node.target == Op::kAssertScalar;
}

bool BindsSymbol(const GraphNode& node) {
  return node.target == Op::kSymbolOfItem || node.target == Op::kSymbolOfSize ||
         node.target == Op::kSymbolOfNumber;
}

// By parts of names: torch has many such operators, and library calls draw that kiln does not know.
bool IsRandom(const GraphNode& node) {
  static const auto* stems = new std::vector<std::string>{"rand",
                                                          "bernoulli",
                                                          "dropout",
                                                          "multinomial",
                                                          "normal",
                                                          "uniform",
                                                          "poisson",
                                                          "exponential",
                                                          "cauchy",
                                                          "geometric",
                                                          "gamma",
                                                          "dirichlet",
                                                          "scaled_dot_product",
                                                          "rrelu",
                                                          "binomial",
                                                          "log_normal",
                                                          "flash_attention",
                                                          "efficient_attention"};
  if (IsCustom(node.target) || node.target == Op::kAttention) return true;
  if (absl::StrContains(node.target, "batch_norm") || absl::StrContains(node.target, "backward"))
    return false;
  for (const std::string& stem : *stems) {
    if (absl::StrContains(node.target, stem)) return true;
  }
  return false;
}

std::vector<int32_t> Producers(const Graph& graph) {
  std::vector<int32_t> producers(graph.values.size(), -1);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (ValueId result : graph.nodes[i].results) {
      if (result != kNoValue) producers[result] = static_cast<int32_t>(i);
    }
  }
  return producers;
}

std::vector<uint32_t> UseCounts(const Graph& graph) {
  std::vector<uint32_t> uses(graph.values.size(), 0);
  for (const GraphNode& node : graph.nodes) {
    ForEachOperand(node, [&](ValueId value) { ++uses[value]; });
  }
  for (const GraphOutput& output : graph.outputs) {
    if (output.value != kNoValue) ++uses[output.value];
  }
  return uses;
}

std::vector<bool> EscapingValues(const Graph& graph) {
  return EscapingValues(graph, [](const GraphOutput&) { return true; });
}

std::vector<bool> EscapingValues(const Graph& graph, absl::FunctionRef<bool(const GraphOutput&)> counts) {
  std::vector<bool> escaping = PinnedLayouts(graph);
  for (const GraphOutput& output : graph.outputs) {
    if (output.value != kNoValue && counts(output)) escaping[output.value] = true;
  }
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    bool through = IsMutation(*node);
    if (IsViewNode(*node)) {
      for (ValueId result : node->results) through = through || (result != kNoValue && escaping[result]);
    }
    if (through) {
      ForEachOperand(*node, [&](ValueId value) { escaping[value] = true; });
    }
  }
  return escaping;
}

std::vector<ValueId> IdentityReplacement(const Graph& graph) {
  std::vector<ValueId> replacement(graph.values.size());
  std::iota(replacement.begin(), replacement.end(), 0);
  return replacement;
}

void ReplaceUses(Graph& graph, const std::vector<ValueId>& replacement) {
  auto final_of = [&](ValueId value) {
    while (replacement[value] != value) value = replacement[value];
    return value;
  };
  for (GraphNode& node : graph.nodes) {
    ForEachOperand(node, [&](ValueId& value) { value = final_of(value); });
  }
  for (GraphOutput& output : graph.outputs) {
    if (output.value != kNoValue) output.value = final_of(output.value);
  }
}

}  // namespace kiln
