// Operators over windows of the last two dimensions: pooling, upsampling, padding by reflection.
#include "compiler/lower/window.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "compiler/graph/expr_proofs.h"
#include "compiler/lower/library_call.h"
#include "compiler/lower/lowering_context.h"
#include "compiler/lower/node_arguments.h"
#include "compiler/lower/reduction_loops.h"
#include "compiler/lower/view_maps.h"
#include "compiler/target/cost_model.h"
#include "compiler/target/device.h"

namespace kiln {

void ReadPair(LoweringContext& context, const GraphNode& node, absl::string_view name, int64_t (&pair)[2]) {
  const NodeArguments args(context, node);
  const std::vector<int64_t> list = args.IntList(name);
  if (list.size() == 1) pair[0] = pair[1] = list[0];
  if (list.size() == 2) std::copy(list.begin(), list.end(), pair);
  if (list.size() > 2)
    context.checks().Invalid(absl::StrCat("argument '", name, "' has more than two numbers"));
}

WindowPoint PointOf(LoweringContext& context, LoopRecorder& ops, const LoweredTensor& self,
                    const Window& window, Index index, Index inner) {
  ExprPool& exprs = context.exprs();
  WindowPoint point{std::vector<ExprId>(index.begin(), index.end()), ops.True()};
  for (int i = 0; i < 2; ++i) {
    const size_t dim = self.rank() - 2 + i;
    ExprId at = exprs.Mul(index[dim], context.Const(window.stride[i]));
    at = exprs.Add(at, exprs.Mul(inner[i], context.Const(window.dilation[i])));
    at = exprs.Sub(at, context.Const(window.padding[i]));
    point.from[dim] = at;
    point.inside = ops.And(point.inside, ops.Not(IndexLess(ops, at, context.Const(0))));
    point.inside = ops.And(point.inside, IndexLess(ops, at, self.sizes[dim]));
  }
  return point;
}

namespace {

Window ReadWindow(LoweringContext& context, const GraphNode& node) {
  Window window;
  ReadPair(context, node, "kernel_size", window.kernel);
  std::copy(window.kernel, window.kernel + 2, window.stride);
  ReadPair(context, node, "stride", window.stride);
  ReadPair(context, node, "padding", window.padding);
  ReadPair(context, node, "dilation", window.dilation);
  for (int i = 0; i < 2; ++i) {
    if (window.kernel[i] <= 0 || window.stride[i] <= 0 || window.padding[i] < 0 || window.dilation[i] <= 0) {
      context.checks().Invalid("a window whose sizes are not positive");
    }
  }
  return window;
}

bool FitsImages(const LoweredTensor& self, const TensorType& type) {
  return (self.rank() == 3 || self.rank() == 4) && type.rank() == self.rank();
}

absl::Status LowerMaxPool(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  if (const ValueId id = args.TensorValue("self"); context.IsDefined(id)) {
    context.memory().MaterializeIfExpensive(context.MutableValue(id));
  }
  const LoweredTensor self = args.Tensor("self");
  const Window window = ReadWindow(context, node);
  const TensorType type = context.ResultType(node, 0);
  if (!context.status().ok()) return context.status();
  if (!FitsImages(self, type) || !IsFloat(self.dtype))
    return CallLibrary(context, node, "no lowering", false);
  const v1::DType compute = ComputeType(type.dtype);
  Reduction reduction;
  reduction.kind = v1::REDUCE_MAX;
  reduction.compute = compute;
  reduction.inner_sizes = {context.Const(window.kernel[0]), context.Const(window.kernel[1])};
  reduction.may_split = false;
  auto element = [&](LoopRecorder& ops, Index outer, Index inner) {
    const WindowPoint point = PointOf(context, ops, self, window, outer, inner);
    ops.OpenMask(point.inside);
    const LoopOpId x = context.loops().Load(ops, self, point.from);
    ops.CloseMask();
    return ops.Where(point.inside, x, ops.Constant(-HUGE_VAL, compute));
  };
  context.SetResult(
      node, Reduce(context, type, reduction, element, [](LoopRecorder&, LoopOpId max) { return max; }), 0);
  const bool wants_positions = node.results.size() > 1 && context.facts().uses[node.results[1]] > 0;
  if (!wants_positions) return context.status();

  // The position in the window of the largest element, turned into one in the image.
  const TensorType position_type = context.ResultType(node, 1);
  TensorType offset_type = position_type;
  offset_type.dtype = v1::I64;
  reduction.kind = v1::REDUCE_ARGMAX;
  const LoweredTensor offset =
      Reduce(context, offset_type, reduction, element, [](LoopRecorder&, LoopOpId at) { return at; });
  context.SetResult(node,
                    context.loops().Pointwise(
                        position_type,
                        [&](LoopRecorder& ops, Index index) {
                          ExprPool& exprs = context.exprs();
                          const LoopOpId at = context.loops().Load(ops, offset, index);
                          const LoopOpId columns = ops.ConstantInt(window.kernel[1]);
                          LoopOpId position[2] = {ops.Binary(LoopOpcode::kFloorDiv, at, columns),
                                                  ops.Binary(LoopOpcode::kRemainder, at, columns)};
                          for (int i = 0; i < 2; ++i) {
                            const size_t dim = self.rank() - 2 + i;
                            const ExprId start =
                                exprs.Sub(exprs.Mul(index[dim], context.Const(window.stride[i])),
                                          context.Const(window.padding[i]));
                            position[i] = ops.Add(ops.IndexExpr(start),
                                                  ops.Mul(position[i], ops.ConstantInt(window.dilation[i])));
                          }
                          return ops.Add(ops.Mul(position[0], ops.IndexExpr(self.sizes.back())), position[1]);
                        }),
                    1);
  return context.status();
}

// On a GPU an element of the image sums what those windows pass on that cover it and took it: no two threads
// write one element, and sums have an order.
absl::Status LowerMaxPoolBackward(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  ExprPool& exprs = context.exprs();
  const Window window = ReadWindow(context, node);
  const TensorType type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  int64_t covering[2];
  for (int i = 0; i < 2; ++i) covering[i] = (window.kernel[i] - 1) / window.stride[i] + 1;
  const LoweredTensor& traced = args.Tensor("grad_output");
  const bool undilated = window.dilation[0] == 1 && window.dilation[1] == 1;
  if (!IsFloat(type.dtype) || !FitsImages(traced, type) || !undilated ||
      !cost::PaysPoolingGradient(IsGpu(type.device), covering[0], covering[1])) {
    return CallLibrary(context, node, "closed list: pooling backward", false);
  }
  if (const ValueId id = args.TensorValue("grad_output"); context.IsDefined(id)) {
    context.memory().MaterializeIfExpensive(context.MutableValue(id));
  }
  const LoweredTensor gradient = args.Tensor("grad_output"), positions = args.Tensor("indices");
  if (positions.rank() != gradient.rank())
    return absl::InvalidArgumentError("positions of another rank than their windows'");
  context.checks().CheckSizes(positions.sizes, gradient.sizes);
  const size_t rows = type.rank() - 2;
  const v1::DType compute = ComputeType(type.dtype);
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    const LoopOpId here =
        ops.IndexExpr(exprs.Add(exprs.Mul(index[rows], type.sizes.back()), index[rows + 1]));
    LoopOpId sum = ops.Constant(0, compute);
    for (int64_t i = 0; i < covering[0] * covering[1]; ++i) {
      const int64_t before[2] = {i / covering[1], i % covering[1]};
      std::vector<ExprId> at(index.begin(), index.end());
      LoopOpId inside = ops.True();
      for (size_t d = 0; d < 2; ++d) {
        const ExprId last = exprs.FloorDiv(exprs.Add(index[rows + d], context.Const(window.padding[d])),
                                           context.Const(window.stride[d]));
        at[rows + d] = exprs.Sub(last, context.Const(before[d]));
        inside = ops.And(inside, ops.Not(IndexLess(ops, at[rows + d], context.Const(0))));
        inside = ops.And(inside, IndexLess(ops, at[rows + d], gradient.sizes[rows + d]));
      }
      ops.OpenMask(inside);
      const LoopOpId taken = ops.Cast(context.loops().Load(ops, positions, at), v1::I64);
      const LoopOpId passed = ops.Cast(context.loops().Load(ops, gradient, at), compute);
      ops.CloseMask();
      const LoopOpId mine = ops.And(inside, ops.Compare(LoopOpcode::kEq, taken, here));
      sum = ops.Add(sum, ops.Where(mine, passed, ops.Constant(0, compute)));
    }
    return sum;
  }));
  return context.status();
}

