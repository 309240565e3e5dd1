#include "compiler/passes/gemm_to_onednn.h"

#include <optional>
#include <utility>
#include <vector>

#include "compiler/library/choice.h"
#include "compiler/passes/dead_code.h"
#include "compiler/passes/graph_builder.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

class OnednnGemms {
 public:
  OnednnGemms(Graph& graph, const Machine& machine)
      : graph_(graph), machine_(machine), producers_(Producers(graph)) {}

  absl::Status Run() {
    const std::vector<GraphNode> before = graph_.nodes;
    std::vector<GraphNode> nodes;
    for (GraphNode node : before) {
      const std::optional<Gemm> gemm = GemmOf(graph_, node);
      if (!gemm || Choose(graph_, *gemm, machine_) != Implementation::kOnednn) {
        nodes.push_back(std::move(node));
        continue;
      }
      GraphBuilder b(graph_, &nodes, node.origin);
      const ValueId weight = Transposed(b, gemm->b, before);
      KILN_RETURN_IF_ERROR(b.status());
      node.args = GemmArguments({.a = gemm->a, .b = weight, .c = gemm->c});
      SetOnednn(node);
      nodes.push_back(std::move(node));
    }
    graph_.nodes = std::move(nodes);
    return RemoveDeadCode(graph_);
  }

 private:
  // `matrix` transposed, as oneDNN reads weights: the graph has most of them so, before a permute.
  ValueId Transposed(GraphBuilder& b, ValueId matrix, const std::vector<GraphNode>& before) const {
    const int32_t producer = producers_[matrix];
    // A permutation of two dimensions transposes.
    if (producer >= 0 && before[producer].target == Op::kPermute &&
        graph_.type(TensorOf(before[producer], "self")).rank() == 2) {
      return TensorOf(before[producer], "self");
    }
    return Transpose(b.Use(matrix), 0, 1).id();
  }

  Graph& graph_;
  const Machine& machine_;
  const std::vector<int32_t> producers_;
};

}  // namespace

absl::Status GemmToOnednn(Graph& graph, const Machine& machine) { return OnednnGemms(graph, machine).Run(); }

}  // namespace kiln
