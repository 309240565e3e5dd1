#include "compiler/library/convolution.h"

#include <variant>

#include "absl/strings/string_view.h"
#include "compiler/graph/arguments.h"

namespace kiln {
namespace {

using Names = ConvolutionArguments;

std::vector<ExprId> NumbersOf(const GraphNode& node, absl::string_view name) {
  const Argument* argument = node.Find(name);
  if (argument == nullptr) return {};
  if (const auto* list = std::get_if<IntListArg>(argument)) return list->values;
  if (const auto* number = std::get_if<IntArg>(argument)) return {number->value};
  return {};
}

bool ReadPair(const ExprPool& exprs, const std::vector<ExprId>& numbers, int64_t (&pair)[2]) {
  if (numbers.empty()) return true;
  if (numbers.size() > 2) return false;
  for (size_t i = 0; i < 2; ++i) {
    const auto number = exprs.AsConst(numbers[numbers.size() == 1 ? 0 : i]);
    if (!number) return false;
    pair[i] = *number;
  }
  return true;
}

}  // namespace

bool IsConvolution(const OperatorName& target) {
  return target == Op::kConvolution || target == Op::kConvolutionBackward;
}

std::optional<Convolution> ConvolutionOf(const Graph& graph, const GraphNode& node) {
  if (!IsConvolution(node.target)) return std::nullopt;
  Convolution convolution{.gradients = node.target == Op::kConvolutionBackward,
                          .input = TensorOf(node, Names::kInput),
                          .weight = TensorOf(node, Names::kWeight)};
  if (convolution.input == kNoValue || convolution.weight == kNoValue) return std::nullopt;
  if (convolution.gradients) {
    convolution.gradient = TensorOf(node, Names::kGradient);
    if (convolution.gradient == kNoValue) return std::nullopt;
  } else {
    if (node.results.size() != 1 || node.results[0] == kNoValue) return std::nullopt;
    convolution.result = node.results[0];
    convolution.bias = TensorOf(node, Names::kBias);
  }
  convolution.stride = NumbersOf(node, Names::kStride);
  convolution.padding = NumbersOf(node, Names::kPadding);
  convolution.dilation = NumbersOf(node, Names::kDilation);
  convolution.transposed = FlagOf(node, Names::kTransposed);
  const Argument* groups = node.Find(Names::kGroups);
  if (const auto* count = groups == nullptr ? nullptr : std::get_if<IntArg>(groups); count != nullptr)
    convolution.groups = graph.exprs.AsConst(count->value);
  return convolution;
}

bool IsOfImages(const Graph& graph, const Convolution& convolution) {
  return graph.type(convolution.input).rank() == 4 && graph.type(convolution.weight).rank() == 4;
}

std::optional<Window> WindowOf(const Graph& graph, const Convolution& convolution) {
  if (!IsOfImages(graph, convolution)) return std::nullopt;
  Window window;
  if (!ReadPair(graph.exprs, convolution.stride, window.stride) ||
      !ReadPair(graph.exprs, convolution.padding, window.padding) ||
      !ReadPair(graph.exprs, convolution.dilation, window.dilation)) {
    return std::nullopt;
  }
  const TensorType& weight = graph.type(convolution.weight);
  for (size_t i = 0; i < 2; ++i) window.kernel[i] = graph.exprs.AsConst(weight.sizes[2 + i]).value_or(0);
  return window;
}

bool IsConv1x1(const Graph& graph, const Convolution& convolution) {
  if (convolution.gradients || convolution.transposed) return false;
  const std::optional<Window> window = WindowOf(graph, convolution);
  const TensorType &image = graph.type(convolution.input), &weight = graph.type(convolution.weight),
                   &result = graph.type(convolution.result);
  if (!window || !IsOfPoints(image.sizes, weight.sizes, *window)) return false;
  if (result.rank() != 4 || weight.sizes[0] != result.sizes[1]) return false;
  for (const size_t dim : {0, 2, 3}) {
    if (image.sizes[dim] != result.sizes[dim]) return false;
  }
  if (convolution.bias == kNoValue) return true;
  const TensorType& bias = graph.type(convolution.bias);
  return bias.rank() == 1 && bias.sizes[0] == weight.sizes[0];
}

bool IsAllOf(const Graph& graph, const Convolution& convolution, v1::DType dtype) {
  for (const ValueId value : {convolution.input, convolution.weight, convolution.bias, convolution.result}) {
    if (value != kNoValue && graph.type(value).dtype != dtype) return false;
  }
  return true;
}

bool CudnnConvolves(v1::DType dtype) { return dtype == v1::F32 || IsHalf(dtype); }

bool IsDepthwise(const Graph& graph, const Convolution& convolution) {
  if (convolution.transposed || !IsOfImages(graph, convolution)) return false;
  const TensorType &image = graph.type(convolution.input), &weight = graph.type(convolution.weight);
  const auto constant = [&](ExprId id) { return graph.exprs.AsConst(id).value_or(0); };
  const int64_t channels = constant(image.sizes[1]), outputs = constant(weight.sizes[0]);
  return channels > 1 && convolution.groups == channels && constant(weight.sizes[1]) == 1 && outputs > 0 &&
         outputs % channels == 0;
}

bool IsWindowPerChannel(const Graph& graph, const Convolution& convolution) {
  if (convolution.gradients || !IsDepthwise(graph, convolution)) return false;
  const TensorType &image = graph.type(convolution.input), &weight = graph.type(convolution.weight);
  if (!IsFloat(image.dtype) || image.dtype != weight.dtype) return false;
  return WindowOf(graph, convolution) && graph.exprs.AsConst(weight.sizes[2]) &&
         graph.exprs.AsConst(weight.sizes[3]);
}

GraphNode WithoutBias(const GraphNode& node) {
  GraphNode plain = node;
  for (auto& [name, argument] : plain.args) {
    if (name == Names::kBias) argument = NoneArg{};
  }
  return plain;
}

GraphNode WithUnitStride(ExprPool& exprs, const GraphNode& node) {
  const ExprId one = exprs.Const(1);
  GraphNode made = node;
  for (auto& [name, argument] : made.args) {
    if (name == Names::kStride) argument = IntListArg{{one, one}};
  }
  return made;
}

std::vector<std::pair<std::string, Argument>> ArgumentsOfChannels(ExprPool& exprs, const GraphNode& node,
                                                                  ValueId gradient, ValueId input,
                                                                  ValueId weight, int64_t channels) {
  const ExprId count = exprs.Const(channels);
  std::vector<std::pair<std::string, Argument>> args = node.args;
  for (auto& [name, argument] : args) {
    if (name == Names::kGradient) argument = TensorArg{gradient};
    if (name == Names::kInput) argument = TensorArg{input};
    if (name == Names::kWeight) argument = TensorArg{weight};
    if (name == Names::kGroups) argument = IntArg{count};
    if (name == Names::kBiasSizes && std::holds_alternative<IntListArg>(argument))
      argument = IntListArg{{count}};
  }
  return args;
}

}  // namespace kiln
