// Random operators in terms of uniform numbers in [0, 1). Dropout's gradient is here too: it has no
// randomness of its own, but belongs to its forward.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "compiler/graph/dtype_range.h"
#include "compiler/passes/decomposition.h"

namespace kiln {
namespace {

v1::DType ComputeFloat(v1::DType dtype) { return dtype == v1::F64 ? v1::F64 : v1::F32; }

Value UniformDeclared(DecomposeContext& m) {
  return m.b().Rand(m.Type().sizes, ComputeFloat(m.Type().dtype));
}

// Of 16 bits, where rounding would make a 1 of what is just below: as many bits as the dtype has, as torch.
Value UniformResult(DecomposeContext& m) {
  Value u = UniformDeclared(m);
  if (!IsHalf(m.Type().dtype)) return u;
  const double steps = 1 << SignificandBits(m.Type().dtype);
  return Floor(u * steps) * (1 / steps);
}

bool Rand(DecomposeContext& m) {
  if (m.node().target == Op::kRand && m.node().args.size() == 2 && m.Has("dtype") &&
      m.Syms("size") == m.Type().sizes && m.Type().dtype == ComputeFloat(m.Type().dtype)) {
    return false;  // core
  }
  return m.Return(UniformResult(m));
}

// On a GPU such an assertion ends all work on it (decompose_losses.cc).
void AssertOnCpu(DecomposeContext& m, const Value& holds, absl::string_view message) {
  if (m.Type().device == v1::CPU) m.b().Assert(holds, message);
}

// NaN is no probability.
bool BernoulliOf(DecomposeContext& m, const Value& p) {
  AssertOnCpu(m, LogicalAnd(Ge(p, 0), Le(p, 1)),
              "Expected p_in >= 0 && p_in <= 1 to be true, but got false.");
  Value u = UniformDeclared(m);
  return m.Return(Cast(Lt(u, Cast(p, u.dtype())), m.Type().dtype));
}

bool BernoulliP(DecomposeContext& m) {
  const Operand p = m.Scalar("p");
  if (p.is_tensor()) return BernoulliOf(m, p.tensor);
  return m.Return(Cast(Lt(UniformDeclared(m), p), m.Type().dtype));
}

bool BernoulliSelf(DecomposeContext& m) { return BernoulliOf(m, m.Tensor("self")); }

// Box and Muller, of 1 - u so that the logarithm is finite.
Value StandardNormal(DecomposeContext& m) {
  Value radius = Sqrt(-2.0 * Log(1.0 - UniformDeclared(m)));
  Value angle = UniformDeclared(m) * (2.0 * M_PI);
  return radius * m.b().Unary(Op::kCos, angle);
}

bool Randn(DecomposeContext& m) { return m.Return(StandardNormal(m)); }

bool Normal(DecomposeContext& m) {
  Operand mean = m.Scalar("mean", 0.0), std = m.Scalar("std", 1.0);
  const v1::DType compute = ComputeFloat(m.Type().dtype);
  if (std.is_tensor()) AssertOnCpu(m, Ge(std.tensor, 0), "normal expects all elements of std >= 0.0");
  for (Operand* operand : {&mean, &std}) {
    if (operand->is_tensor()) *operand = Cast(operand->tensor, compute);
  }
  return m.Return(StandardNormal(m) * std + mean);
}

bool Uniform(DecomposeContext& m) {
  const double from = m.Float("from", 0), to = m.Float("to", 1);
  if (from > to)
    m.b().Fail(absl::StrCat("uniform expects a range [from, to), but found from=", from, " > to=", to));
  return m.Return(UniformResult(m) * (to - from) + from);
}

// Out of training, or with nothing to drop, dropout is the identity.
bool NativeDropout(DecomposeContext& m) {
  Value x = m.Tensor("input");
  const double p = m.Float("p");
  const bool train = m.Bool("train", true);
  if (train && p > 0 && p < 1) return false;  // core
  if (!x.ok()) return false;
  const bool drops_all = train && p >= 1;
  if (!drops_all) {
    m.Set(0, x);
  } else if (m.Type().device == v1::CPU) {
    m.Set(0, x * 0.0);  // of infinities NaN, as eager's product
  } else {
    m.Set(0, m.b().Full(x.sizes(), 0.0, x.dtype()));
  }
  if (m.Wanted(1)) m.Set(1, m.b().Full(x.sizes(), !drops_all, m.Type(1).dtype));
  return true;
}

bool NativeDropoutBackward(DecomposeContext& m) {
  Value g = ToCompute(m.Tensor("grad_output")), mask = m.Tensor("mask");
  if (!g.ok() || !mask.ok()) return false;
  return m.Return(Cast(mask, g.dtype()) * m.Float("scale") * g);
}

constexpr DecompositionRow kRows[] = {
    {"rand", Rand},
    {"rand_like", Rand},
    {"bernoulli", BernoulliSelf},
    {"bernoulli.p", BernoulliP},
    {"bernoulli.Tensor", BernoulliP},
    {"randn", Randn},
    {"randn_like", Randn},
    {"normal.Tensor_float", Normal},
    {"normal.float_Tensor", Normal},
    {"normal.Tensor_Tensor", Normal},
    {"normal.float_float", Normal},
    {"normal_functional", Normal},
    {"uniform", Uniform},
    {"native_dropout", NativeDropout},
};

// Those that draw nothing themselves: never left out.
constexpr DecompositionRow kQuietRows[] = {
    {"native_dropout_backward", NativeDropoutBackward},
};

}  // namespace

absl::Span<const DecompositionRow> RandomRows() { return kRows; }
absl::Span<const DecompositionRow> DropoutRows() { return kQuietRows; }

}  // namespace kiln
