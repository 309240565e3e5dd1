#include "compiler/passes/remove_no_ops.h"

#include "absl/strings/match.h"
#include "compiler/passes/dead_code.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/passes/types.h"

namespace kiln {
namespace {

enum class Identity { kNo, kCopy, kAlias };

Identity IdentityOf(const GraphNode& node) {
  const OperatorName& target = node.target;
  for (const Op copy : {Op::kClone, Op::kToCopy, Op::kLiftFreshCopy, Op::kContiguous}) {
    if (target == copy) return Identity::kCopy;
  }
  for (const Op alias : {Op::kView, Op::kExpand, Op::kDetach, Op::kAlias, Op::kSqueezeDims, Op::kPermute,
                         Op::kSliceTensor, Op::kViewDtype}) {
    if (target == alias) return Identity::kAlias;
  }
  return Identity::kNo;
}

bool IsIdentityPermutation(const Graph& graph, const GraphNode& node) {
  const Argument* dims = node.Find("dims");
  const auto* list = dims == nullptr ? nullptr : std::get_if<IntListArg>(dims);
  if (list == nullptr) return false;
  for (size_t i = 0; i < list->values.size(); ++i) {
    if (graph.exprs.AsConst(list->values[i]) != static_cast<int64_t>(i)) return false;
  }
  return true;
}

}  // namespace

absl::Status RemoveNoOps(Graph& graph) {
  const std::vector<bool> escaping = EscapingValues(graph);
  std::vector<ValueId> replacement = IdentityReplacement(graph);
  for (const GraphNode& node : graph.nodes) {
    const Identity identity = IdentityOf(node);
    if (identity == Identity::kNo || node.results.size() != 1) continue;
    const ValueId self = TensorOf(node, "self"), result = node.results[0];
    if (self == kNoValue || result == kNoValue) continue;
    const TensorType& from = graph.type(self);
    const TensorType& to = graph.type(result);
    if (from.dtype != to.dtype || from.device != to.device || !SameLayout(graph.exprs, from, to)) continue;
    if (identity == Identity::kCopy && escaping[result]) continue;
    // Symmetric sizes can make a true permutation or slice look like nothing; only an identity is one.
    if (node.target == Op::kPermute && !IsIdentityPermutation(graph, node)) continue;
    if (node.target == Op::kSliceTensor) {
      const Argument* start = node.Find("start");
      const auto* first = start == nullptr ? nullptr : std::get_if<IntArg>(start);
      if (first == nullptr || graph.exprs.AsConst(first->value) != 0) continue;
    }
    replacement[result] = self;
  }
  ReplaceUses(graph, replacement);
  return RemoveDeadCode(graph);
}

}  // namespace kiln