absl::Status LowerAvgPool(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const Window window = ReadWindow(context, node);
  const bool count_padding = args.Bool("count_include_pad", true);
  const int64_t divisor = args.Int("divisor_override", 0);
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (!FitsImages(self, type) || !IsFloat(self.dtype))
    return CallLibrary(context, node, "no lowering", false);
  const v1::DType compute = ComputeType(type.dtype);
  Reduction reduction;
  reduction.compute = compute;
  reduction.inner_sizes = {context.Const(window.kernel[0]), context.Const(window.kernel[1])};
  reduction.may_split = false;
  TensorType wide = type;
  wide.dtype = compute;
  const LoweredTensor sum = Reduce(
      context, wide, reduction,
      [&](LoopRecorder& ops, Index outer, Index inner) {
        const WindowPoint point = PointOf(context, ops, self, window, outer, inner);
        ops.OpenMask(point.inside);
        const LoopOpId x = context.loops().Load(ops, self, point.from);
        ops.CloseMask();
        return ops.Where(point.inside, x, ops.ConstantInt(0, compute));
      },
      [](LoopRecorder&, LoopOpId total) { return total; });
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    const LoopOpId total = context.loops().Load(ops, sum, index);
    if (divisor != 0) return ops.Div(total, ops.ConstantInt(divisor, compute));
    // Elements that count: inside the image, or inside the image and its padding.
    ExprPool& exprs = context.exprs();
    ExprId count = context.Const(1);
    for (int i = 0; i < 2; ++i) {
      const size_t dim = self.rank() - 2 + i;
      const ExprId pad = context.Const(count_padding ? window.padding[i] : 0);
      const ExprId first =
          exprs.Sub(exprs.Mul(index[dim], context.Const(window.stride[i])), context.Const(window.padding[i]));
      const ExprId end =
          exprs.Min(exprs.Add(first, context.Const(window.kernel[i])), exprs.Add(self.sizes[dim], pad));
      const ExprId begin = count_padding ? first : exprs.Max(first, context.Const(0));
      count = exprs.Mul(count, exprs.Sub(end, begin));
    }
    return ops.Div(total, ops.Cast(ops.IndexExpr(count), compute));
  }));
  return context.status();
}

