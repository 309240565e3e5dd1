#include "compiler/passes/algebra.h"

#include "compiler/library/gemm.h"
#include "compiler/passes/dead_code.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/passes/types.h"

namespace kiln {
namespace {

// The tensor operand when the other one is the operator's neutral element; kNoValue otherwise.
// x + 0 is not among them: for x = -0 it is +0.
ValueId NeutralOperand(const Graph& graph, const GraphNode& node) {
  const ValueId self = TensorOf(node, "self"), other = TensorOf(node, "other");
  const auto self_number = NumberOf(graph, node.Find("self")),
             other_number = NumberOf(graph, node.Find("other"));
  if (node.target == Op::kMulTensor) {
    if (other_number == 1) return self;
    if (self_number == 1) return other;
  }
  if (node.target == Op::kDivTensor && other_number == 1) return self;
  if (node.target == Op::kSubTensor && other_number == 0) return self;
  return kNoValue;
}

class Simplifier {
 public:
  explicit Simplifier(Graph& graph)
      : graph_(graph),
        producers_(Producers(graph)),
        uses_(UseCounts(graph)),
        escaping_(EscapingValues(graph)),
        replacement_(IdentityReplacement(graph)) {}

  void Run() {
    for (GraphNode& node : graph_.nodes) {
      ForEachOperand(node, [&](ValueId& value) { value = replacement_[value]; });
      if (node.results.size() != 1 || node.results[0] == kNoValue) continue;
      DropNeutral(node);
      if (node.target == Op::kPermute) MergePermute(node);
      if (node.target == Op::kView) MergeView(node);
      if (node.target == Op::kExpand) MergeExpand(node);
      if (node.target == Op::kToCopy) MergeCast(node);
      if (node.target == Op::kAddTensor && !SumInto(node, "self", "other")) SumInto(node, "other", "self");
    }
    ReplaceUses(graph_, replacement_);
  }

 private:
  // The node that defines `value`, if it has this target.
  const GraphNode* Producer(ValueId value, const OperatorName& target) const {
    if (value == kNoValue || producers_[value] < 0) return nullptr;
    const GraphNode& node = graph_.nodes[producers_[value]];
    return node.target == target ? &node : nullptr;
  }

  void DropNeutral(const GraphNode& node) {
    const ValueId kept = NeutralOperand(graph_, node), result = node.results[0];
    if (kept == kNoValue || escaping_[result]) return;
    const TensorType &from = graph_.type(kept), &to = graph_.type(result);
    if (from.dtype == to.dtype && SameLayout(graph_.exprs, from, to)) replacement_[result] = kept;
  }

  void SetSelf(GraphNode& node, ValueId value) {
    for (auto& [name, argument] : node.args) {
      if (name == "self") argument = TensorArg{value};
    }
  }

  void MergePermute(GraphNode& node) {
    const GraphNode* inner = Producer(TensorOf(node, "self"), node.target);
    if (inner == nullptr) return;
    const auto* outer_dims = std::get_if<IntListArg>(node.Find("dims"));
    const auto* inner_dims = std::get_if<IntListArg>(inner->Find("dims"));
    if (outer_dims == nullptr || inner_dims == nullptr) return;
    IntListArg merged;
    bool identity = true;
    for (ExprId dim : outer_dims->values) {
      const auto k = graph_.exprs.AsConst(dim);
      if (!k || *k < 0 || *k >= static_cast<int64_t>(inner_dims->values.size())) return;
      const ExprId source = inner_dims->values[*k];
      identity = identity && graph_.exprs.AsConst(source) == static_cast<int64_t>(merged.values.size());
      merged.values.push_back(source);
    }
    const ValueId origin = TensorOf(*inner, "self");
    const TensorType &from = graph_.type(origin), &to = graph_.type(node.results[0]);
    if (identity && SameLayout(graph_.exprs, from, to)) {
      replacement_[node.results[0]] = origin;
      return;
    }
    SetSelf(node, origin);
    for (auto& [name, argument] : node.args) {
      if (name == "dims") argument = merged;
    }
  }

