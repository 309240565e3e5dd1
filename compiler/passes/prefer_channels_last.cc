#include "compiler/passes/prefer_channels_last.h"

#include <iterator>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "compiler/graph/channels_last.h"
#include "compiler/library/choice.h"
#include "compiler/passes/core_set.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/passes/types.h"
#include "compiler/target/device.h"

namespace kiln {
namespace {

// By node: what it is as a convolution. Layouts are not in it, so that it holds while they change.
using Convolutions = std::vector<std::optional<Convolution>>;
Convolutions ConvolutionsOf(const Graph& graph) {
  Convolutions convolutions;
  convolutions.reserve(graph.nodes.size());
  for (const GraphNode& node : graph.nodes) convolutions.push_back(ConvolutionOf(graph, node));
  return convolutions;
}

// A step of training on a CPU is channels-last where all its convolutions, of which there are some, can be.
bool TrainsChannelsLastOnCpu(const Graph& graph, const Convolutions& convolutions) {
  bool found = false;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!IsConvolution(graph.nodes[n].target)) continue;
    if (!convolutions[n] || !CanTrainChannelsLastOnCpu(graph, *convolutions[n])) return false;
    found = true;
  }
  return found;
}

bool ConvolvesChannelsLast(const Graph& graph, const Convolution& convolution, const Machine& machine) {
  return !convolution.gradients && WantsChannelsLast(graph, convolution, machine);
}

// Channels-last, or a part of such images, which has gaps.
bool HasChannelsLastOrder(Graph& graph, const TensorType& type) {
  if (IsChannelsLast(graph.exprs, type)) return true;
  if (type.rank() != 4 || type.strides.size() != 4 || graph.exprs.AsConst(type.sizes[1]) == 1) return false;
  std::vector<int64_t> strides;
  for (size_t dim : {1, 3, 2, 0}) {
    const auto stride = graph.exprs.AsConst(type.strides[dim]);
    if (!stride || (!strides.empty() && *stride <= strides.back())) return false;
    strides.push_back(*stride);
  }
  return strides[0] == 1;
}

bool ReadsChannelsLast(Graph& graph, const GraphNode& node) {
  bool found = false;
  ForEachOperand(node, [&](ValueId value) {
    if (value != kNoValue) found = found || HasChannelsLastOrder(graph, graph.type(value));
  });
  return found;
}

// Where weights never are, gradients are so where the image is; else where anything is.
bool IsGradientChannelsLast(Graph& graph, const GraphNode& node, const Convolution& convolution) {
  if (node.results.size() != 3 || !CanComputeGradientsChannelsLast(graph, convolution)) return false;
  if (WeightsHaveImageLayout(graph, convolution)) return ReadsChannelsLast(graph, node);
  return HasChannelsLastOrder(graph, graph.type(convolution.input));
}

// Operators of ours whose result may well have their argument's layout.
bool KeepsOrder(const Graph& graph, const GraphNode& node, const std::optional<Convolution>& convolution,
                const Machine& machine) {
  const CoreClass core = CoreClassOf(node.target);
  if (core == CoreClass::kPointwise) return true;
  for (const Op target : {Op::kClone, Op::kCat, Op::kConstantPadNd, Op::kMaxPool2dWithIndices, Op::kAvgPool2d,
                          Op::kUpsampleNearest2d, Op::kUpsampleNearest2dVec, Op::kUpsampleBilinear2d,
                          Op::kUpsampleBilinear2dVec}) {
    if (node.target == target) return true;
  }
  return convolution && Choose(graph, *convolution, machine) == Implementation::kKernel;
}

// By value: copies that a convolution's gradient on a CPU reads. They were made for their layout
// (decompose_convolution).
std::vector<bool> CopiesForGradients(const Graph& graph) {
  std::vector<bool> read(graph.values.size(), false), copies = read;
  for (const GraphNode& node : graph.nodes) {
    if (node.target != Op::kConvolutionBackward) continue;
    ForEachOperand(node, [&](ValueId value) {
      if (value != kNoValue) read[value] = graph.type(value).device == v1::CPU;
    });
  }
  for (const GraphNode& node : graph.nodes) {
    if (node.target == Op::kClone) copies[node.results[0]] = read[node.results[0]];
  }
  return copies;
}

// Values whose layout others know: the caller's own results, what is written into inputs, and what either is
// a view of. A forward graph chooses the layout of what it saves for its backward: its program says which,
// and the backward is compiled for that. On a GPU only where all sizes are known: others were not tried.
std::vector<bool> KnownLayouts(const Graph& graph, bool channels_last_on_cpu) {
  const std::vector<int32_t> producers = Producers(graph);
  return EscapingValues(graph, [&](const GraphOutput& output) {
    const TensorType& type = graph.type(output.value);
    const int32_t producer = producers[output.value];
    const bool is_static =
        absl::c_all_of(type.sizes, [&](ExprId size) { return graph.exprs.AsConst(size).has_value(); });
    const bool may_choose = IsGpu(type.device) ? is_static : channels_last_on_cpu;
    return graph.kind != v1::FORWARD || output.fact.user_visible() || !may_choose || producer < 0 ||
           IsViewNode(graph.nodes[producer]);
  });
}

