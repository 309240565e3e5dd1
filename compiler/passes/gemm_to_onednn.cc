#include "compiler/passes/gemm_to_onednn.h"

#include <utility>
#include <vector>

#include "compiler/graph/expr_eval.h"
#include "compiler/passes/dead_code.h"
#include "compiler/passes/graph_builder.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/support/status_macros.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

class OnednnProducts {
 public:
  OnednnProducts(Graph& graph, const Machine& machine)
      : graph_(graph), machine_(machine), producers_(Producers(graph)) {}

  absl::Status Run() {
    const std::vector<GraphNode> before = graph_.nodes;
    std::vector<GraphNode> nodes;
    for (GraphNode node : before) {
      if (!Fits(node)) {
        nodes.push_back(std::move(node));
        continue;
      }
      GraphBuilder b(graph_, &nodes, node.origin);
      const bool biased = node.target == Op::kAddmm;
      const ValueId weight = Turned(b, TensorOf(node, "mat2"), before);
      KILN_RETURN_IF_ERROR(b.status());
      const ValueId rows = TensorOf(node, biased ? "mat1" : "self");
      const ValueId bias = biased ? TensorOf(node, "self") : kNoValue;
      node.args = {{"X", TensorArg{rows}},
                   {"W", TensorArg{weight}},
                   {"B", bias == kNoValue ? Argument(NoneArg{}) : TensorArg{bias}},
                   {"attr", StringArg{"none"}},
                   {"scalars", FloatListArg{}},
                   {"algorithm", StringArg{""}}};
      node.target = kOnednnProduct;
      nodes.push_back(std::move(node));
    }
    graph_.nodes = std::move(nodes);
    return RemoveDeadCode(graph_);
  }

 private:
  bool IsOne(ExprId expr) const { return graph_.exprs.AsConst(expr) == 1; }

  bool Fits(const GraphNode& node) const {
    const bool biased = node.target == Op::kAddmm;
    if (!biased && node.target != Op::kMm) return false;
    const ValueId left_id = TensorOf(node, biased ? "mat1" : "self"), right_id = TensorOf(node, "mat2");
    if (left_id == kNoValue || right_id == kNoValue) return false;
    const TensorType &left = graph_.type(left_id), &right = graph_.type(right_id),
                     &result = graph_.type(node.results[0]);
    for (const TensorType* type : {&left, &right, &result}) {
      if (type->device != v1::CPU || type->dtype != v1::F32 || type->rank() != 2 || type->strides.size() != 2)
        return false;
    }
    const bool rows_in_order = left.strides[0] == left.sizes[1] && IsOne(left.strides[1]) &&
                               result.strides[0] == result.sizes[1] && IsOne(result.strides[1]);
    if (!rows_in_order || (!IsOne(right.strides[0]) && !IsOne(right.strides[1]))) return false;
    return (!biased || HasABias(node, result)) && IsLarge(left, right);
  }

  // One element a column, beside each other, taken once.
  bool HasABias(const GraphNode& product, const TensorType& result) const {
    const ValueId self = TensorOf(product, "self");
    if (self == kNoValue) return false;
    for (const char* factor : {"alpha", "beta"}) {
      const Argument* argument = product.Find(factor);
      if (argument != nullptr && NumberOf(graph_, argument) != 1) return false;
    }
    const TensorType& bias = graph_.type(self);
    return bias.device == v1::CPU && bias.dtype == v1::F32 && bias.rank() == 1 &&
           bias.sizes[0] == result.sizes[1] && IsOne(bias.strides[0]);
  }

  bool IsLarge(const TensorType& left, const TensorType& right) const {
    double multiplications = 1;
    for (ExprId size : {left.sizes[0], right.sizes[0], right.sizes[1]}) {
      const auto estimate = graph_.exprs.Evaluate(
          size, [this](const ExprNode& symbol) { return EstimateOfSymbol(graph_.symbols, symbol.value); });
      if (!estimate.ok()) return false;
      multiplications *= static_cast<double>(*estimate);
    }
    return cost::PaysOnednnGemm(machine_, multiplications);
  }

  // The matrix with a row for each column of `matrix`, as oneDNN wants it: most are turned in the graph.
  ValueId Turned(GraphBuilder& b, ValueId matrix, const std::vector<GraphNode>& before) const {
    const int32_t producer = producers_[matrix];
    // Of two dimensions, so it is turned.
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

absl::Status MultiplyByOnednn(Graph& graph, const Machine& machine) {
  return OnednnProducts(graph, machine).Run();
}

}  // namespace kiln
