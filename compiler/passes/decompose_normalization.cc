// Layer, batch, group and RMS normalization with their gradients. Statistics are in F32 (or F64), by two
// passes: the mean, then the mean square of what is left.
#include <limits>
#include <utility>

#include "compiler/passes/decomposition.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

using Dims = std::vector<int64_t>;

struct Moments {
  Value mean;  // keepdim
  Value centered;
  Value variance;  // biased, keepdim
};

Moments MomentsOf(const Value& x, const Dims& dims) {
  Moments moments;
  moments.mean = Mean(x, dims, true);
  moments.centered = x - moments.mean;
  moments.variance = Mean(moments.centered * moments.centered, dims, true);
  return moments;
}

Value OptionalIn(DecomposeContext& m, absl::string_view name) {
  Value value = m.OptionalTensor(name);
  return value.ok() ? ToCompute(value) : value;
}

// Dimensions [from, to).
Dims Range(int64_t from, int64_t to) {
  Dims dims;
  for (int64_t i = from; i < to; ++i) dims.push_back(i);
  return dims;
}

// Sums over `dims`; the value itself when there are none.
Value SumOver(const Value& x, const Dims& dims, bool keepdim) {
  return dims.empty() ? x : Sum(x, dims, keepdim);
}

// How many leading dimensions are not normalized.
int64_t OuterRank(DecomposeContext& m, const Value& x) {
  const int64_t inner = static_cast<int64_t>(m.Syms("normalized_shape").size());
  if (inner == 0 || inner > x.rank()) m.b().Fail("normalized_shape does not fit the input");
  return std::max<int64_t>(x.rank() - inner, 0);
}

bool LayerNorm(DecomposeContext& m) {
  Value x = ToCompute(m.Tensor("input")), weight = OptionalIn(m, "weight"), bias = OptionalIn(m, "bias");
  const Dims inner = Range(OuterRank(m, x), x.rank());
  if (!m.b().status().ok()) return false;
  Moments moments = MomentsOf(x, inner);
  Value rstd = Rsqrt(moments.variance + m.Float("eps"));
  Value y = moments.centered * rstd;
  if (weight.ok()) y = y * weight;
  if (bias.ok()) y = y + bias;
  m.Set(0, y);
  m.Set(1, moments.mean);
  m.Set(2, rstd);
  return true;
}

bool LayerNormBackward(DecomposeContext& m) {
  Value g = ToCompute(m.Tensor("grad_out")), x = ToCompute(m.Tensor("input"));
  Value mean = ToCompute(m.Tensor("mean")), rstd = ToCompute(m.Tensor("rstd")),
        weight = OptionalIn(m, "weight");
  const int64_t outer_rank = OuterRank(m, x);
  if (!m.b().status().ok()) return false;
  const Dims inner = Range(outer_rank, x.rank()), outer = Range(0, outer_rank);
  Value normal = (x - mean) * rstd;
  if (m.Wanted(0)) {
    Value scaled = weight.ok() ? g * weight : g;
    const Sym count{CountOf(x, inner)};
    Value sum = Sum(scaled, inner, true);
    Value projection = Sum(scaled * normal, inner, true);
    m.Set(0, rstd * (scaled - sum / count - normal * (projection / count)));
  }
  if (m.Wanted(1)) m.Set(1, SumOver(g * normal, outer, false));
  if (m.Wanted(2)) m.Set(2, SumOver(g, outer, false));
  return true;
}

// ---- RMS norm

bool RmsNorm(DecomposeContext& m) {
  Value input = m.Tensor("input");
  Value x = ToCompute(input), weight = OptionalIn(m, "weight");
  const Dims inner = Range(OuterRank(m, x), x.rank());
  if (!m.b().status().ok()) return false;
  const double eps = m.Float("eps", x.dtype() == v1::F64 ? std::numeric_limits<double>::epsilon()
                                                         : std::numeric_limits<float>::epsilon());
  Value rstd = Rsqrt(Mean(x * x, inner, true) + eps);
  Value y = x * rstd;
  if (weight.ok()) y = y * weight;
  m.Set(0, y);
  m.Set(1, rstd);
  return true;
}