// A slice has the order of what it is a slice of.
void FollowSlice(Graph& graph, const GraphNode& node) {
  const ValueId from = TensorOf(node, "self");
  if (node.target != Op::kSliceTensor || node.results.size() != 1 || from == kNoValue) return;
  const TensorType& base = graph.type(from);
  TensorType& type = graph.values[node.results[0]];
  const Argument *dim = node.Find("dim"), *step = node.Find("step");
  const auto number = [&](const Argument* argument, int64_t otherwise) -> std::optional<int64_t> {
    if (argument == nullptr) return otherwise;
    const auto* found = std::get_if<IntArg>(argument);
    return found == nullptr ? std::nullopt : graph.exprs.AsConst(found->value);
  };
  const auto along = number(dim, 0), by = number(step, 1);
  if (!HasChannelsLastOrder(graph, base) || type.rank() != 4 || type.strides.size() != 4 || !along || !by)
    return;
  if (*along < -4 || *along > 3) return;
  const size_t cut = static_cast<size_t>(*along < 0 ? *along + 4 : *along);
  for (size_t d = 0; d < 4; ++d) {
    type.strides[d] = d == cut ? graph.exprs.Mul(base.strides[d], graph.exprs.Const(*by)) : base.strides[d];
  }
}

class ChannelsLastPass {
 public:
  ChannelsLastPass(Graph& graph, const Machine& machine)
      : graph_(graph),
        machine_(machine),
        convolutions_(ConvolutionsOf(graph)),
        channels_last_on_cpu_(graph.kind == v1::INFERENCE || TrainsChannelsLastOnCpu(graph, convolutions_)),
        known_(KnownLayouts(graph, channels_last_on_cpu_)) {
    const std::vector<bool> copies = CopiesForGradients(graph);
    for (size_t v = 0; v < copies.size(); ++v) known_[v] = known_[v] || copies[v];
  }

  bool Run() {
    std::vector<GraphNode> nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (size_t n = 0; n < nodes.size(); ++n) {
      GraphNode& node = nodes[n];
      const std::optional<Convolution>& convolution = convolutions_[n];
      FollowSlice(graph_, node);
      std::vector<GraphNode> after;
      if (convolution && IsGradientChannelsLast(graph_, node, *convolution) &&
          MayConvolveChannelsLast(convolution->input)) {
        after = MakeGradientsChannelsLast(node, *convolution);
      } else {
        MakeResultsChannelsLast(node, convolution);
      }
      graph_.nodes.push_back(std::move(node));
      absl::c_move(after, std::back_inserter(graph_.nodes));
    }
    return changed_;
  }

 private:
  // On a GPU each convolution for itself; training on a CPU all or none.
  bool MayConvolveChannelsLast(ValueId image) const {
    return channels_last_on_cpu_ || IsGpu(graph_.type(image).device);
  }

  bool MayChoose(ValueId value) {
    if (value == kNoValue || known_[value]) return false;
    const TensorType& type = graph_.type(value);
    return type.rank() == 4 && IsDense(graph_.exprs, type);
  }

  void MakeChannelsLast(ValueId value) {
    TensorType& type = graph_.values[value];
    changed_ = changed_ || !IsChannelsLast(graph_.exprs, type);
    type.strides = ChannelsLastStrides(graph_.exprs, type.sizes);
  }

  void MakeResultsChannelsLast(const GraphNode& node, const std::optional<Convolution>& convolution) {
    std::optional<bool> wanted;
    for (ValueId result : node.results) {
      if (!MayChoose(result)) continue;
      if (!wanted) {
        wanted = (convolution && ConvolvesChannelsLast(graph_, *convolution, machine_) &&
                  MayConvolveChannelsLast(result)) ||
                 (KeepsOrder(graph_, node, convolution, machine_) && ReadsChannelsLast(graph_, node));
      }
      if (*wanted) MakeChannelsLast(result);
    }
  }

  // Gradients whose layout is known are copied into it behind the library's. Those of weights that don't
  // have the images' layout are declared row-major; the runtime copies what the library makes channels-last
  // (of 3 × 3 windows).
  std::vector<GraphNode> MakeGradientsChannelsLast(GraphNode& node, const Convolution& convolution) {
    std::vector<GraphNode> clones;
    for (size_t i = 0; i < (WeightsHaveImageLayout(graph_, convolution) ? 2u : 1u); ++i) {
      const ValueId declared = node.results[i];
      if (declared == kNoValue || graph_.type(declared).dtype == v1::DTYPE_UNSPECIFIED) continue;
      if (MayChoose(declared)) {
        MakeChannelsLast(declared);
        continue;
      }
      TensorType type = graph_.type(declared);
      if (IsChannelsLast(graph_.exprs, type)) continue;  // declared as the library makes it
      type.strides = ChannelsLastStrides(graph_.exprs, type.sizes);
      if (!IsChannelsLast(graph_.exprs, type)) continue;  // both layouts are one
      const auto made = static_cast<ValueId>(graph_.values.size());
      graph_.values.push_back(std::move(type));
      known_.push_back(false);
      node.results[i] = made;
      GraphNode clone;
      clone.target = Op::kClone;
      clone.args = {{"self", TensorArg{made}}};
      clone.results = {declared};
      clone.origin = node.origin;
      clones.push_back(std::move(clone));
      changed_ = true;
    }
    return clones;
  }

  Graph& graph_;
  const Machine& machine_;
  const Convolutions convolutions_;
  const bool channels_last_on_cpu_;
  std::vector<bool> known_;
  bool changed_ = false;
};

}  // namespace

bool PreferChannelsLast(Graph& graph, const Machine& machine) {
  return ChannelsLastPass(graph, machine).Run();
}

}  // namespace kiln