// Windows [floor(i*in/out), ceil((i+1)*in/out)): as wide as the widest, the rest masked.
absl::Status LowerAdaptiveAvgPool(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (!FitsImages(self, type) || !IsFloat(self.dtype))
    return CallLibrary(context, node, "no lowering", false);
  ExprPool& exprs = context.exprs();
  const v1::DType compute = ComputeType(type.dtype);
  const ExprId one = context.Const(1);
  // One where there is none: what is computed for no window is not read, but is not to divide by zero either.
  const auto windows = [&](size_t dim) {
    const ExprId out = type.sizes[dim];
    return exprs.Range(out).min < 1 ? exprs.Max(out, one) : out;
  };
  Reduction reduction;
  reduction.compute = compute;
  reduction.may_split = false;
  for (int i = 0; i < 2; ++i) {
    const size_t dim = self.rank() - 2 + i;
    const ExprId in = self.sizes[dim], out = windows(dim);
    const bool even = ProvablyDivides(exprs, out, in);
    const ExprId width = even ? exprs.FloorDiv(in, out) : exprs.Add(exprs.CeilDiv(in, out), one);
    reduction.inner_sizes.push_back(width);
  }
  auto begin = [&](ExprId at, size_t dim) {
    return exprs.FloorDiv(exprs.Mul(at, self.sizes[dim]), windows(dim));
  };
  auto end = [&](ExprId at, size_t dim) {
    return exprs.CeilDiv(exprs.Mul(exprs.Add(at, one), self.sizes[dim]), windows(dim));
  };
  TensorType wide = type;
  wide.dtype = compute;
  const LoweredTensor sum = Reduce(
      context, wide, reduction,
      [&](LoopRecorder& ops, Index outer, Index inner) {
        std::vector<ExprId> from(outer.begin(), outer.end());
        LoopOpId inside = ops.True();
        for (int i = 0; i < 2; ++i) {
          const size_t dim = self.rank() - 2 + i;
          from[dim] = exprs.Add(begin(outer[dim], dim), inner[i]);
          if (ProvablyDivides(exprs, windows(dim), self.sizes[dim])) continue;
          inside = ops.And(inside, IndexLess(ops, from[dim], end(outer[dim], dim)));
        }
        ops.OpenMask(inside);
        const LoopOpId x = context.loops().Load(ops, self, from);
        ops.CloseMask();
        return ops.Where(inside, x, ops.ConstantInt(0, compute));
      },
      [](LoopRecorder&, LoopOpId total) { return total; });
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    ExprId count = one;
    for (int i = 0; i < 2; ++i) {
      const size_t dim = self.rank() - 2 + i;
      count = exprs.Mul(count, exprs.Sub(end(index[dim], dim), begin(index[dim], dim)));
    }
    return ops.Div(context.loops().Load(ops, sum, index), ops.Cast(ops.IndexExpr(count), compute));
  }));
  return context.status();
}