bool RmsNormBackward(DecomposeContext& m) {
  Value g = ToCompute(m.Tensor("grad_out")), x = ToCompute(m.Tensor("input"));
  Value rstd = ToCompute(m.Tensor("rstd")), weight = OptionalIn(m, "weight");
  const int64_t outer_rank = OuterRank(m, x);
  if (!m.b().status().ok()) return false;
  const Dims inner = Range(outer_rank, x.rank()), outer = Range(0, outer_rank);
  Value normal = x * rstd;
  if (m.Wanted(0)) {
    Value scaled = weight.ok() ? g * weight : g;
    const Sym count{CountOf(x, inner)};
    m.Set(0, (scaled - normal * (Sum(normal * scaled, inner, true) / count)) * rstd);
  }
  if (m.Wanted(1)) m.Set(1, SumOver(g * normal, outer, false));
  return true;
}

// ---- batch norm: statistics by channel, dimension 1

// [C] to [C, 1, 1, …] so that it broadcasts along dimension 1 of a tensor of rank `rank`.
Value AlongChannels(const Value& v, int64_t rank) {
  if (!v.ok()) return v;
  std::vector<ExprId> sizes(std::max<int64_t>(rank - 1, 1), v.builder().Int(1));
  sizes[0] = CountOf(v, {});
  return View(v, std::move(sizes));
}

Dims AllButChannels(int64_t rank) {
  Dims dims;
  for (int64_t i = 0; i < rank; ++i) {
    if (i != 1) dims.push_back(i);
  }
  return dims;
}

// On the CPU eager's accumulators are F64. Images so large that one pass pays stay F32, for channel_moments
// looks for sums of F32: of those that are channels-last it sums blocks of points, whose errors are apart,
// first.
bool IsWide(const Machine& machine, const Value& x) {
  if (x.type().device != v1::CPU || x.dtype() != v1::F32) return false;
  const auto elements = x.builder().exprs().AsConst(CountOf(x, Range(0, x.rank())));
  return !elements || !cost::PaysOnePassMoments(machine, *elements);
}

// In its accumulator's dtype.
Value SumOfChannels(const Machine& machine, const Value& x, const Dims& dims) {
  return Sum(IsWide(machine, x) ? Cast(x, v1::F64) : x, dims, true);
}

Value MeanOfChannels(const Machine& machine, const Value& x, const Dims& dims) {
  return Cast(SumOfChannels(machine, x, dims) / Sym{CountOf(x, dims)}, x.dtype());
}

void SetStatistic(DecomposeContext& m, size_t i, const Value& statistic) {
  if (!m.Wanted(i)) return;
  const TensorType type = m.Type(i);
  const bool kept = type.sizes.size() == 1 && m.exprs().AsConst(type.sizes[0]) != 0;
  m.Set(i, kept ? View(statistic, type.sizes) : m.b().Full(type.sizes, 0.0, type.dtype));
}

