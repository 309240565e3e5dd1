#include "compiler/passes/fuse_activation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/graph/expr_proofs.h"
#include "compiler/library/choice.h"
#include "compiler/passes/core_set.h"
#include "compiler/passes/dead_code.h"
#include "compiler/passes/graph_builder.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/passes/types.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr double kTanhFactor = 0.79788456080286535588;  // sqrt(2 / pi)
constexpr double kCubic = 0.044715;

bool Near(double a, double b) { return std::abs(a - b) <= 1e-6 * std::abs(b); }

// A number times values, or plus one value.
struct Scaled {
  double number = 1;
  std::vector<ValueId> values;
};

// Takes expressions of core operators apart. The nodes that it went through are noted, so that a caller can
// tell whether others read them.
class Reader {
 public:
  Reader(const Graph& graph, const std::vector<int32_t>& producers) : graph_(graph), producers_(producers) {}

  // What `value` is the GELU of, by tanh; kNoValue where it is none.
  ValueId GeluArgument(ValueId value) {
    const Scaled whole = Product(value);
    if (!Near(whole.number, 0.5) || whole.values.size() != 2) return kNoValue;
    for (const size_t first : {0, 1}) {
      const ValueId x = whole.values[first];
      if (IsOnePlusTanh(whole.values[1 - first], x)) return x;
    }
    return kNoValue;
  }

  const std::vector<int32_t>& nodes() const { return nodes_; }

  // The node that defines what `value` is but for its float type.
  const GraphNode* Producer(ValueId& value) {
    while (true) {
      const int32_t at = producers_[value];
      if (at < 0) return nullptr;
      const GraphNode& node = graph_.nodes[at];
      const ValueId source = TensorOf(node, "self");
      if (node.target != Op::kToCopy || source == kNoValue || !IsFloat(graph_.type(source).dtype) ||
          !IsFloat(graph_.type(value).dtype)) {
        return &node;
      }
      nodes_.push_back(at);
      value = source;
    }
  }

 private:
  void Note(const GraphNode& node) { nodes_.push_back(static_cast<int32_t>(&node - graph_.nodes.data())); }

  // Factors that are no products themselves.
  Scaled Product(ValueId value) {
    const GraphNode* node = Producer(value);
    Scaled product;
    if (node == nullptr || node->target != Op::kMulTensor || nodes_.size() >= kActivationNodesMax) {
      product.values = {value};
      return product;
    }
    Note(*node);
    for (const char* name : {"self", "other"}) {
      const ValueId factor = TensorOf(*node, name);
      if (factor == kNoValue) {
        product.number *= NumberOf(graph_, node->Find(name)).value_or(std::nan(""));
        continue;
      }
      const Scaled more = Product(factor);
      product.number *= more.number;
      product.values.insert(product.values.end(), more.values.begin(), more.values.end());
    }
    return product;
  }

  // Of two terms, one of which may be a number; no values where `value` is no such sum.
  Scaled Sum(ValueId value) {
    const GraphNode* node = Producer(value);
    Scaled sum;
    if (node == nullptr || node->target != Op::kAddTensor || node->Find("alpha") != nullptr) return sum;
    Note(*node);
    sum.number = 0;
    for (const char* name : {"self", "other"}) {
      const ValueId term = TensorOf(*node, name);
      if (term == kNoValue) {
        sum.number = NumberOf(graph_, node->Find(name)).value_or(std::nan(""));
      } else {
        sum.values.push_back(term);
      }
    }
    return sum;
  }

  bool IsOnePlusTanh(ValueId value, ValueId x) {
    const GraphNode* node = Producer(value);
    if (node == nullptr || node->target != Op::kOnePlusTanh) {
      const Scaled sum = Sum(value);
      if (sum.values.size() != 1 || sum.number != 1) return false;
      ValueId tanh = sum.values[0];
      node = Producer(tanh);
      if (node == nullptr || node->target != Op::kTanh) return false;
    }
    Note(*node);
    const Scaled inner = Product(TensorOf(*node, "self"));
    if (!Near(inner.number, kTanhFactor)) return false;
    if (inner.values.size() == 1) return IsWithCube(inner.values[0], x);
    if (inner.values.size() != 2) return false;
    return (inner.values[0] == x && IsOnePlusSquare(inner.values[1], x)) ||
           (inner.values[1] == x && IsOnePlusSquare(inner.values[0], x));
  }