// ---- upsampling

// input size / output size, or 1 / scale where the caller gave one; `dim` counts from the rows.
LoopOpId SourceScale(LoweringContext& context, LoopRecorder& ops, const GraphNode& node, ExprId in,
                     ExprId out, size_t dim) {
  const NodeArguments args(context, node);
  const char* name = dim == 0 ? "scales_h" : "scales_w";
  double scale = args.Float(name, 0);
  if (const Argument* factors = node.Find("scale_factors")) {
    const auto* list = std::get_if<FloatListArg>(factors);
    if (list != nullptr && dim < list->values.size()) scale = list->values[dim];
  }
  if (scale > 0) return ops.Constant(1 / scale, v1::F32);
  return ops.Div(ops.Cast(ops.IndexExpr(in), v1::F32), ops.Cast(ops.IndexExpr(out), v1::F32));
}

absl::Status LowerUpsampleNearest(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor(node.Find("self") != nullptr ? "self" : "input");
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (self.rank() != 4 || type.rank() != 4)
    return absl::InvalidArgumentError("upsample of another rank than 4");
  ExprPool& exprs = context.exprs();
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    std::vector<ExprId> from(index.begin(), index.end());
    for (size_t i = 0; i < 2; ++i) {
      const size_t dim = 2 + i;
      const ExprId in = self.sizes[dim], out = type.sizes[dim];
      if (ProvablyDivides(exprs, in, out)) {
        from[dim] = exprs.FloorDiv(index[dim], exprs.FloorDiv(out, in));
        continue;
      }
      const LoopOpId scaled =
          ops.Mul(ops.Cast(ops.IndexExpr(index[dim]), v1::F32), SourceScale(context, ops, node, in, out, i));
      const LoopOpId last = ops.IndexExpr(exprs.Sub(in, context.Const(1)));
      const LoopOpId row = ops.Binary(LoopOpcode::kMinimum, ops.Cast(scaled, v1::I64), last);
      from[dim] = ops.CheckedIndex(row, in);
    }
    return context.loops().Load(ops, self, from);
  }));
  return context.status();
}

// The two neighbours of a source position along one dimension, and the weight of the second.
struct Neighbours {
  ExprId low, high;
  LoopOpId weight;
};

Neighbours NeighboursOf(LoweringContext& context, LoopRecorder& ops, const GraphNode& node, ExprId at,
                        ExprId in, ExprId out, size_t dim, bool align_corners) {
  ExprPool& exprs = context.exprs();
  const ExprId one = context.Const(1);
  auto as_float = [&](ExprId value) { return ops.Cast(ops.IndexExpr(value), v1::F32); };
  LoopOpId source;
  if (align_corners) {
    const LoopOpId scale = out == one ? ops.Constant(0, v1::F32)
                                      : ops.Div(as_float(exprs.Sub(in, one)), as_float(exprs.Sub(out, one)));
    source = ops.Mul(as_float(at), scale);
  } else {
    const LoopOpId half = ops.Constant(0.5, v1::F32);
    const LoopOpId scale = SourceScale(context, ops, node, in, out, dim);
    source = ops.Sub(ops.Mul(ops.Add(as_float(at), half), scale), half);
    source = ops.Binary(LoopOpcode::kMaximum, source, ops.Constant(0, v1::F32));
  }
  const LoopOpId last = ops.IndexExpr(exprs.Sub(in, one));
  const LoopOpId low = ops.Binary(LoopOpcode::kMinimum, ops.Cast(source, v1::I64), last);
  const LoopOpId high = ops.Binary(LoopOpcode::kMinimum, ops.Add(low, ops.ConstantInt(1)), last);
  const LoopOpId weight = ops.Sub(source, ops.Cast(low, v1::F32));
  const LoopOpId clamped = ops.Binary(LoopOpcode::kMinimum, weight, ops.Constant(1, v1::F32));
  return {ops.CheckedIndex(low, in), ops.CheckedIndex(high, in), clamped};
}

