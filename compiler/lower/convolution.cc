#include "compiler/lower/convolution.h"

#include <vector>

#include "compiler/graph/channels_last.h"
#include "compiler/lower/window.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

// The bias of a channel is the same for all images and points.
LoopOpId PlusBias(LoweringContext& context, LoopRecorder& ops, const LoweredTensor& bias, Index index,
                  LoopOpId value) {
  return ops.Add(value, context.Load(ops, bias, {index[1]}));
}

Window WindowOf(LoweringContext& context, const GraphNode& node, const LoweredTensor& weight) {
  Window window;
  ReadPair(context, node, "stride", window.stride);
  ReadPair(context, node, "padding", window.padding);
  ReadPair(context, node, "dilation", window.dilation);
  for (int i = 0; i < 2; ++i) window.kernel[i] = context.exprs().AsConst(weight.sizes[2 + i]).value_or(0);
  return window;
}

// One channel of the result reads one of the image, through a window unrolled here.
absl::Status LowerWindowPerChannel(LoweringContext& context, const GraphNode& node) {
  context.RealiseValue(context.TensorValue(node, "input"));
  const LoweredTensor input = context.Tensor(node, "input"), weight = context.Tensor(node, "weight");
  const bool biased = context.IsDefined(context.TensorValue(node, "bias"));
  if (biased && context.Tensor(node, "bias").rank() != 1)
    return absl::InvalidArgumentError("a bias of another rank than 1");
  const LoweredTensor bias = biased ? context.Tensor(node, "bias") : LoweredTensor();
  const TensorType& type = context.ResultType(node);
  if (type.rank() != 4)
    return absl::InvalidArgumentError("a convolution of images whose result has another rank");
  const Window window = WindowOf(context, node, weight);
  const int64_t group = *context.exprs().AsConst(weight.sizes[0]) / *context.exprs().AsConst(input.sizes[1]);
  if (!context.status().ok()) return context.status();
  const v1::DType compute = ComputeType(type.dtype);
  context.SetResult(node, context.Pointwise(type, [&](LoopRecorder& ops, Index index) {
    const ExprId zero = context.Const(0);
    std::vector<ExprId> at(index.begin(), index.end());
    at[1] = context.exprs().FloorDiv(index[1], context.Const(group));
    LoopOpId sum = ops.Constant(0, compute);
    for (int64_t row = 0; row < window.kernel[0]; ++row) {
      for (int64_t column = 0; column < window.kernel[1]; ++column) {
        const ExprId inner[2] = {context.Const(row), context.Const(column)};
        const WindowPoint point = PointOf(context, ops, input, window, at, inner);
        ops.OpenMask(point.inside);
        const LoopOpId x = context.Load(ops, input, point.from);
        ops.CloseMask();
        const LoopOpId inside = ops.Where(point.inside, x, ops.Constant(0, compute));
        sum = ops.Add(sum, ops.Mul(inside, context.Load(ops, weight, {index[1], zero, inner[0], inner[1]})));
      }
    }
    return biased ? PlusBias(context, ops, bias, index, sum) : sum;
  }));
  return context.status();
}

// Windows that neither overlap nor leave a gap cut the image into patches.
bool CutsPatches(LoweringContext& context, const GraphNode& node, const TensorType& type) {
  const LoweredTensor &input = context.Tensor(node, "input"), &weight = context.Tensor(node, "weight");
  if (type.rank() != 4 || input.rank() != 4 || weight.rank() != 4 || type.dtype == v1::F64) return false;
  if (context.Bool(node, "transposed", false) || context.Int(node, "groups", 1) != 1) return false;
  const Window window = WindowOf(context, node, weight);
  for (int i = 0; i < 2; ++i) {
    if (window.kernel[i] < 1 || window.stride[i] != window.kernel[i] || window.padding[i] != 0 ||
        window.dilation[i] != 1) {
      return false;
    }
  }
  return window.kernel[0] * window.kernel[1] > 1 && context.status().ok();
}

// The runtime convolves images channels-last itself, so their memory can be planned. Others may be ATen's,
// which makes a result of its own.
bool IntoResults(const TensorType& type, bool channels_last) {
  return channels_last && (type.dtype == v1::F32 || type.dtype == v1::F16 || type.dtype == v1::BF16);
}

// The convolution as one of one point over an image of the patches, whose channels are those of all of a
// patch's points: a matrix product for the runtime.
absl::Status CallOnPatches(LoweringContext& context, GraphNode node, const TensorType& type,
                           bool channels_last) {
  ExprPool& exprs = context.exprs();
  const LoweredTensor input = context.Tensor(node, "input"), weight = context.Tensor(node, "weight");
  const Window window = WindowOf(context, node, weight);
  context.CheckSize(input.sizes[1], weight.sizes[1]);
  const ExprId points = context.Const(window.kernel[0] * window.kernel[1]),
               width = context.Const(window.kernel[1]);
  const ExprId channels = exprs.Mul(input.sizes[1], points), one = context.Const(1);
  const auto dense = [&](std::vector<ExprId> sizes) {
    TensorType made{type.dtype, type.device, std::move(sizes), {}, 0};
    made.strides =
        channels_last ? ChannelsLastStrides(exprs, made.sizes) : ContiguousStrides(exprs, made.sizes);
    return made;
  };
  const TensorType image = dense({type.sizes[0], channels, type.sizes[2], type.sizes[3]});
  LoweredTensor patches = context.MapIndex(input, image, [&](Index index) {
    const ExprId point = exprs.Mod(index[1], points);
    return std::vector<ExprId>{
        index[0], exprs.FloorDiv(index[1], points),
        exprs.Add(exprs.Mul(index[2], context.Const(window.stride[0])), exprs.FloorDiv(point, width)),
        exprs.Add(exprs.Mul(index[3], context.Const(window.stride[1])), exprs.Mod(point, width))};
  });
  TensorType rows{type.dtype, type.device, {weight.sizes[0], channels, one, one}, {}, 0};
  rows.strides = ContiguousStrides(exprs, rows.sizes);
  LoweredTensor weights = context.Reshape(context.TensorValue(node, "weight"), rows);
  for (auto& [name, argument] : node.args) {
    if (name == "stride") argument = IntListArg{{one, one}};
  }
  return context.Call(node, "convolution", IntoResults(type, channels_last),
                      {{"input", {image.strides, &patches}}, {"weight", {rows.strides, &weights}}});
}

