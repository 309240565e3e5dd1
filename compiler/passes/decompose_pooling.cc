// Pooling: a window of k × k becomes k · k strided slices of the padded input, combined elementwise.
#include <algorithm>
#include <limits>

#include "compiler/graph/expr_proofs.h"
#include "compiler/passes/decomposition.h"
#include "compiler/support/compiler_limits.h"

namespace kiln {
namespace {

constexpr int64_t kStepMax = 0x7fffffff;  // so that a position in a window times its step is an int64

// One spatial dimension of a pooling.
struct Axis {
  int64_t dim, kernel, stride, pad, dilation;
  ExprId in, out;
};

// An int[2] argument; one value stands for both.
std::vector<int64_t> Pair(DecomposeContext& m, absl::string_view name, int64_t otherwise) {
  std::vector<int64_t> values = m.Ints(name);
  if (values.empty()) values = {otherwise, otherwise};
  if (values.size() == 1) values.push_back(values[0]);
  return values;
}

std::vector<Axis> AxesOf(DecomposeContext& m, const Value& x) {
  const std::vector<int64_t> kernel = Pair(m, "kernel_size", 0), pad = Pair(m, "padding", 0),
                             dilation = Pair(m, "dilation", 1);
  std::vector<int64_t> stride = m.Ints("stride");
  if (stride.empty()) stride = kernel;
  if (stride.size() == 1) stride.push_back(stride[0]);
  const TensorType out = m.Type(0);
  std::vector<Axis> axes;
  if (x.rank() < 2 || out.sizes.size() != x.sizes().size() || kernel.size() != 2 || pad.size() != 2 ||
      dilation.size() != 2 || stride.size() != 2) {
    return axes;
  }
  for (int i = 0; i < 2; ++i) {
    const int64_t dim = x.rank() - 2 + i;
    const auto between = [](int64_t low, int64_t value, int64_t high) {
      return low <= value && value <= high;
    };
    if (!between(1, kernel[i], kPoolingWindowMax) || !between(0, pad[i], kernel[i])) return {};
    if (!between(1, stride[i], kStepMax) || !between(1, dilation[i], kStepMax)) return {};
    axes.push_back({dim, kernel[i], stride[i], pad[i], dilation[i], x.sizes()[dim], out.sizes[dim]});
  }
  return axes;
}

// Last position that a window reads, plus one, in the padded input.
ExprId Reach(DecomposeContext& m, const Axis& axis) {
  ExprPool& pool = m.exprs();
  const ExprId last = pool.Mul(pool.Sub(axis.out, pool.Const(1)), pool.Const(axis.stride));
  return pool.Add(last, pool.Const((axis.kernel - 1) * axis.dilation + 1));
}

// Pads in front as asked and behind as far as the windows reach (ceil_mode reaches beyond the padding).
Value PadFor(DecomposeContext& m, Value x, const std::vector<Axis>& axes, const Operand& value) {
  ExprPool& pool = m.exprs();
  std::vector<ExprId> pads;
  bool any = false;
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    const ExprId behind =
        pool.Max(pool.Sub(Reach(m, *axis), pool.Add(axis->in, pool.Const(axis->pad))), pool.Const(0));
    pads.push_back(pool.Const(axis->pad));
    pads.push_back(behind);
    any = any || axis->pad != 0 || pool.AsConst(behind) != 0;
  }
  return any ? ConstantPad(x, pads, value) : x;
}

Value Tap(DecomposeContext& m, Value x, const std::vector<Axis>& axes, const std::vector<int64_t>& at) {
  ExprPool& pool = m.exprs();
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t start = at[i] * axes[i].dilation;
    const ExprId span =
        pool.Add(pool.Mul(pool.Sub(axes[i].out, pool.Const(1)), pool.Const(axes[i].stride)), pool.Const(1));
    x = Slice(x, axes[i].dim, pool.Const(start), pool.Add(pool.Const(start), span), axes[i].stride);
  }
  return x;
}

// Shaped to broadcast along the axis: position of the window in the unpadded input.
Value WindowStart(DecomposeContext& m, const Axis& axis, int64_t rank) {
  Value start = m.b().Iota(axis.out) * axis.stride + (-axis.pad);
  std::vector<ExprId> sizes(rank - axis.dim, m.b().Int(1));
  sizes[0] = axis.out;
  return View(start, sizes);
}

// The first position of a window that is not padding: where all values are the lowest there are it is theirs.
Value FirstWithin(const Value& start, const Axis& axis) {
  if (axis.dilation == 1) return Maximum(start, 0);
  const Value first = start.builder().Binary(Op::kRemainderTensor, start, axis.dilation);
  return Where(Lt(start, 0), first, start);
}