  // x + 0.044715 x^3
  bool IsWithCube(ValueId value, ValueId x) {
    const Scaled sum = Sum(value);
    if (sum.values.size() != 2) return false;
    for (const size_t first : {0, 1}) {
      ValueId term = sum.values[first];
      Producer(term);
      if (term == x && IsPower(sum.values[1 - first], x, 3)) return true;
    }
    return false;
  }

  // 1 + 0.044715 x^2
  bool IsOnePlusSquare(ValueId value, ValueId x) {
    const Scaled sum = Sum(value);
    return sum.values.size() == 1 && sum.number == 1 && IsPower(sum.values[0], x, 2);
  }

  bool IsPower(ValueId value, ValueId x, size_t exponent) {
    const Scaled product = Product(value);
    return Near(product.number, kCubic) && product.values == std::vector<ValueId>(exponent, x);
  }

  const Graph& graph_;
  const std::vector<int32_t>& producers_;
  std::vector<int32_t> nodes_;
};

class ActivationFuser {
 public:
  ActivationFuser(Graph& graph, const Machine& machine)
      : graph_(graph),
        machine_(machine),
        producers_(Producers(graph)),
        uses_(UseCounts(graph)),
        readers_(graph.values.size()),
        replacement_(IdentityReplacement(graph)) {
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      ForEachOperand(std::as_const(graph.nodes[n]),
                     [&](ValueId value) { readers_[value].push_back(static_cast<int32_t>(n)); });
    }
  }

  absl::Status Run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) Consider(graph_.nodes[n]);
    if (fused_.empty()) return absl::OkStatus();
    std::vector<GraphNode> nodes;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const auto found = fused_.find(static_cast<int32_t>(n));
      if (found == fused_.end()) {
        nodes.push_back(std::move(graph_.nodes[n]));
      } else {
        const auto& [gemm, kind] = found->second;
        KILN_RETURN_IF_ERROR(Activate(graph_.nodes[n], gemm, kind, nodes));
      }
    }
    graph_.nodes = std::move(nodes);
    for (size_t v = replacement_.size(); v < graph_.values.size(); ++v) {
      replacement_.push_back(static_cast<ValueId>(v));
    }
    ReplaceUses(graph_, replacement_);
    return RemoveDeadCode(graph_);
  }

 private:
  using Kind = Gemm::Activation;

  void Consider(const GraphNode& node) {
    if (node.results.size() != 1) return;
    const bool relu = node.target == Op::kRelu;
    const bool rounds = node.target == Op::kToCopy;  // GELU of F16 and BF16 ends with one
    if (!relu && !rounds && node.target != Op::kMulTensor) return;
    const ValueId result = node.results[0];
    Reader reader(graph_, producers_);
    const ValueId x = relu ? TensorOf(node, "self") : reader.GeluArgument(result);
    if (x == kNoValue || !IsNeededInMemory(result)) return;
    std::vector<int32_t> within = reader.nodes();
    if (relu) within.push_back(producers_[result]);
    if (!AreReadWithin(within, result, x)) return;
    Fuse(x, result, relu ? Kind::kRelu : Kind::kGeluTanh);
  }

  // Whether the nodes that make `result` of `x` are all that reads `x` and what lies between.
  bool AreReadWithin(const std::vector<int32_t>& nodes, ValueId result, ValueId x) const {
    const auto all_within = [&](ValueId value) {
      return uses_[value] == readers_[value].size() &&  // no output
             std::all_of(readers_[value].begin(), readers_[value].end(), [&](int32_t reader) {
               return std::find(nodes.begin(), nodes.end(), reader) != nodes.end();
             });
    };
    return all_within(x) && std::all_of(nodes.begin(), nodes.end(), [&](int32_t node) {
             const ValueId value = graph_.nodes[node].results[0];
             return value == result || all_within(value);
           });
  }

  // By something else than kernels of our own that could compute it as they read it.
  bool IsNeededInMemory(ValueId value) const {
    if (uses_[value] > readers_[value].size()) return true;  // an output
    return std::any_of(readers_[value].begin(), readers_[value].end(), [&](int32_t reader) {
      const GraphNode& node = graph_.nodes[reader];
      const CoreClass core_class = CoreClassOf(node.target);
      if (core_class == CoreClass::kView) return IsNeededInMemory(node.results[0]);
      return core_class != CoreClass::kPointwise && core_class != CoreClass::kReduction;
    });
  }

  void Fuse(ValueId x, ValueId result, Kind kind) {
    ValueId matrix = x;
    if (producers_[x] >= 0 && graph_.nodes[producers_[x]].target == Op::kView) {
      matrix = TensorOf(graph_.nodes[producers_[x]], "self");
    }
    if (matrix == kNoValue || producers_[matrix] < 0 || (matrix != x && uses_[matrix] != 1)) return;
    const std::optional<Gemm> gemm = GemmOf(graph_, graph_.nodes[producers_[matrix]]);
    if (!gemm || !Activates(graph_, *gemm, kind, machine_)) return;
    const TensorType &from = graph_.type(x), &to = graph_.type(result);
    if (from.dtype != to.dtype || !SameLayout(graph_.exprs, from, to)) return;
    if (gemm->c == kNoValue && !HasARowInMemory(gemm->b)) return;
    fused_[producers_[matrix]] = {*gemm, kind};
    replacement_[result] = x;
  }

  // Of which a row costs nothing: memory of others, seen through views.
  bool HasARowInMemory(ValueId matrix) {
    const TensorType& type = graph_.type(matrix);
    if (type.rank() != 2 || !ProvablyLess(graph_.exprs, graph_.exprs.Const(0), type.sizes[0])) return false;
    while (producers_[matrix] >= 0) {
      const GraphNode& node = graph_.nodes[producers_[matrix]];
      const CoreClass core_class = CoreClassOf(node.target);
      if (core_class == CoreClass::kNone) return true;
      if (core_class != CoreClass::kView || TensorOf(node, "self") == kNoValue) return false;
      matrix = TensorOf(node, "self");
    }
    return true;
  }

  // Appends the gemm of `node` with its activation to `nodes`, in the place of `node`.
  absl::Status Activate(const GraphNode& node, const Gemm& gemm, Kind kind, std::vector<GraphNode>& nodes) {
    GraphNode made = node;
    if (gemm.c == kNoValue) {
      // The library wants something to add, of which beta = 0 takes nothing.
      GraphBuilder b(graph_, &nodes, node.origin);
      b.device = graph_.type(gemm.b).device;
      const Value row = Select(b.Use(gemm.b), 0, b.Int(0));
      KILN_RETURN_IF_ERROR(b.status());
      made.args = GemmArguments({.a = gemm.a, .b = gemm.b, .c = row.id()});
      made.args.emplace_back("beta", IntArg{b.Int(0)});
    }
    SetActivation(made, kind);
    nodes.push_back(std::move(made));
    return absl::OkStatus();
  }

  Graph& graph_;
  const Machine& machine_;
  std::vector<int32_t> producers_;
  std::vector<uint32_t> uses_;
  std::vector<std::vector<int32_t>> readers_;  // nodes, by value; once for each time that they read it
  std::vector<ValueId> replacement_;
  std::map<int32_t, std::pair<Gemm, Kind>> fused_;  // by the gemm's node
};

}  // namespace

absl::Status FuseActivation(Graph& graph, const Machine& machine) {
  return ActivationFuser(graph, machine).Run();
}

}  // namespace kiln
