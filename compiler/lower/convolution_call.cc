#include "compiler/lower/convolution_call.h"

#include <optional>
#include <vector>

#include "compiler/graph/channels_last.h"
#include "compiler/library/choice.h"
#include "compiler/lower/library_call.h"
#include "compiler/lower/strides.h"
#include "compiler/lower/view_maps.h"
#include "compiler/lower/window.h"
#include "compiler/support/status_macros.h"
#include "compiler/target/device.h"

namespace kiln {
namespace {

using Names = ConvolutionArguments;

constexpr char kReason[] = "convolution";

// The bias of a channel is the same for all images and points.
LoopOpId PlusBias(LoweringContext& context, LoopRecorder& ops, const LoweredTensor& bias, Index index,
                  LoopOpId value) {
  return ops.Add(value, context.loops().Load(ops, bias, {index[1]}));
}

// The strides of the value in channels-last layout.
std::vector<ExprId> ChannelsLastStridesOf(LoweringContext& context, ValueId value) {
  return ChannelsLastStrides(context.exprs(), context.value(value).sizes);
}

// One channel of the result reads one of the image, through a window unrolled here.
absl::Status LowerWindowPerChannel(LoweringContext& context, const GraphNode& node,
                                   const Convolution& convolution) {
  context.memory().Materialize(context.MutableValue(convolution.input));
  const LoweredTensor input = context.value(convolution.input), weight = context.value(convolution.weight);
  const bool biased = context.IsDefined(convolution.bias);
  if (biased && context.value(convolution.bias).rank() != 1)
    return absl::InvalidArgumentError("a bias of another rank than 1");
  const LoweredTensor bias = biased ? context.value(convolution.bias) : LoweredTensor();
  const TensorType& type = context.ResultType(node);
  if (type.rank() != 4)
    return absl::InvalidArgumentError("a convolution of images whose result has another rank");
  const Window window = *WindowOf(context.graph(), convolution);  // known where this is chosen
  const int64_t group = *context.exprs().AsConst(weight.sizes[0]) / *context.exprs().AsConst(input.sizes[1]);
  if (!context.status().ok()) return context.status();
  const v1::DType compute = ComputeType(type.dtype);
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    const ExprId zero = context.Const(0);
    std::vector<ExprId> at(index.begin(), index.end());
    at[1] = context.exprs().FloorDiv(index[1], context.Const(group));
    LoopOpId sum = ops.Constant(0, compute);
    for (int64_t row = 0; row < window.kernel[0]; ++row) {
      for (int64_t column = 0; column < window.kernel[1]; ++column) {
        const ExprId inner[2] = {context.Const(row), context.Const(column)};
        const WindowPoint point = PointOf(context, ops, input, window, at, inner);
        ops.OpenMask(point.inside);
        const LoopOpId x = context.loops().Load(ops, input, point.from);
        ops.CloseMask();
        const LoopOpId inside = ops.Where(point.inside, x, ops.Constant(0, compute));
        sum = ops.Add(
            sum, ops.Mul(inside, context.loops().Load(ops, weight, {index[1], zero, inner[0], inner[1]})));
      }
    }
    return biased ? PlusBias(context, ops, bias, index, sum) : sum;
  }));
  return context.status();
}

// The runtime convolves images channels-last itself, so their memory can be planned. Others may be ATen's,
// which makes a result of its own.
bool IntoResults(const TensorType& type, bool channels_last) {
  return channels_last && CudnnConvolves(type.dtype);
}

// Windows that do not overlap: im2col, then a 1×1 convolution, which is a gemm for the runtime. A pixel of
// the im2col image has the channels of all points of its patch.
absl::Status CallOnPatches(LoweringContext& context, const GraphNode& node, const Convolution& convolution,
                           const TensorType& type, bool channels_last) {
  ExprPool& exprs = context.exprs();
  const LoweredTensor input = context.value(convolution.input), weight = context.value(convolution.weight);
  const Window window = *WindowOf(context.graph(), convolution);  // known where this is chosen
  context.checks().CheckSize(input.sizes[1], weight.sizes[1]);
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
  LoweredTensor patches = MapIndex(context, input, image, [&](Index index) {
    const ExprId point = exprs.Mod(index[1], points);
    return std::vector<ExprId>{
        index[0], exprs.FloorDiv(index[1], points),
        exprs.Add(exprs.Mul(index[2], context.Const(window.stride[0])), exprs.FloorDiv(point, width)),
        exprs.Add(exprs.Mul(index[3], context.Const(window.stride[1])), exprs.Mod(point, width))};
  });
  TensorType rows{type.dtype, type.device, {weight.sizes[0], channels, one, one}, {}, 0};
  rows.strides = ContiguousStrides(exprs, rows.sizes);
  LoweredTensor weights = Reshape(context, convolution.weight, rows);
  return CallLibrary(
      context, WithUnitStride(exprs, node), kReason, IntoResults(type, channels_last),
      {{Names::kInput, {image.strides, &patches}}, {Names::kWeight, {rows.strides, &weights}}});
}