bool MaxPool2d(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok()) return false;
  const std::vector<Axis> axes = AxesOf(m, x);
  if (axes.empty() || axes[0].kernel * axes[1].kernel > kPoolingWindowMax) return false;
  const bool floats = IsFloat(x.dtype());
  if (!floats && x.dtype() != v1::I64) return false;
  const Operand lowest = floats ? Operand(-std::numeric_limits<double>::infinity())
                                : Operand(std::numeric_limits<int64_t>::min());
  Value padded = PadFor(m, x, axes, lowest);
  Value rows = WindowStart(m, axes[0], x.rank()), columns = WindowStart(m, axes[1], x.rank());
  const bool indices = m.Wanted(1);
  Value best, place;
  if (indices) place = FirstWithin(rows, axes[0]) * Sym{axes[1].in} + FirstWithin(columns, axes[1]);
  for (int64_t i = 0; i < axes[0].kernel; ++i) {
    for (int64_t j = 0; j < axes[1].kernel; ++j) {
      Value tap = Tap(m, padded, axes, {i, j});
      if (!best.ok()) {
        best = tap;
        continue;
      }
      Value better = Gt(tap, best);
      if (floats) better = LogicalOr(better, IsNan(tap));
      if (indices) {
        Value here = (rows + i * axes[0].dilation) * Sym{axes[1].in} + (columns + j * axes[1].dilation);
        place = Where(better, here, place);
      }
      best = Where(better, tap, best);
    }
  }
  if (indices && axes[0].kernel * axes[1].kernel == 1) place = ExpandAs(place, best);
  m.Set(0, best);
  if (indices) m.Set(1, ExpandAs(place, best));
  return true;
}

// Number of positions a window covers along one axis; padding counts when `with_padding`.
Value Covered(DecomposeContext& m, const Axis& axis, int64_t rank, bool with_padding) {
  Value start = WindowStart(m, axis, rank);
  Value end = start + axis.kernel;
  const ExprId limit = with_padding ? m.exprs().Add(axis.in, m.b().Int(axis.pad)) : axis.in;
  end = Minimum(end, Sym{limit});
  return end - (with_padding ? start : Maximum(start, 0));
}

bool AvgPool2d(DecomposeContext& m) {
  Value input = m.Tensor("self");
  Value x = ToCompute(input);
  if (!x.ok() || !IsFloat(x.dtype())) return false;
  const std::vector<Axis> axes = AxesOf(m, x);
  if (axes.empty() || axes[0].kernel * axes[1].kernel > kPoolingWindowMax) return false;
  const bool ceil = m.Bool("ceil_mode", false), with_padding = m.Bool("count_include_pad", true);
  Value padded = PadFor(m, x, axes, 0.0);
  Value sum;
  for (int64_t i = 0; i < axes[0].kernel; ++i) {
    for (int64_t j = 0; j < axes[1].kernel; ++j) {
      Value tap = Tap(m, padded, axes, {i, j});
      sum = sum.ok() ? sum + tap : tap;
    }
  }
  if (m.Has("divisor_override")) return m.Return(sum / m.Float("divisor_override"));
  const bool no_padding = axes[0].pad == 0 && axes[1].pad == 0;
  if (!ceil && (with_padding || no_padding)) {
    return m.Return(sum / static_cast<double>(axes[0].kernel * axes[1].kernel));
  }
  Value count = Covered(m, axes[0], x.rank(), with_padding) * Covered(m, axes[1], x.rank(), with_padding);
  return m.Return(sum / Cast(count, x.dtype()));
}

// Splits [.., H, W] into [.., oh, H/oh, ow, W/ow] where that is even; empty otherwise.
std::vector<ExprId> EvenWindows(DecomposeContext& m, const Value& x, ExprId out_height, ExprId out_width) {
  if (!x.ok() || x.rank() < 2) return {};
  ExprPool& pool = m.exprs();
  std::vector<ExprId> sizes(x.sizes().begin(), x.sizes().end() - 2);
  for (auto [in, out] : {std::pair{x.size(-2), out_height}, std::pair{x.size(-1), out_width}}) {
    if (pool.Range(out).min < 1 || !ProvablyDivides(pool, out, in)) return {};
    sizes.push_back(out);
    sizes.push_back(pool.FloorDiv(in, out));
  }
  return sizes;
}

bool AdaptiveAvgPool2d(DecomposeContext& m) {
  Value x = ToCompute(m.Tensor("self"));
  const TensorType out = m.Type();
  if (!x.ok() || out.sizes.size() != x.sizes().size() || x.rank() < 2) return false;
  const std::vector<ExprId> windows = EvenWindows(m, x, out.sizes[x.rank() - 2], out.sizes[x.rank() - 1]);
  if (windows.empty()) return false;
  return m.Return(Mean(View(x, windows), {x.rank() - 1, x.rank() + 1}, false));
}

bool AdaptiveAvgPool2dBackward(DecomposeContext& m) {
  Value g = ToCompute(m.Tensor("grad_output")), x = m.Tensor("self");
  if (!g.ok() || !x.ok() || g.rank() != x.rank() || g.rank() < 2) return false;
  const std::vector<ExprId> windows = EvenWindows(m, x, g.size(-2), g.size(-1));
  if (windows.empty()) return false;
  const size_t n = windows.size();
  Value spread = Unsqueeze(Unsqueeze(g, g.rank()), g.rank() - 1);
  spread = View(Expand(spread, windows), x.sizes());
  return m.Return(spread / Sym{m.exprs().Mul(windows[n - 3], windows[n - 1])});
}

constexpr DecompositionRow kRows[] = {
    {"max_pool2d_with_indices", MaxPool2d},
    {"avg_pool2d", AvgPool2d},
    {"_adaptive_avg_pool2d", AdaptiveAvgPool2d},
    {"adaptive_avg_pool2d", AdaptiveAvgPool2d},
    {"_adaptive_avg_pool2d_backward", AdaptiveAvgPool2dBackward},
};

}  // namespace

absl::Span<const DecompositionRow> PoolingRows() { return kRows; }

}  // namespace kiln
