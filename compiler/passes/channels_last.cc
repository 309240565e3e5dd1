#include "compiler/passes/channels_last.h"

#include <optional>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "compiler/graph/channels_last.h"
#include "compiler/passes/core_set.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/passes/types.h"

namespace kiln {
namespace {

// On a CPU oneDNN lays the weights of a convolution by points anew at each call, fast up to this size.
constexpr int64_t kFastWeightBytes = 1 << 20;
// Bytes of images that are laid anew, for a convolution of row-major ones, in the time of one byte of larger
// weights.
constexpr int64_t kImageBytesPerWeightByte = 13;

bool IsUngrouped(const Graph& graph, const GraphNode& node) {
  const Argument *groups = node.Find("groups"), *transposed = node.Find("transposed");
  const auto* count = groups == nullptr ? nullptr : std::get_if<IntArg>(groups);
  const auto* flag = transposed == nullptr ? nullptr : std::get_if<BoolArg>(transposed);
  return count != nullptr && graph.exprs.AsConst(count->value) == 1 && flag != nullptr && !flag->value;
}

bool IsConvolutionByPointsOnGpu(const Graph& graph, const GraphNode& node) {
  const v1::DType dtype = graph.type(node.results[0]).dtype;
  if (dtype != v1::F16 && dtype != v1::BF16 && dtype != v1::F32) return false;  // cuDNN has no F64 by points
  if (IsDepthwise(graph, node)) return !IsWindowPerChannel(graph, node);
  return IsUngrouped(graph, node);
}

std::optional<int64_t> Bytes(const Graph& graph, const TensorType& type) {
  int64_t bytes = 4;
  for (ExprId size : type.sizes) {
    const auto value = graph.exprs.AsConst(size);
    if (!value || *value < 0 || __builtin_mul_overflow(bytes, *value, &bytes)) return std::nullopt;
  }
  return bytes;
}

bool IsConvolutionByPointsOnCpu(const Graph& graph, const GraphNode& node) {
  const TensorType& result = graph.type(node.results[0]);
  // What a backward graph reads is saved as it was traced.
  if (graph.kind != v1::INFERENCE || result.dtype != v1::F32) return false;
  const ValueId input = TensorOf(node, "input"), weight = TensorOf(node, "weight");
  if (input == kNoValue || weight == kNoValue) return false;
  if (IsDepthwise(graph, node)) return true;
  const auto weights = Bytes(graph, graph.type(weight));
  if (!IsUngrouped(graph, node) || !weights) return false;
  if (*weights < kFastWeightBytes) return true;
  const auto from = Bytes(graph, graph.type(input)), to = Bytes(graph, result);
  return from && to && *weights < *from / kImageBytesPerWeightByte + *to / kImageBytesPerWeightByte;
}

bool IsConvolutionByPoints(const Graph& graph, const GraphNode& node) {
  if (node.target != "aten.convolution.default" || node.results.size() != 1) return false;
  return graph.type(node.results[0]).device == v1::CUDA ? IsConvolutionByPointsOnGpu(graph, node)
                                                        : IsConvolutionByPointsOnCpu(graph, node);
}

// Operators of ours whose result lies well as their argument does.
bool KeepsOrder(const Graph& graph, const GraphNode& node) {
  const CoreClass core = CoreClassOf(node.target);
  if (core == CoreClass::kPointwise) return true;
  for (const char* target : {"aten.clone.default", "aten.cat.default", "aten.constant_pad_nd.default"}) {
    if (node.target == target) return true;
  }
  for (const char* prefix : {"aten.max_pool2d_with_indices.", "aten.avg_pool2d.", "aten.upsample_nearest2d.",
                             "aten.upsample_bilinear2d."}) {
    if (absl::StartsWith(node.target, prefix)) return true;
  }
  return graph.type(node.results[0]).device == v1::CUDA && IsWindowPerChannel(graph, node);
}

// By value: copies that a convolution's gradient on a CPU reads. They were made for their layout
// (decompose_convolution).
std::vector<bool> LaidForGradients(const Graph& graph) {
  std::vector<bool> read(graph.values.size(), false), laid = read;
  for (const GraphNode& node : graph.nodes) {
    if (node.target != "aten.convolution_backward.default") continue;
    ForEachOperand(node, [&](ValueId value) {
      if (value != kNoValue) read[value] = graph.type(value).device == v1::CPU;
    });
  }
  for (const GraphNode& node : graph.nodes) {
    if (node.target == "aten.clone.default") laid[node.results[0]] = read[node.results[0]];
  }
  return laid;
}

bool ReadsByPoints(Graph& graph, const GraphNode& node) {
  bool found = false;
  ForEachOperand(node, [&](ValueId value) {
    if (value != kNoValue) found = found || IsChannelsLast(graph.exprs, graph.type(value));
  });
  return found;
}

}  // namespace

absl::Status PreferChannelsLast(Graph& graph) {
  const std::vector<bool> escaping = EscapingValues(graph), laid = LaidForGradients(graph);
  for (const GraphNode& node : graph.nodes) {
    bool wanted = false, known = false;
    for (ValueId result : node.results) {
      if (result == kNoValue || escaping[result] || laid[result]) continue;
      TensorType& type = graph.values[result];
      if (type.rank() != 4 || !IsDense(graph.exprs, type)) continue;
      if (!known) {
        wanted =
            IsConvolutionByPoints(graph, node) || (KeepsOrder(graph, node) && ReadsByPoints(graph, node));
      }
      known = true;
      if (wanted) type.strides = ChannelsLastStrides(graph.exprs, type.sizes);
    }
  }
  return absl::OkStatus();
}

}  // namespace kiln