absl::Status CallConvolution(LoweringContext& context, const GraphNode& node, const Convolution& convolution,
                             const TensorType& type) {
  const bool channels_last = IsChannelsLast(context.exprs(), type);
  if (Choose(context.graph(), convolution, context.machine()) == Implementation::kPatches)
    return CallOnPatches(context, node, convolution, type, channels_last);
  CallOperands operands;
  if (channels_last) {
    operands[Names::kInput].strides = ChannelsLastStridesOf(context, convolution.input);
    operands[Names::kWeight].strides = ChannelsLastStridesOf(context, convolution.weight);
  }
  return CallLibrary(context, node, kReason, IntoResults(type, channels_last), operands);
}

// The library gives the result the layout of the image, so the image gets the one that the result has.
absl::Status CallOnCpu(LoweringContext& context, const GraphNode& node, const Convolution& convolution,
                       const TensorType& type) {
  const LoweredTensor& input = context.value(convolution.input);
  CallOperands operands;
  if (type.rank() == 4 && input.rank() == 4) {
    ExprPool& exprs = context.exprs();
    const TensorType image{input.dtype, type.device, input.sizes, input.strides, 0};
    const bool row_major = SameLayout(exprs, type.sizes, type.strides, ContiguousStrides(exprs, type.sizes));
    if (IsChannelsLast(exprs, type)) {
      operands[Names::kInput].strides = ChannelsLastStrides(exprs, input.sizes);
    } else if (row_major && IsChannelsLast(exprs, image)) {
      operands[Names::kInput].strides = ContiguousStrides(exprs, input.sizes);
    }
  }
  return CallLibrary(context, node, kReason, false, operands);
}

}  // namespace

absl::Status LowerConvolution(LoweringContext& context, const GraphNode& node) {
  const TensorType type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (type.rank() < 3) return absl::InvalidArgumentError("a convolution of fewer than three dimensions");
  const std::optional<Convolution> convolution = ConvolutionOf(context.graph(), node);
  if (!convolution || !context.IsDefined(convolution->input) || !context.IsDefined(convolution->weight))
    return absl::InvalidArgumentError("a convolution without an image or weights");
  if (!IsGpu(type.device)) return CallOnCpu(context, node, *convolution, type);
  if (Choose(context.graph(), *convolution, context.machine()) == Implementation::kKernel)
    return LowerWindowPerChannel(context, node, *convolution);
  if (!context.IsDefined(convolution->bias)) return CallConvolution(context, node, *convolution, type);
  if (context.value(convolution->bias).rank() != 1)
    return absl::InvalidArgumentError("a bias of another rank than 1");
  KILN_RETURN_IF_ERROR(CallConvolution(context, WithoutBias(node), *convolution, type));
  const LoweredTensor bias = context.value(convolution->bias), result = context.value(convolution->result);
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    return PlusBias(context, ops, bias, index, context.loops().Load(ops, result, index));
  }));
  return context.status();
}

absl::Status LowerConvolutionBackward(LoweringContext& context, const GraphNode& node) {
  const std::optional<Convolution> convolution = ConvolutionOf(context.graph(), node);
  if (!convolution || !context.IsDefined(convolution->gradient) || !context.IsDefined(convolution->input) ||
      !context.IsDefined(convolution->weight)) {
    return absl::InvalidArgumentError("gradients of a convolution that lack an operand");
  }
  CallOperands operands;
  if (ComputesGradientsChannelsLast(context.exprs(), context.graph(), node, *convolution)) {
    operands[Names::kGradient].strides = ChannelsLastStridesOf(context, convolution->gradient);
    operands[Names::kInput].strides = ChannelsLastStridesOf(context, convolution->input);
    if (WeightsHaveImageLayout(context.graph(), *convolution))
      operands[Names::kWeight].strides = ChannelsLastStridesOf(context, convolution->weight);
  }
  return CallLibrary(context, node, kReason, false, operands);
}

}  // namespace kiln
