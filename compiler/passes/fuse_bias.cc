#include "compiler/passes/fuse_bias.h"

#include <optional>
#include <vector>

#include "compiler/library/gemm.h"
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
  // The node that makes the value for one use.
  GraphNode* OnlyFor(ValueId value) const {
    if (value == kNoValue || producers_[value] < 0 || uses_[value] != 1) return nullptr;
    return &graph_.nodes[producers_[value]];
  }

  // Adds the bias in the gemm that `term` is, if it is one, and puts `term` in place of the sum.
  bool Fuse(ValueId term, ValueId bias, ValueId sum) {
    GraphNode* node = OnlyFor(term);
    if (node != nullptr && node->target == Op::kView) node = OnlyFor(TensorOf(*node, "self"));
    if (node == nullptr) return false;
    const std::optional<Gemm> gemm = GemmOf(graph_, *node);
    if (!gemm || !gemm->is_plain() || gemm->c != kNoValue) return false;
    if (!IsBias(bias, *gemm) || !IsSumOfRows(term, bias, sum, *gemm)) return false;
    node->args = GemmArguments({.a = gemm->a, .b = gemm->b, .c = bias});
    replacement_[sum] = term;
    return true;
  }

  // One element a column, in memory before the gemm.
  bool IsBias(ValueId bias, const Gemm& gemm) const {
    const TensorType& row = graph_.type(bias);
    if (row.rank() != 1 || row.sizes[0] != graph_.type(gemm.d).sizes[1]) return false;
    const int32_t source = producers_[bias];
    return source < producers_[gemm.d] &&
           (source < 0 || CoreClassOf(graph_.nodes[source].target) != CoreClass::kPointwise);
  }

  // One type throughout, and `term` has whole rows of the gemm.
  bool IsSumOfRows(ValueId term, ValueId bias, ValueId sum, const Gemm& gemm) const {
    const TensorType &type = graph_.type(sum), &viewed = graph_.type(term);
    if (!IsFloat(type.dtype)) return false;
    for (ValueId value : {term, bias, gemm.a, gemm.b}) {
      if (graph_.type(value).dtype != type.dtype || graph_.type(value).device != type.device) return false;
    }
    return viewed.rank() > 0 && viewed.sizes.back() == graph_.type(gemm.d).sizes[1] &&
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
