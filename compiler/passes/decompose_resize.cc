// Upsampling by index arithmetic: nearest, and bilinear as a weighted sum of four reads. The gradient of
// bilinear upsampling is two gemms with the matrices of its weights: it reads each element once and
// collects, where a sum into computed positions would meet in them.
#include <array>
#include <optional>

#include "compiler/passes/decomposition.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

Value Input(DecomposeContext& m) { return m.Tensor(m.Has("input") ? "input" : "self"); }

// The scale the caller gave for spatial dimension `i`, if any: scale_factors[i] or scales_h / scales_w /
// scales.
std::optional<double> GivenScale(DecomposeContext& m, size_t i, size_t spatial) {
  if (const Argument* factors = m.node().Find("scale_factors")) {
    const auto* list = std::get_if<FloatListArg>(factors);
    if (list != nullptr && i < list->values.size()) return list->values[i];
    return std::nullopt;
  }
  static constexpr const char* kNames[] = {"scales_d", "scales_h", "scales_w"};
  const char* name = spatial == 1 ? "scales" : kNames[3 - spatial + i];
  return m.Has(name) ? std::optional<double>(m.Float(name)) : std::nullopt;
}

// `i` times in / out, or by the scale that the caller gave. The ratio is rounded first, as eager does, in the
// dtype of `i`.
Value TimesRatio(DecomposeContext& m, const Value& i, ExprId in, ExprId out, std::optional<double> scale) {
  if (scale && *scale > 0) return i * (1.0 / *scale);
  const auto a = m.exprs().AsConst(in), b = m.exprs().AsConst(out);
  if (!a || !b || *b == 0) return i * (m.b().Full({}, Sym{in}, i.dtype()) / Sym{out});
  if (i.dtype() == v1::F64) return i * (static_cast<double>(*a) / static_cast<double>(*b));
  return i * static_cast<double>(static_cast<float>(*a) / static_cast<float>(*b));
}

template <bool kExact>
bool UpsampleNearest(DecomposeContext& m) {
  Value x = Input(m);
  const TensorType out = m.Type();
  if (!x.ok() || x.rank() < 3 || out.sizes.size() != x.sizes().size()) return false;
  const size_t spatial = x.rank() - 2;
  if (spatial > 3) return false;
  std::vector<Value> indices(2);
  for (size_t i = 0; i < spatial; ++i) {
    const ExprId in = x.size(i + 2), size = out.sizes[i + 2];
    Value position = Cast(m.b().Iota(size), v1::F32);
    if (kExact) position = position + 0.5;
    Value source = Cast(Floor(TimesRatio(m, position, in, size, GivenScale(m, i, spatial))), v1::I64);
    source = Minimum(source, Sym{m.exprs().Sub(in, m.b().Int(1))});
    indices.push_back(View(source, [&] {
      std::vector<ExprId> sizes(spatial - i, m.b().Int(1));
      sizes[0] = size;
      return sizes;
    }()));
  }
  return m.Return(UnsafeIndex(x, indices));
}

struct Sample {
  Value low, high;  // I64 positions
  Value weight;     // of `high`, F32 (F64 for doubles)
};

struct Resize {
  ExprId in, out;
  std::optional<double> scale;
  // Whether the positions are the input's own: eager copies where the size stays, whatever scale the caller
  // gave. Without a value it is known only when the graph runs: `same` (BOOL, no dimension).
  std::optional<bool> copies;
  Value same;
};

std::optional<bool> SameSize(const ExprPool& exprs, ExprId a, ExprId b) {
  if (a == b) return true;
  const auto x = exprs.AsConst(a), y = exprs.AsConst(b);
  return x && y ? std::optional<bool>(*x == *y) : std::nullopt;
}

// Of the rows and the columns. On a GPU both sizes have to stay for either to be copied.
// The sizes are copies: types move when nodes are added.
std::array<Resize, 2> ResizesOf(DecomposeContext& m, std::vector<ExprId> in, std::vector<ExprId> out,
                                v1::DeviceType device) {
  std::array<Resize, 2> sides;
  for (size_t i = 0; i < 2; ++i) {
    Resize& side = sides[i];
    side = {in[i + 2], out[i + 2], GivenScale(m, i, 2), SameSize(m.exprs(), in[i + 2], out[i + 2]), Value()};
    if (!side.copies) side.same = Eq(m.b().Full({}, Sym{side.in}, v1::I64), Sym{side.out});
  }
  if (device == v1::CPU) return sides;
  const Resize rows = sides[0], columns = sides[1];
  for (Resize& side : sides) {
    const Resize& other = rows.copies.value_or(false) ? columns : rows;
    side.copies = rows.copies == false || columns.copies == false ? false : other.copies;
    if (!side.copies)
      side.same = rows.same.ok() && columns.same.ok() ? LogicalAnd(rows.same, columns.same) : other.same;
  }
  return sides;
}

Sample SampleOf(DecomposeContext& m, const Resize& side, bool align_corners, v1::DType compute) {
  ExprPool& pool = m.exprs();
  const Value i = Cast(m.b().Iota(side.out), compute);
  const ExprId last = pool.Sub(side.in, pool.Const(1));
  Value source;
  if (align_corners) {
    const ExprId steps = pool.Max(pool.Sub(side.out, pool.Const(1)), pool.Const(1));
    const Value scaled = TimesRatio(m, i, last, steps, std::nullopt);
    source = pool.AsConst(side.out) == 1 ? i * 0.0 : scaled;
  } else {
    source = Maximum(TimesRatio(m, i + 0.5, side.in, side.out, side.scale) - 0.5, 0.0);
  }
  if (side.copies.value_or(false)) source = i;
  if (!side.copies && side.scale) source = Where(side.same, i, source);
  Sample sample;
  sample.low = Minimum(Cast(source, v1::I64), Sym{last});
  sample.high = Minimum(sample.low + 1, Sym{last});
  sample.weight = Minimum(Maximum(source - Cast(sample.low, compute), 0.0), 1.0);
  return sample;
}

