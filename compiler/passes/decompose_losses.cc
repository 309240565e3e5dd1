// Loss functions and their gradients.
#include "compiler/passes/decomposition.h"

namespace kiln {
namespace {

enum Reduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };

Value In(DecomposeContext& m, absl::string_view name) { return ToCompute(m.Tensor(name)); }

Value OptionalIn(DecomposeContext& m, absl::string_view name) {
  Value value = m.OptionalTensor(name);
  return value.ok() ? ToCompute(value) : value;
}

Value Reduced(const Value& loss, int64_t reduction) {
  if (reduction == kMean) return Mean(loss, {}, false);
  if (reduction == kSum) return Sum(loss, {}, false);
  return loss;
}

bool ReturnReduced(DecomposeContext& m, const Value& loss) {
  return m.Return(Reduced(loss, m.Int("reduction", kMean)));
}

// The gradient of the loss divided by the number of elements where the loss is a mean.
Value Share(DecomposeContext& m, const Value& gradient, const Value& of) {
  if (m.Int("reduction", kMean) != kMean) return gradient;
  return gradient / Sym{CountOf(of, {})};
}

bool MseLoss(DecomposeContext& m) {
  Value d = In(m, "self") - In(m, "target");
  return ReturnReduced(m, d * d);
}

bool MseLossBackward(DecomposeContext& m) {
  Value g = In(m, "grad_output"), d = In(m, "self") - In(m, "target");
  return m.Return(Share(m, d * 2.0 * g, d));
}

bool L1Loss(DecomposeContext& m) { return ReturnReduced(m, Abs(In(m, "self") - In(m, "target"))); }

bool SmoothL1Loss(DecomposeContext& m) {
  const double beta = m.Float("beta", 1);
  Value d = Abs(In(m, "self") - In(m, "target"));
  if (beta == 0) return ReturnReduced(m, d);
  return ReturnReduced(m, Where(Lt(d, beta), 0.5 * (d * d) / beta, d - 0.5 * beta));
}

bool SmoothL1LossBackward(DecomposeContext& m) {
  const double beta = m.Float("beta");
  Value g = In(m, "grad_output"), d = In(m, "self") - In(m, "target");
  // NaN is no far end: of Sign it would be 0.
  Value slope = beta == 0 ? Sign(d) : Where(Ge(Abs(d), beta), Sign(d), d / beta);
  return m.Return(Share(m, slope * g, d));
}

bool HuberLoss(DecomposeContext& m) {
  const double delta = m.Float("delta", 1);
  Value d = Abs(In(m, "self") - In(m, "target"));
  return ReturnReduced(m, Where(Le(d, delta), 0.5 * (d * d), delta * (d - 0.5 * delta)));
}

bool HuberLossBackward(DecomposeContext& m) {
  const double delta = m.Float("delta");
  Value g = In(m, "grad_output"), d = In(m, "self") - In(m, "target");
  Value slope = Minimum(Maximum(d, -delta), delta);
  return m.Return(Share(m, slope * g, d));
}

// NaN is not.
Value IsProbability(const Value& x) { return LogicalAnd(Ge(x, 0), Le(x, 1)); }

bool BinaryCrossEntropy(DecomposeContext& m) {
  Value x = In(m, "self"), target = In(m, "target"), weight = OptionalIn(m, "weight");
  // On a GPU such an assertion ends all work on it, so that no caller can take it for an answer.
  if (x.ok() && x.type().device == v1::CPU) {
    m.b().Assert(IsProbability(x), "all elements of input should be between 0 and 1");
    m.b().Assert(IsProbability(target), "all elements of target should be between 0 and 1");
  }
  Value loss = (target - 1.0) * Maximum(Log1p(-x), -100.0) - target * Maximum(Log(x), -100.0);
  return ReturnReduced(m, weight.ok() ? loss * weight : loss);
}

bool BinaryCrossEntropyBackward(DecomposeContext& m) {
  Value g = In(m, "grad_output"), x = In(m, "self"), target = In(m, "target"),
        weight = OptionalIn(m, "weight");
  Value d = g * (x - target) / Maximum(x * (1.0 - x), 1e-12);
  if (weight.ok()) d = d * weight;
  return m.Return(Share(m, d, x));
}

bool BinaryCrossEntropyWithLogits(DecomposeContext& m) {
  Value x = In(m, "self"), target = In(m, "target");
  Value weight = OptionalIn(m, "weight"), positive = OptionalIn(m, "pos_weight");
  Value tail = Log1p(Exp(-Abs(x))) + Maximum(-x, 0.0);
  if (positive.ok()) tail = ((positive - 1.0) * target + 1.0) * tail;
  Value loss = (1.0 - target) * x + tail;
  return ReturnReduced(m, weight.ok() ? loss * weight : loss);
}

// By operators of their own in eager, each of which rounds to F16 and BF16, and may leave their range.
bool SoftMarginLoss(DecomposeContext& m) {
  const Value self = m.Tensor("self");
  // ATen multiplies in place.
  return ReturnReduced(m, Log1p(Exp(-Cast(self * m.Tensor("target"), self.dtype()))));
}

bool SoftMarginLossBackward(DecomposeContext& m) {
  const Value x = m.Tensor("self"), target = m.Tensor("target"), z = Exp(-target * x);
  return m.Return(Share(m, -(target * z), x) / (z + 1.0) * m.Tensor("grad_output"));
}

// ---- negative log likelihood; classes are dimension 1, or 0 of a rank-1 input

int64_t ClassDim(const Value& x) { return x.rank() < 2 ? 0 : 1; }

// `weight` by class, shaped to broadcast along the classes of `x`.
Value AlongClasses(DecomposeContext& m, const Value& weight, const Value& x) {
  std::vector<ExprId> sizes(x.rank() - ClassDim(x), m.b().Int(1));
  sizes[0] = CountOf(weight, {});
  return View(weight, std::move(sizes));
}

bool NllLossForward(DecomposeContext& m) {
  Value x = In(m, "self"), target = m.Tensor("target"), weight = OptionalIn(m, "weight");
  if (!x.ok() || !target.ok() || x.rank() < 1 || target.rank() != x.rank() - 1) {
    m.b().Fail("the target needs one dimension less than the input");
    return false;
  }
  const int64_t reduction = m.Int("reduction", kMean), dim = ClassDim(x);
  Value counted = Ne(target, Sym{m.Sym("ignore_index")});
  Value safe = Unsqueeze(Where(counted, target, 0), dim);
  Value picked = -Squeeze(Gather(x, dim, safe), {dim});
  Value share;
  if (weight.ok()) {
    Value spread = Expand(AlongClasses(m, weight, x), x.sizes());
    share = Where(counted, Squeeze(Gather(spread, dim, safe), {dim}), 0.0);
    picked = picked * share;
  } else {
    share = Cast(counted, x.dtype());
  }
  Value loss = Where(counted, picked, 0.0);
  if (reduction == kNone) {
    m.Set(0, loss);
    if (m.Wanted(1)) m.Set(1, m.b().Full({}, 0.0, m.Type(1).dtype));
    return true;
  }
  Value total = Sum(share, {}, false), sum = Sum(loss, {}, false);
  m.Set(0, reduction == kMean ? sum / total : sum);
  m.Set(1, total);
  return true;
}

bool NllLossBackward(DecomposeContext& m) {
  Value g = In(m, "grad_output"), x = In(m, "self"), target = m.Tensor("target"),
        weight = OptionalIn(m, "weight");
  if (!g.ok() || !x.ok() || !target.ok() || x.rank() < 1 || target.rank() != x.rank() - 1) {
    m.b().Fail("the target needs one dimension less than the input");
    return false;
  }
  const int64_t dim = ClassDim(x), reduction = m.Int("reduction");
  if (reduction == kMean) g = g / In(m, "total_weight");
  if (reduction == kNone) g = Unsqueeze(g, dim);
  target = Unsqueeze(target, dim);
  Value classes = AlongClasses(m, m.b().Iota(x.size(dim), target.dtype()), x);
  Value hit = LogicalAnd(Eq(classes, target), Ne(target, Sym{m.Sym("ignore_index")}));
  Value d = -g;
  if (weight.ok()) d = d * AlongClasses(m, weight, x);
  return m.Return(Where(hit, d, 0.0));
}

constexpr DecompositionRow kRows[] = {
    {"mse_loss", MseLoss},
    {"mse_loss_backward", MseLossBackward},
    {"l1_loss", L1Loss},
    {"smooth_l1_loss", SmoothL1Loss},
    {"smooth_l1_loss_backward", SmoothL1LossBackward},
    {"huber_loss", HuberLoss},
    {"huber_loss_backward", HuberLossBackward},
    {"binary_cross_entropy", BinaryCrossEntropy},
    {"binary_cross_entropy_backward", BinaryCrossEntropyBackward},
    {"binary_cross_entropy_with_logits", BinaryCrossEntropyWithLogits},
    {"soft_margin_loss", SoftMarginLoss},
    {"soft_margin_loss_backward", SoftMarginLossBackward},
    {"nll_loss_forward", NllLossForward},
    {"nll_loss_backward", NllLossBackward},
    {"nll_loss2d_forward", NllLossForward},
    {"nll_loss2d_backward", NllLossBackward},
};

}  // namespace

absl::Span<const DecompositionRow> LossRows() { return kRows; }

}  // namespace kiln
