// Products that are not a library's gemm as they stand: into mm, addmm and bmm, or into a
// product and a sum where there is only a vector's work.
#include "compiler/passes/decomposition.h"
#include "compiler/passes/types.h"

namespace kiln {
namespace {

bool Linear(DecomposeContext& m) {
  Value x = m.Tensor("input"), weight = m.Tensor("weight"), bias = m.OptionalTensor("bias");
  if (!x.ok() || !weight.ok() || x.rank() < 1 || weight.rank() != 2 || (bias.ok() && bias.rank() != 1))
    return false;
  std::vector<ExprId> sizes = x.sizes();
  const ExprId features = sizes.back();
  sizes.pop_back();
  Value rows = View(x, {m.exprs().Product(sizes), features});
  sizes.push_back(weight.size(0));
  Value transposed = Transpose(weight, 0, 1);
  Value y = bias.ok() ? Matmul(rows, transposed, bias) : Matmul(rows, transposed);
  return m.Return(View(y, sizes));
}

// Products of low rank are summed natively: floats in F32 and more only.
bool SumsNatively(const Value& a, const Value& b) { return a.ok() && b.ok() && a.dtype() == b.dtype(); }

bool Mv(DecomposeContext& m) {
  Value a = m.Tensor("self"), v = m.Tensor("vec");
  if (!SumsNatively(a, v) || a.rank() != 2 || v.rank() != 1) return false;
  return m.Return(Sum(ToCompute(a) * ToCompute(v), {1}, false));
}

bool Dot(DecomposeContext& m) {
  Value a = m.Tensor("self"), b = m.Tensor(m.Has("other") ? "other" : "tensor");
  if (!SumsNatively(a, b) || a.rank() != 1 || b.rank() != 1) return false;
  return m.Return(Sum(ToCompute(a) * ToCompute(b), {0}, false));
}

// beta * self + alpha * product, without reading self where beta is 0.
Value Combined(DecomposeContext& m, const Value& self, Value product) {
  const double beta = m.Float("beta", 1), alpha = m.Float("alpha", 1);
  if (alpha != 1) product = product * alpha;
  if (beta == 0) return product;
  return (beta == 1 ? self : self * beta) + product;
}

bool Addmv(DecomposeContext& m) {
  Value self = m.Tensor("self"), a = m.Tensor("mat"), v = m.Tensor("vec");
  if (!SumsNatively(a, v) || !self.ok() || !IsFloat(a.dtype()) || a.rank() != 2 || v.rank() != 1)
    return false;
  return m.Return(Combined(m, ToCompute(self), Sum(ToCompute(a) * ToCompute(v), {1}, false)));
}

bool Outer(DecomposeContext& m) {
  Value a = m.Tensor("self"), b = m.Tensor("vec2");
  if (!a.ok() || !b.ok() || a.rank() != 1) return false;
  return m.Return(Unsqueeze(a, 1) * b);
}

bool Addr(DecomposeContext& m) {
  Value self = m.Tensor("self"), a = m.Tensor("vec1"), b = m.Tensor("vec2");
  if (!self.ok() || !a.ok() || !b.ok() || !IsFloat(a.dtype()) || a.rank() != 1) return false;
  const v1::DType compute = ComputeDType(m.Type().dtype);
  return m.Return(Combined(m, Cast(self, compute), Unsqueeze(Cast(a, compute), 1) * Cast(b, compute)));
}

constexpr DecompositionRow kRows[] = {
    {"linear", Linear}, {"mv", Mv},       {"dot", Dot},   {"vdot", Dot},
    {"addmv", Addmv},   {"outer", Outer}, {"ger", Outer}, {"addr", Addr},
};

}  // namespace

absl::Span<const DecompositionRow> MatmulRows() { return kRows; }

}  // namespace kiln