// Results: output, saved mean, saved rstd; and, in the functional form, the new running mean and variance.
bool BatchNormAs(DecomposeContext& m, bool training) {
  Value x = ToCompute(m.Tensor("input"));
  Value weight = OptionalIn(m, "weight"), bias = OptionalIn(m, "bias");
  Value running_mean = OptionalIn(m, "running_mean"), running_var = OptionalIn(m, "running_var");
  if (!x.ok() || x.rank() < 2) {
    m.b().Fail("batch normalization needs rank 2 or more");
    return false;
  }
  const double eps = m.Float("eps"), momentum = m.Float("momentum");
  const int64_t rank = x.rank();
  const Dims dims = AllButChannels(rank);
  if (!training && !(running_mean.ok() && running_var.ok())) {
    m.b().Fail("batch normalization without training needs running statistics");
    return false;
  }
  Moments moments;
  Value rstd;
  if (training) {
    moments.mean = MeanOfChannels(m.machine(), x, dims);
    moments.centered = x - moments.mean;
    moments.variance = MeanOfChannels(m.machine(), moments.centered * moments.centered, dims);
    rstd = Rsqrt(moments.variance + eps);
  } else {
    moments.centered = x - AlongChannels(running_mean, rank);
    rstd = Rsqrt(AlongChannels(running_var, rank) + eps);
  }
  Value y = moments.centered * rstd;
  if (weight.ok()) y = y * AlongChannels(weight, rank);
  if (bias.ok()) y = y + AlongChannels(bias, rank);
  m.Set(0, y);
  if (!training) {
    SetStatistic(m, 1, running_mean);  // kept on a GPU only
    SetStatistic(m, 2, rstd);
    m.Set(3, running_mean);
    m.Set(4, running_var);
    return true;
  }
  SetStatistic(m, 1, moments.mean);
  SetStatistic(m, 2, rstd);
  if (m.Wanted(3) && running_mean.ok()) {
    Value batch_mean = View(moments.mean, running_mean.sizes());
    m.Set(3, momentum * batch_mean + (1.0 - momentum) * running_mean);
  }
  if (m.Wanted(4) && running_var.ok()) {
    const ExprId count = CountOf(x, dims);
    Value unbiased =
        View(moments.variance, running_var.sizes()) * Sym{count} / Sym{m.exprs().Sub(count, m.b().Int(1))};
    m.Set(4, momentum * unbiased + (1.0 - momentum) * running_var);
  }
  return true;
}

bool BatchNorm(DecomposeContext& m) { return BatchNormAs(m, m.Bool("training", false)); }
bool BatchNormInference(DecomposeContext& m) { return BatchNormAs(m, false); }

bool BatchNormBackward(DecomposeContext& m) {
  Value g = ToCompute(m.Tensor("grad_out")), x = ToCompute(m.Tensor("input"));
  Value weight = OptionalIn(m, "weight");
  const bool train = m.Bool("train", false);
  if (!x.ok() || x.rank() < 2) {
    m.b().Fail("batch normalization needs rank 2 or more");
    return false;
  }
  const int64_t rank = x.rank();
  const Dims dims = AllButChannels(rank);
  Value mean = AlongChannels(OptionalIn(m, train ? "save_mean" : "running_mean"), rank);
  Value rstd = train ? AlongChannels(OptionalIn(m, "save_invstd"), rank)
                     : Rsqrt(AlongChannels(OptionalIn(m, "running_var"), rank) + m.Float("eps"));
  if (!mean.ok() || !rstd.ok()) {
    m.b().Fail("batch normalization's gradient needs its statistics");
    return false;
  }
  const Sym count{CountOf(x, dims)};
  Value centered = x - mean;
  Value sum = SumOfChannels(m.machine(), g, dims);
  Value dot = SumOfChannels(m.machine(), g * centered, dims);
  Value wide_rstd = Cast(rstd, dot.dtype());
  const auto narrow = [&](const Value& statistic) { return Cast(statistic, x.dtype()); };
  if (m.Wanted(0)) {
    Value scale = weight.ok() ? rstd * AlongChannels(weight, rank) : rstd;
    Value d = g;
    if (train) d = g - narrow(sum / count) - centered * narrow(dot / count * (wide_rstd * wide_rstd));
    m.Set(0, d * scale);
  }
  if (m.Wanted(1)) m.Set(1, View(narrow(dot * wide_rstd), m.Type(1).sizes));
  if (m.Wanted(2)) m.Set(2, View(sum, m.Type(2).sizes));
  return true;
}

// ---- group norm, on [N, groups, channels of a group, pixels]