absl::Status LowerUpsampleBilinear(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor(node.Find("self") != nullptr ? "self" : "input");
  const bool align_corners = args.Bool("align_corners", false);
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (self.rank() != 4 || type.rank() != 4)
    return absl::InvalidArgumentError("upsample of another rank than 4");
  if (!IsFloat(type.dtype)) return CallLibrary(context, node, "no lowering", false);
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    const v1::DType compute = ComputeType(type.dtype);
    const Neighbours rows =
        NeighboursOf(context, ops, node, index[2], self.sizes[2], type.sizes[2], 0, align_corners);
    const Neighbours columns =
        NeighboursOf(context, ops, node, index[3], self.sizes[3], type.sizes[3], 1, align_corners);
    auto load = [&](ExprId row, ExprId column) {
      return context.loops().Load(ops, self, {index[0], index[1], row, column});
    };
    auto mix = [&](LoopOpId a, LoopOpId b, LoopOpId weight) {
      const LoopOpId w = ops.Cast(weight, compute);
      return ops.Add(ops.Mul(a, ops.Sub(ops.Constant(1, compute), w)), ops.Mul(b, w));
    };
    const LoopOpId top = mix(load(rows.low, columns.low), load(rows.low, columns.high), columns.weight);
    const LoopOpId bottom = mix(load(rows.high, columns.low), load(rows.high, columns.high), columns.weight);
    return mix(top, bottom, rows.weight);
  }));
  return context.status();
}

// ---- sampling at positions that another tensor gives

// A position in [-1, 1] as one in elements.
LoopOpId Unnormalise(LoweringContext& context, LoopRecorder& ops, LoopOpId at, ExprId size,
                     bool align_corners) {
  const v1::DType compute = ops.dtype(at);
  const LoopOpId length = ops.Cast(ops.IndexExpr(size), compute);
  const LoopOpId one = ops.Constant(1, compute), two = ops.Constant(2, compute);
  const LoopOpId shifted = ops.Add(at, one);
  if (align_corners) return ops.Mul(ops.Div(shifted, two), ops.Sub(length, one));
  return ops.Div(ops.Sub(ops.Mul(shifted, length), one), two);
}

// Bilinear, with zeros or the border outside; the other forms are library calls.
absl::Status LowerGridSample(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor input = args.Tensor("input");
  const LoweredTensor grid = args.Tensor("grid");
  const int64_t interpolation = args.Int("interpolation_mode", 0);
  const int64_t padding = args.Int("padding_mode", 0);
  const bool align_corners = args.Bool("align_corners", false);
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (interpolation != 0 || padding > 1 || !IsFloat(type.dtype) || grid.dtype != type.dtype) {
    return CallLibrary(context, node, "no lowering", false);
  }
  if (input.rank() != 4 || grid.rank() != 4 || type.rank() != 4) {
    return absl::InvalidArgumentError("grid_sampler_2d of another rank than 4");
  }
  ExprPool& exprs = context.exprs();
  const v1::DType compute = ComputeType(type.dtype);
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    LoopOpId low[2], weight[2];  // by dimension: rows, columns
    for (size_t i = 0; i < 2; ++i) {
      const ExprId size = input.sizes[2 + i];
      const ExprId component = context.Const(i == 0 ? 1 : 0);  // the grid holds (x, y)
      LoopOpId at = context.loops().Load(ops, grid, {index[0], index[2], index[3], component});
      at = Unnormalise(context, ops, at, size, align_corners);
      if (padding == 1) {
        const LoopOpId last = ops.Cast(ops.IndexExpr(exprs.Sub(size, context.Const(1))), compute);
        const LoopOpId zero = ops.Constant(0, compute);
        at = ops.Where(ops.Compare(LoopOpcode::kGt, at, zero), at, zero);  // NaN is 0
        at = ops.Binary(LoopOpcode::kMinimum, at, last);
      }
      const LoopOpId floor = ops.Unary(LoopOpcode::kFloor, at);
      low[i] = ops.Cast(floor, v1::I64);
      weight[i] = ops.Sub(at, floor);
    }
    LoopOpId sum = ops.Constant(0, compute);
    for (int corner = 0; corner < 4; ++corner) {
      LoopOpId inside = ops.True(), factor = ops.Constant(1, compute), at[2];
      for (size_t i = 0; i < 2; ++i) {
        const bool high = (corner >> (1 - i) & 1) != 0;
        at[i] = high ? ops.Add(low[i], ops.ConstantInt(1)) : low[i];
        factor = ops.Mul(factor, high ? weight[i] : ops.Sub(ops.Constant(1, compute), weight[i]));
        inside = ops.And(inside, ops.Compare(LoopOpcode::kGe, at[i], ops.ConstantInt(0)));
        inside = ops.And(inside, ops.Compare(LoopOpcode::kLt, at[i], ops.IndexExpr(input.sizes[2 + i])));
      }
      ops.OpenMask(inside);
      const ExprId row = ops.CheckedIndex(at[0], input.sizes[2]);
      const ExprId column = ops.CheckedIndex(at[1], input.sizes[3]);
      const LoopOpId value = context.loops().Load(ops, input, {index[0], index[1], row, column});
      ops.CloseMask();
      // On the CPU eager multiplies what lies outside as well: a NaN position gives NaN.
      const LoopOpId zero = ops.Constant(0, compute);
      sum = ops.Add(sum, IsGpu(type.device) ? ops.Where(inside, ops.Mul(value, factor), zero)
                                            : ops.Mul(ops.Where(inside, value, zero), factor));
    }
    return sum;
  }));
  return context.status();
}