bool UpsampleBilinear(DecomposeContext& m) {
  Value x = ToCompute(Input(m));
  const TensorType out = m.Type();
  if (!x.ok() || x.rank() != 4 || out.sizes.size() != 4 || !IsFloat(x.dtype())) return false;
  const bool align = m.Bool("align_corners", false);
  const std::array<Resize, 2> sides = ResizesOf(m, x.sizes(), out.sizes, out.device);
  Sample rows = SampleOf(m, sides[0], align, x.dtype());
  Sample columns = SampleOf(m, sides[1], align, x.dtype());
  for (Value* v : {&rows.low, &rows.high, &rows.weight}) *v = Unsqueeze(*v, 1);
  Value top_left = UnsafeIndex(x, {Value(), Value(), rows.low, columns.low});
  Value top_right = UnsafeIndex(x, {Value(), Value(), rows.low, columns.high});
  Value bottom_left = UnsafeIndex(x, {Value(), Value(), rows.high, columns.low});
  Value bottom_right = UnsafeIndex(x, {Value(), Value(), rows.high, columns.high});
  Value top = top_left + (top_right - top_left) * columns.weight;
  Value bottom = bottom_left + (bottom_right - bottom_left) * columns.weight;
  return m.Return(top + (bottom - top) * rows.weight);
}

// [out, in]: how much of each input position is in each output position.
Value Weights(DecomposeContext& m, const Resize& side, bool align_corners, v1::DType compute) {
  const Sample sample = SampleOf(m, side, align_corners, compute);
  const Value position = m.b().Iota(side.in);
  const Value weight = Unsqueeze(sample.weight, 1);
  return Where(Eq(Unsqueeze(sample.low, 1), position), 1.0 - weight, 0.0) +
         Where(Eq(Unsqueeze(sample.high, 1), position), weight, 0.0);
}

bool UpsampleBilinearBackward(DecomposeContext& m) {
  Value grad = ToCompute(m.Tensor("grad_output"));
  const std::vector<ExprId> in = m.Syms("input_size");
  if (!grad.ok() || grad.rank() != 4 || in.size() != 4 || !IsFloat(grad.dtype())) return false;
  for (size_t d : {2, 3}) {
    if (!cost::PaysWeightMatrix(m.exprs().AsConst(in[d]))) return false;
  }
  const bool align = m.Bool("align_corners", false);
  // A copy: the types move when nodes are added.
  const std::vector<ExprId> out = grad.sizes();  // NOLINT(performance-unnecessary-copy-initialization)
  const std::array<Resize, 2> sides = ResizesOf(m, in, out, m.Type().device);
  const Value rows = Weights(m, sides[0], align, grad.dtype());
  const Value columns = Weights(m, sides[1], align, grad.dtype());
  const ExprId batch = out[0], channels = out[1];
  const TensorType type = m.Type();
  const bool channels_last =
      type.strides.size() == 4 && m.exprs().AsConst(type.strides[1]) == 1 && m.exprs().AsConst(channels) != 1;
  if (channels_last) {
    const ExprId lines = m.exprs().Mul(batch, out[2]);
    Value x = View(Permute(grad, {0, 2, 3, 1}), {lines, out[3], channels});
    x = BatchedMatmul(Expand(Transpose(columns, 0, 1), {lines, in[3], out[3]}), x);
    x = View(x, {batch, out[2], m.exprs().Mul(in[3], channels)});
    x = BatchedMatmul(Expand(Transpose(rows, 0, 1), {batch, in[2], out[2]}), x);
    return m.Return(Permute(View(x, {batch, in[2], in[3], channels}), {0, 3, 1, 2}));
  }
  const ExprId images = m.exprs().Mul(batch, channels);
  Value x = View(grad, {m.exprs().Mul(images, out[2]), out[3]});
  x = View(Matmul(x, columns), {images, out[2], in[3]});
  x = View(Transpose(x, 1, 2), {m.exprs().Mul(images, in[3]), out[2]});
  x = Transpose(View(Matmul(x, rows), {images, in[3], in[2]}), 1, 2);
  return m.Return(View(x, in));
}

constexpr DecompositionRow kRows[] = {
    {"upsample_nearest1d", UpsampleNearest<false>},
    {"upsample_nearest2d", UpsampleNearest<false>},
    {"upsample_nearest3d", UpsampleNearest<false>},
    {"upsample_nearest1d.vec", UpsampleNearest<false>},
    {"upsample_nearest2d.vec", UpsampleNearest<false>},
    {"upsample_nearest3d.vec", UpsampleNearest<false>},
    {"_upsample_nearest_exact1d", UpsampleNearest<true>},
    {"_upsample_nearest_exact2d", UpsampleNearest<true>},
    {"_upsample_nearest_exact3d", UpsampleNearest<true>},
    {"_upsample_nearest_exact2d.vec", UpsampleNearest<true>},
    {"upsample_bilinear2d", UpsampleBilinear},
    {"upsample_bilinear2d.vec", UpsampleBilinear},
    {"upsample_bilinear2d_backward", UpsampleBilinearBackward},
};

}  // namespace

absl::Span<const DecompositionRow> ResizeRows() { return kRows; }

}  // namespace kiln
