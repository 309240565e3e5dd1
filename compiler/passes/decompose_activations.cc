// Activation functions and their gradients, as ATen's kernels compute them.
#include <cmath>

#include "compiler/passes/decomposition.h"
#include "compiler/passes/types.h"
#include "compiler/target/device.h"

namespace kiln {
namespace {

constexpr double kSqrt2 = 1.41421356237309504880;
constexpr double kSqrtHalf = 0.70710678118654752440;
constexpr double kTwoOverSqrtPi = 1.12837916709551257390;
constexpr double kGeluCubic = 0.044715;

Value In(DecomposeContext& m, absl::string_view name) { return ToCompute(m.Tensor(name)); }

Value Softplus(const Value& x) { return Log1p(Exp(x)); }

// log(1 + exp(x)) that neither overflows nor loses small values.
Value StableSoftplus(const Value& x) { return Maximum(x, 0.0) + Log1p(Exp(-Abs(x))); }

bool Gelu(DecomposeContext& m) {
  Value x = In(m, "self");
  if (m.String("approximate", "none") == "tanh") {
    Value inner = kSqrt2 * kTwoOverSqrtPi * 0.5 * (x + kGeluCubic * (x * x * x));
    return m.Return(0.5 * x * OnePlusTanh(inner));
  }
  return m.Return(0.5 * x * OnePlusErf(x * kSqrtHalf));
}

bool GeluBackward(DecomposeContext& m) {
  Value g = In(m, "grad_output"), x = In(m, "self");
  if (m.String("approximate", "none") == "tanh") {
    const double beta = kSqrt2 * kTwoOverSqrtPi * 0.5;
    // Below -10 the slope is none, but its factors grow or are 0 times infinity: bounded there.
    x = Maximum(x, -10.0);
    Value square = x * x;
    // s = 1 + tanh, and 1 - tanh = s power: 2 - s would lose what s rounds.
    Value inner = beta * (x + kGeluCubic * (square * x));
    Value power = Exp(-2.0 * inner);
    Value s = 2.0 / (1.0 + power);
    Value left = 0.5 * x;
    Value left_slope = 0.5 * s;
    Value right_slope = left * (s * (s * power)) * (beta * (1.0 + 3.0 * kGeluCubic * square));
    return m.Return(g * (left_slope + right_slope));
  }
  Value cdf = 0.5 * OnePlusErf(x * kSqrtHalf);
  Value pdf = Exp(-0.5 * (x * x)) * (kTwoOverSqrtPi * kSqrtHalf * 0.5);
  return m.Return(g * (cdf + x * pdf));
}

bool Silu(DecomposeContext& m) {
  Value x = In(m, "self");
  return m.Return(x * Sigmoid(x));
}

bool SiluBackward(DecomposeContext& m) {
  Value g = In(m, "grad_output"), x = In(m, "self");
  Value s = Sigmoid(x);
  return m.Return(g * s * (1.0 + x * (1.0 - s)));
}

Value Clamp(const Value& x, const Operand& low, const Operand& high) {
  return Minimum(Maximum(x, low), high);
}

constexpr double kSixthOfF32 = 1.0F / 6.0F;  // eager's in places, for F64 too

Value SixthOf(DecomposeContext& m, const Value& x) {
  return IsGpu(m.Type().device) ? x * kSixthOfF32 : x / 6.0;
}

bool Hardswish(DecomposeContext& m) {
  Value x = In(m, "self");
  return m.Return(SixthOf(m, x * Clamp(x + 3.0, 0.0, 6.0)));
}

bool HardswishBackward(DecomposeContext& m) {
  Value g = In(m, "grad_output"), x = In(m, "self");
  return m.Return(Where(Le(x, -3.0), 0.0, Where(Lt(x, 3.0), g * (x / 3.0 + 0.5), g)));
}

bool Hardsigmoid(DecomposeContext& m) { return m.Return(SixthOf(m, Clamp(In(m, "self") + 3.0, 0.0, 6.0))); }

bool HardsigmoidBackward(DecomposeContext& m) {
  Value g = In(m, "grad_output"), x = In(m, "self");
  return m.Return(Where(LogicalAnd(Gt(x, -3.0), Lt(x, 3.0)), g * kSixthOfF32, 0.0));
}

bool Hardtanh(DecomposeContext& m) {
  return m.Return(Clamp(In(m, "self"), m.Scalar("min_val", -1), m.Scalar("max_val", 1)));
}

bool HardtanhBackward(DecomposeContext& m) {
  Value g = In(m, "grad_output"), x = In(m, "self");
  return m.Return(Where(LogicalOr(Le(x, m.Scalar("min_val")), Ge(x, m.Scalar("max_val"))), 0.0, g));
}

bool Relu6(DecomposeContext& m) { return m.Return(Clamp(In(m, "self"), 0, 6)); }

bool LeakyRelu(DecomposeContext& m) {
  Value x = In(m, "self");
  return m.Return(Where(Gt(x, 0.0), x, x * m.Float("negative_slope", 0.01)));
}

bool LeakyReluBackward(DecomposeContext& m) {
  Value g = In(m, "grad_output"), x = In(m, "self");
  return m.Return(Where(Gt(x, 0.0), g, g * m.Float("negative_slope")));
}

Value EluOf(const Value& x, double alpha, double scale, double input_scale) {
  return Where(Gt(x, 0.0), x * scale, Expm1(x * input_scale) * (alpha * scale));
}

bool Elu(DecomposeContext& m) {
  return m.Return(EluOf(In(m, "self"), m.Float("alpha", 1), m.Float("scale", 1), m.Float("input_scale", 1)));
}

bool EluBackward(DecomposeContext& m) {
  Value g = In(m, "grad_output"), x = In(m, "self_or_result");
  const double alpha = m.Float("alpha"), scale = m.Float("scale"), input_scale = m.Float("input_scale");
  const double negative = alpha * scale;
  Value slope = m.Bool("is_result", false) ? input_scale * (x + negative)
                                           : (input_scale * negative) * Exp(x * input_scale);
  return m.Return(Where(Le(x, 0.0), g * slope, g * scale));
}

bool Celu(DecomposeContext& m) {
  const double alpha = m.Float("alpha", 1);
  return m.Return(EluOf(In(m, "self"), alpha, 1.0, 1.0 / alpha));
}

bool Selu(DecomposeContext& m) {
  return m.Return(
      EluOf(In(m, "self"), 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1.0));
}

bool SoftplusForward(DecomposeContext& m) {
  Value x = In(m, "self");
  const double beta = m.Float("beta", 1), threshold = m.Float("threshold", 20);
  Value scaled = x * beta;
  return m.Return(Where(Gt(scaled, threshold), x, Softplus(scaled) / beta));
}

bool SoftplusBackward(DecomposeContext& m) {
  Value g = In(m, "grad_output"), x = In(m, "self");
  const double beta = m.Float("beta", 1), threshold = m.Float("threshold", 20);
  Value scaled = x * beta;
  Value z = Exp(scaled);
  return m.Return(Where(Gt(scaled, threshold), g, g * z / (z + 1.0)));
}

bool Mish(DecomposeContext& m) {
  Value x = In(m, "self");
  return m.Return(x * Tanh(StableSoftplus(x)));
}

bool MishBackward(DecomposeContext& m) {
  Value g = In(m, "grad_output"), x = In(m, "self");
  Value t = Tanh(StableSoftplus(x));
  return m.Return(g * (t + x * Sigmoid(x) * (1.0 - t * t)));
}

bool Threshold(DecomposeContext& m) {
  Value x = In(m, "self");
  return m.Return(Where(Le(x, m.Scalar("threshold")), m.Scalar("value"), x));
}

bool ThresholdBackward(DecomposeContext& m) {
  Value g = In(m, "grad_output"), x = In(m, "self");
  return m.Return(Where(Le(x, m.Scalar("threshold")), 0, g));
}

bool SigmoidBackward(DecomposeContext& m) {
  Value g = In(m, "grad_output"), y = In(m, "output");
  return m.Return(g * ((1.0 - y) * y));
}

bool TanhBackward(DecomposeContext& m) {
  Value g = In(m, "grad_output"), y = In(m, "output");
  return m.Return(g * (1.0 - y * y));
}

bool Prelu(DecomposeContext& m) {
  Value x = In(m, "self"), w = In(m, "weight");
  return m.Return(Where(Gt(x, 0.0), x, w * x));
}

bool PreluBackward(DecomposeContext& m) {
  Value g = In(m, "grad_output"), x = In(m, "self"), w = In(m, "weight");
  Value positive = Gt(x, 0.0);
  m.Set(0, Where(positive, g, w * g));
  m.Set(1, Where(positive, 0.0, x * g));
  return true;
}

std::pair<Value, Value> Halves(DecomposeContext& m, const Value& x, int64_t dim) {
  const ExprId size = x.size(dim), half = m.exprs().FloorDiv(size, m.b().Int(2));
  return {Slice(x, dim, m.b().Int(0), half, 1), Slice(x, dim, half, size, 1)};
}

bool Glu(DecomposeContext& m) {
  Value x = In(m, "self");
  auto [a, b] = Halves(m, x, m.Dim("dim", x, -1));
  return m.Return(a * Sigmoid(b));
}

bool GluBackward(DecomposeContext& m) {
  Value g = In(m, "grad_output"), x = In(m, "self");
  const int64_t dim = m.Dim("dim", x);
  auto [a, b] = Halves(m, x, dim);
  Value s = Sigmoid(b);
  return m.Return(m.b().Cat({s * g, (1.0 - s) * s * g * a}, dim));
}

bool LogSigmoidForward(DecomposeContext& m) {
  Value x = In(m, "self");
  Value z = Exp(-Abs(x));
  m.Set(0, Minimum(x, 0.0) - Log1p(z));
  if (m.result_count() < 2 || !m.Wanted(1)) return true;
  const TensorType buffer = m.Type(1);  // the CPU keeps z, CUDA nothing
  m.Set(1, buffer.sizes == x.sizes() ? z : m.b().Full(buffer.sizes, 0.0, buffer.dtype));
  return true;
}

bool LogSigmoidBackward(DecomposeContext& m) {
  Value g = In(m, "grad_output"), x = In(m, "self");
  Value negative = Lt(x, 0.0);
  Value z = Exp(-Abs(x));
  Value tail = z / (1.0 + z);
  return m.Return(g * Where(negative, 1.0 - tail, tail));
}

// Bounds of logit's argument, which eager rounds to half precision on the CPU.
struct LogitBounds {
  double low, high;
};

LogitBounds BoundsOfLogit(DecomposeContext& m, double eps) {
  if (IsGpu(m.Type().device)) return {eps, 1.0 - eps};
  const double low = RoundedNumber(eps, m.Type().dtype);
  return {low, RoundedNumber(1.0 - low, m.Type().dtype)};
}

bool Logit(DecomposeContext& m) {
  Value x = Cast(m.Tensor("self"), ComputeDType(m.Type().dtype));
  if (m.Has("eps")) {
    const auto [low, high] = BoundsOfLogit(m, m.Float("eps"));
    x = Clamp(x, low, high);
  }
  return m.Return(Log(x / (1.0 - x)));
}

bool LogitBackward(DecomposeContext& m) {
  Value g = In(m, "grad_output"), x = In(m, "self");
  const auto [low, high] = BoundsOfLogit(m, m.Float("eps", 0));
  Value outside = LogicalOr(Lt(x, low), Gt(x, high));  // NaN is not
  return m.Return(Where(outside, m.Has("eps") ? 0.0 : std::nan(""), g / (x * (1.0 - x))));
}

Value Within(const Value& x, double bound) { return LogicalAnd(Ge(x, -bound), Le(x, bound)); }

bool Softshrink(DecomposeContext& m) {
  Value x = In(m, "self");
  // On a CPU eager rounds it in some versions of torch; then it comes rounded (client/python/kiln/graph.py).
  const double given = m.Float("lambd", 0.5);
  const double bound = IsGpu(m.Type().device) ? RoundedNumber(given, m.Type().dtype) : given;
  return m.Return(Where(Within(x, bound), 0.0, Where(Gt(x, 0.0), x - bound, x + bound)));
}

bool Hardshrink(DecomposeContext& m) {
  Value x = In(m, "self");
  return m.Return(Where(Within(x, RoundedNumber(m.Float("lambd", 0.5), m.Type().dtype)), 0.0, x));
}

bool ShrinkBackward(DecomposeContext& m) {
  Value g = In(m, m.Has("grad_out") ? "grad_out" : "grad_output"), x = In(m, "self");
  return m.Return(Where(Within(x, RoundedNumber(m.Float("lambd"), m.Type().dtype)), 0.0, g));
}

constexpr DecompositionRow kRows[] = {
    {"gelu", Gelu},
    {"gelu_backward", GeluBackward},
    {"silu", Silu},
    {"silu_backward", SiluBackward},
    {"hardswish", Hardswish},
    {"hardswish_backward", HardswishBackward},
    {"hardsigmoid", Hardsigmoid},
    {"hardsigmoid_backward", HardsigmoidBackward},
    {"hardtanh", Hardtanh},
    {"hardtanh_backward", HardtanhBackward},
    {"relu6", Relu6},
    {"leaky_relu", LeakyRelu},
    {"leaky_relu_backward", LeakyReluBackward},
    {"elu", Elu},
    {"elu_backward", EluBackward},
    {"celu", Celu},
    {"selu", Selu},
    {"softplus", SoftplusForward},
    {"softplus_backward", SoftplusBackward},
    {"mish", Mish},
    {"mish_backward", MishBackward},
    {"threshold", Threshold},
    {"threshold_backward", ThresholdBackward},
    {"sigmoid_backward", SigmoidBackward},
    {"tanh_backward", TanhBackward},
    {"_prelu_kernel", Prelu},
    {"_prelu_kernel_backward", PreluBackward},
    {"glu", Glu},
    {"glu_backward", GluBackward},
    {"log_sigmoid_forward", LogSigmoidForward},
    {"log_sigmoid", LogSigmoidForward},
    {"log_sigmoid_backward", LogSigmoidBackward},
    {"logit", Logit},
    {"logit_backward", LogitBackward},
    {"softshrink", Softshrink},
    {"softshrink_backward", ShrinkBackward},
    {"hardshrink", Hardshrink},
    {"hardshrink_backward", ShrinkBackward},
};

}  // namespace

absl::Span<const DecompositionRow> ActivationRows() { return kRows; }

}  // namespace kiln