// ---- padding by reflection or repetition of the border

template <bool reflect>
absl::Status LowerBorderPad(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const std::vector<ExprId> pad = args.ExprList("padding");
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (type.rank() != self.rank() || pad.size() % 2 != 0 || pad.size() / 2 > self.rank()) {
    return absl::InvalidArgumentError("padding does not fit the rank");
  }
  ExprPool& exprs = context.exprs();
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    const size_t dim = self.rank() - 1 - i;
    context.checks().CheckSize(exprs.Add(self.sizes[dim], exprs.Add(pad[2 * i], pad[2 * i + 1])),
                               type.sizes[dim]);
  }
  context.SetResult(node, MapIndex(context, self, type, [&](Index index) {
                      std::vector<ExprId> from(index.begin(), index.end());
                      for (size_t i = 0; i < pad.size() / 2; ++i) {
                        const size_t dim = self.rank() - 1 - i;
                        const ExprId last = exprs.Sub(self.sizes[dim], context.Const(1));
                        ExprId at = exprs.Sub(index[dim], pad[2 * i]);
                        if (reflect) {
                          at = exprs.Max(at, exprs.Neg(at));  // |at|
                          at = exprs.Min(at, exprs.Sub(exprs.Mul(last, context.Const(2)), at));
                        } else {
                          at = exprs.Min(exprs.Max(at, context.Const(0)), last);
                        }
                        from[dim] = at;
                      }
                      return from;
                    }));
  return context.status();
}

}  // namespace

void RegisterWindows(LoweringTable& table) {
  table[Op::kMaxPool2dWithIndices] = LowerMaxPool;
  table[Op::kMaxPool2dWithIndicesBackward] = LowerMaxPoolBackward;
  table[Op::kAvgPool2d] = LowerAvgPool;
  table[Op::kPrivateAdaptiveAvgPool2d] = LowerAdaptiveAvgPool;
  table[Op::kAdaptiveAvgPool2d] = LowerAdaptiveAvgPool;
  table[Op::kUpsampleNearest2d] = LowerUpsampleNearest;
  table[Op::kUpsampleNearest2dVec] = LowerUpsampleNearest;
  table[Op::kUpsampleBilinear2d] = LowerUpsampleBilinear;
  table[Op::kUpsampleBilinear2dVec] = LowerUpsampleBilinear;
  table[Op::kGridSampler2d] = LowerGridSample;
  for (const Op op : {Op::kReflectionPad1d, Op::kReflectionPad2d, Op::kReflectionPad3d})
    table[op] = LowerBorderPad<true>;
  for (const Op op : {Op::kReplicationPad1d, Op::kReplicationPad2d, Op::kReplicationPad3d})
    table[op] = LowerBorderPad<false>;
}

}  // namespace kiln
