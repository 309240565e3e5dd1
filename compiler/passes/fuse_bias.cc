#include "compiler/passes/fuse_bias.h"

#include <vector>

#include "compiler/passes/core_set.h"
#include "compiler/passes/dead_code.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/passes/types.h"

namespace kiln {
namespace {

class BiasFuser {
 public:
  explicit BiasFuser(Graph& graph)
      : graph_(graph),
        producers_(Producers(graph)),
        uses_(UseCounts(graph)),
        replacement_(IdentityReplacement(graph)) {}

  void Run() {
    for (const GraphNode& node : graph_.nodes) {
      if (node.target != Op::kAddTensor || node.Find("alpha") != nullptr) continue;
      const ValueId self = TensorOf(node, "self"), other = TensorOf(node, "other");
      if (self == kNoValue || other == kNoValue) continue;
      if (!Fuse(self, other, node.results[0])) Fuse(other, self, node.results[0]);
    }
    ReplaceUses(graph_, replacement_);
  }

 private:
  // The node that makes the value for one use, if it has this target.
  GraphNode* OnlyFor(ValueId value, const OperatorName& target) const {
    if (value == kNoValue || producers_[value] < 0 || uses_[value] != 1) return nullptr;
    GraphNode& node = graph_.nodes[producers_[value]];
    return node.target == target ? &node : nullptr;
  }

  // Adds the bias in the product that `term` is, if it is one, and puts `term` in place of the sum.
  bool Fuse(ValueId term, ValueId bias, ValueId sum) {
    const GraphNode* view = OnlyFor(term, Op::kView);
    GraphNode* product = OnlyFor(view == nullptr ? term : TensorOf(*view, "self"), Op::kMm);
    if (product == nullptr || !IsBias(bias, *product) || !IsSumOfRows(term, bias, sum, *product))
      return false;
    product->args = {{"self", TensorArg{bias}},
                     {"mat1", TensorArg{TensorOf(*product, "self")}},
                     {"mat2", TensorArg{TensorOf(*product, "mat2")}}};
    product->target = Op::kAddmm;
    replacement_[sum] = term;
    return true;
  }

  // One element a column, in memory before the product.
  bool IsBias(ValueId bias, const GraphNode& product) const {
    const TensorType &row = graph_.type(bias), &matrix = graph_.type(product.results[0]);
    if (row.rank() != 1 || matrix.rank() != 2 || row.sizes[0] != matrix.sizes[1]) return false;
    const int32_t source = producers_[bias];
    return source < producers_[product.results[0]] &&
           (source < 0 || CoreClassOf(graph_.nodes[source].target) != CoreClass::kPointwise);
  }

  // One type throughout, and `term` has whole rows of the product.
  bool IsSumOfRows(ValueId term, ValueId bias, ValueId sum, const GraphNode& product) const {
    const TensorType &type = graph_.type(sum), &viewed = graph_.type(term);
    if (!IsFloat(type.dtype)) return false;
    for (ValueId value : {term, bias, TensorOf(product, "self"), TensorOf(product, "mat2")}) {
      if (graph_.type(value).dtype != type.dtype || graph_.type(value).device != type.device) return false;
    }
    return viewed.rank() > 0 && viewed.sizes.back() == graph_.type(product.results[0]).sizes[1] &&
           SameLayout(graph_.exprs, viewed, type);
  }

  Graph& graph_;
  std::vector<int32_t> producers_;
  std::vector<uint32_t> uses_;
  std::vector<ValueId> replacement_;
};

}  // namespace

absl::Status FuseBias(Graph& graph) {
  BiasFuser(graph).Run();
  return RemoveDeadCode(graph);
}

}  // namespace kiln