absl::Status CallLibrary(LoweringContext& context, const GraphNode& node, const TensorType& type) {
  const bool channels_last = IsChannelsLast(context.exprs(), type);
  if (CutsPatches(context, node, type)) return CallOnPatches(context, node, type, channels_last);
  LoweringContext::CallOperands operands;
  for (const char* name : {"input", "weight"}) {
    if (channels_last)
      operands[name].strides = ChannelsLastStrides(context.exprs(), context.Tensor(node, name).sizes);
  }
  return context.Call(node, "convolution", IntoResults(type, channels_last), operands);
}

// The library gives the result the layout of the image, so the image gets the one that the result has.
absl::Status CallLibraryOnCpu(LoweringContext& context, const GraphNode& node, const TensorType& type) {
  const LoweredTensor& input = context.Tensor(node, "input");
  if (!context.status().ok()) return context.status();
  LoweringContext::CallOperands operands;
  if (type.rank() == 4 && input.rank() == 4) {
    ExprPool& exprs = context.exprs();
    const TensorType image{input.dtype, type.device, input.sizes, input.strides, 0};
    const bool row_major = context.SameLayout(type.sizes, type.strides, ContiguousStrides(exprs, type.sizes));
    if (IsChannelsLast(exprs, type)) {
      operands["input"].strides = ChannelsLastStrides(exprs, input.sizes);
    } else if (row_major && IsChannelsLast(exprs, image)) {
      operands["input"].strides = ContiguousStrides(exprs, input.sizes);
    }
  }
  return context.Call(node, "convolution", false, operands);
}

// Where the gradients are declared so; where their layouts don't tell, where what they are made of lies so.
bool GradientsByPoints(LoweringContext& context, const GraphNode& node) {
  const Graph& graph = context.graph();
  ExprPool& exprs = context.exprs();
  if (context.Bool(node, "transposed", false) || context.Int(node, "groups", 1) != 1) return false;
  for (const char* name : {"grad_output", "input", "weight"}) {
    const LoweredTensor& operand = context.Tensor(node, name);
    if (operand.rank() != 4 || (operand.device != v1::CUDA && operand.dtype != v1::F32)) return false;
  }
  const size_t told =
      context.Tensor(node, "input").device == v1::CUDA ? 2 : 1;  // weights on a CPU are row-major
  for (size_t i = 0; i < node.results.size() && i < told; ++i) {
    const ValueId result = node.results[i];
    if (result == kNoValue || graph.type(result).rank() != 4) continue;
    TensorType type = graph.type(result);
    const bool so = IsChannelsLast(exprs, type);
    type.strides = ChannelsLastStrides(exprs, type.sizes);
    if (IsChannelsLast(exprs, type)) return so;
  }
  return IsChannelsLast(exprs, graph.type(context.TensorValue(node, "grad_output"))) ||
         IsChannelsLast(exprs, graph.type(context.TensorValue(node, "input")));
}

}  // namespace

absl::Status LowerConvolution(LoweringContext& context, const GraphNode& node) {
  const TensorType type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (type.rank() < 3) return absl::InvalidArgumentError("a convolution of fewer than three dimensions");
  if (type.device != v1::CUDA) return CallLibraryOnCpu(context, node, type);
  if (IsWindowPerChannel(context.graph(), node)) return LowerWindowPerChannel(context, node);
  const ValueId bias_id = context.TensorValue(node, "bias");
  if (!context.IsDefined(bias_id)) return CallLibrary(context, node, type);
  if (context.value(bias_id).rank() != 1) return absl::InvalidArgumentError("a bias of another rank than 1");
  GraphNode plain = node;
  for (auto& [name, argument] : plain.args) {
    if (name == "bias") argument = NoneArg{};
  }
  KILN_RETURN_IF_ERROR(CallLibrary(context, plain, type));
  const LoweredTensor bias = context.value(bias_id), product = context.value(node.results[0]);
  context.SetResult(node, context.Pointwise(type, [&](LoopRecorder& ops, Index index) {
    return PlusBias(context, ops, bias, index, context.Load(ops, product, index));
  }));
  return context.status();
}

absl::Status LowerConvolutionBackward(LoweringContext& context, const GraphNode& node) {
  if (!GradientsByPoints(context, node)) return context.Call(node, "convolution", false);
  LoweringContext::CallOperands operands;
  for (const char* name : {"grad_output", "input", "weight"}) {
    const LoweredTensor& operand = context.Tensor(node, name);
    if (absl::string_view(name) == "weight" && operand.device != v1::CUDA) continue;
    operands[name].strides = ChannelsLastStrides(context.exprs(), operand.sizes);
  }
  return context.Call(node, "convolution", false, operands);
}

}  // namespace kiln