struct Groups {
  ExprId batch, groups, channels, pixels;
  std::vector<ExprId> Sizes() const { return {batch, groups, channels, pixels}; }
};

Groups GroupsOf(DecomposeContext& m) {
  Groups g;
  g.batch = m.Sym("N");
  g.groups = m.Sym("group");
  if (auto count = m.exprs().AsConst(g.groups); !count || *count < 1) {
    m.b().Fail("the number of groups has to be positive");
    g.groups = m.b().Int(1);
  }
  g.channels = m.exprs().FloorDiv(m.Sym("C"), g.groups);
  g.pixels = m.Sym("HxW");
  return g;
}

bool GroupNorm(DecomposeContext& m) {
  Value input = m.Tensor("input");
  Value weight = OptionalIn(m, "weight"), bias = OptionalIn(m, "bias");
  const Groups groups = GroupsOf(m);
  Value x = View(ToCompute(input), groups.Sizes());
  if (!x.ok()) return false;
  Moments moments = MomentsOf(x, {2, 3});
  Value rstd = Rsqrt(moments.variance + m.Float("eps"));
  Value y = moments.centered * rstd;
  const std::vector<ExprId> by_channel = {groups.groups, groups.channels, m.b().Int(1)};
  if (weight.ok()) y = y * View(weight, by_channel);
  if (bias.ok()) y = y + View(bias, by_channel);
  m.Set(0, View(y, input.sizes()));
  m.Set(1, Squeeze(moments.mean, {2, 3}));
  m.Set(2, Squeeze(rstd, {2, 3}));
  return true;
}

bool GroupNormBackward(DecomposeContext& m) {
  const Groups groups = GroupsOf(m);
  Value input = m.Tensor("input");
  Value g = View(ToCompute(m.Tensor("grad_out")), groups.Sizes()), x = View(ToCompute(input), groups.Sizes());
  const std::vector<ExprId> by_group = {groups.batch, groups.groups, m.b().Int(1), m.b().Int(1)};
  Value mean = View(ToCompute(m.Tensor("mean")), by_group),
        rstd = View(ToCompute(m.Tensor("rstd")), by_group);
  Value weight = OptionalIn(m, "weight");
  if (!g.ok() || !x.ok() || !mean.ok() || !rstd.ok()) return false;
  Value normal = (x - mean) * rstd;
  if (m.Wanted(0)) {
    Value scaled = weight.ok() ? g * View(weight, {groups.groups, groups.channels, m.b().Int(1)}) : g;
    const Sym count{m.exprs().Mul(groups.channels, groups.pixels)};
    Value sum = Sum(scaled, {2, 3}, true);
    Value projection = Sum(scaled * normal, {2, 3}, true);
    m.Set(0, View(rstd * (scaled - sum / count - normal * (projection / count)), input.sizes()));
  }
  if (m.Wanted(1)) m.Set(1, View(Sum(g * normal, {0, 3}, false), m.Type(1).sizes));
  if (m.Wanted(2)) m.Set(2, View(Sum(g, {0, 3}, false), m.Type(2).sizes));
  return true;
}

constexpr DecompositionRow kRows[] = {
    {"native_layer_norm", LayerNorm},
    {"native_layer_norm_backward", LayerNormBackward},
    {"_fused_rms_norm", RmsNorm},
    {"_fused_rms_norm_backward", RmsNormBackward},
    {"_native_batch_norm_legit_functional", BatchNorm},
    {"_native_batch_norm_legit.no_stats", BatchNorm},
    {"native_batch_norm", BatchNorm},
    {"_native_batch_norm_legit_no_training", BatchNormInference},
    {"native_batch_norm_backward", BatchNormBackward},
    {"native_group_norm", GroupNorm},
    {"native_group_norm_backward", GroupNormBackward},
};

}  // namespace

absl::Span<const DecompositionRow> NormalizationRows() { return kRows; }

}  // namespace kiln