  void MergeView(GraphNode& node) {
    const GraphNode* inner = Producer(TensorOf(node, "self"), node.target);
    if (inner == nullptr) return;
    const ValueId origin = TensorOf(*inner, "self");
    if (origin == kNoValue) return;
    const TensorType &from = graph_.type(origin), &to = graph_.type(node.results[0]);
    if (SameLayout(graph_.exprs, from, to)) {
      replacement_[node.results[0]] = origin;
    } else {
      SetSelf(node, origin);
    }
  }

  void MergeExpand(GraphNode& node) {
    const GraphNode* inner = Producer(TensorOf(node, "self"), node.target);
    if (inner != nullptr && TensorOf(*inner, "self") != kNoValue) SetSelf(node, TensorOf(*inner, "self"));
  }

  // A cast of a cast that loses nothing on the way: F16 or BF16 to F32 and back.
  void MergeCast(GraphNode& node) {
    const GraphNode* inner = Producer(TensorOf(node, "self"), node.target);
    if (inner == nullptr || escaping_[node.results[0]]) return;
    const ValueId origin = TensorOf(*inner, "self");
    if (origin == kNoValue) return;
    const TensorType &from = graph_.type(origin), &middle = graph_.type(inner->results[0]),
                     &to = graph_.type(node.results[0]);
    const bool widened = IsHalf(from.dtype) && (middle.dtype == v1::F32 || middle.dtype == v1::F64);
    if (widened && from.dtype == to.dtype && SameLayout(graph_.exprs, from, to))
      replacement_[node.results[0]] = origin;
  }

  // The node that adds values to elements of a tensor and defines `value`, if one does.
  const GraphNode* Accumulation(ValueId value) const {
    if (const GraphNode* add = Producer(value, Op::kIndexAdd); add != nullptr) return add;
    const GraphNode* put = Producer(value, Op::kUnsafeIndexPut);
    if (put == nullptr) put = Producer(value, Op::kIndexPut);
    return put != nullptr && FlagOf(*put, "accumulate") ? put : nullptr;
  }

  // Whether `value` is a gemm, or a view or a cast of one.
  bool IsGemm(ValueId value) const {
    while (value != kNoValue && producers_[value] >= 0) {
      const GraphNode& node = graph_.nodes[producers_[value]];
      if (const auto gemm = GemmOf(graph_, node)) return gemm->is_plain() && gemm->c == kNoValue;
      const bool seen_through =
          node.target == Op::kPermute || node.target == Op::kView || node.target == Op::kToCopy;
      if (!seen_through) return false;
      value = TensorOf(node, "self");
    }
    return false;
  }

  // A gemm plus values summed into zeros, as the gradients of an embedding's table and of the gemm that
  // shares it: the values are summed into the gemm. -0 without a value stays -0, where + 0 made it 0. Not
  // into other tensors: beside a large element each small value rounds away, where their sum does not. A
  // gemm is a sum of as many terms itself.
  bool SumInto(GraphNode& node, absl::string_view tensor, absl::string_view sums) {
    const ValueId into = TensorOf(node, tensor), sum = TensorOf(node, sums);
    if (!IsGemm(into) || sum == kNoValue || uses_[sum] != 1) return false;
    const GraphNode* put = Accumulation(sum);
    if (put == nullptr || (node.Find("alpha") != nullptr && NumberOf(graph_, node.Find("alpha")) != 1))
      return false;
    const GraphNode* zeros = Producer(TensorOf(*put, "self"), Op::kFull);
    if (zeros == nullptr || NumberOf(graph_, zeros->Find("fill_value")) != 0) return false;
    const TensorType &from = graph_.type(into), &to = graph_.type(node.results[0]);
    if (from.dtype != to.dtype || graph_.type(sum).dtype != to.dtype || !SameLayout(graph_.exprs, from, to) ||
        !SameLayout(graph_.exprs, graph_.type(sum), to)) {
      return false;
    }
    node.target = put->target;
    node.args = put->args;
    SetSelf(node, into);
    return true;
  }

  Graph& graph_;
  std::vector<int32_t> producers_;
  std::vector<uint32_t> uses_;
  std::vector<bool> escaping_;
  std::vector<ValueId> replacement_;
};

}  // namespace

absl::Status SimplifyAlgebra(Graph& graph) {
  Simplifier(graph).Run();
  return RemoveDeadCode(graph);
}

}  // namespace kiln
