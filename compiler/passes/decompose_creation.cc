// Tensors made from nothing: everything becomes `full`, a range, or a comparison of ranges.
#include <cmath>

#include "absl/strings/match.h"
#include "compiler/passes/decomposition.h"

namespace kiln {
namespace {

Value FullDeclared(DecomposeContext& m, const Operand& value) {
  return m.b().Full(m.Type().sizes, value, m.Type().dtype);
}

bool Zeros(DecomposeContext& m) { return m.Return(FullDeclared(m, 0)); }
bool Ones(DecomposeContext& m) { return m.Return(FullDeclared(m, 1)); }

bool FullValue(DecomposeContext& m) {
  const char* name = m.Has("fill_value") ? "fill_value" : "s";
  const Operand value = m.Scalar(name);
  if (m.node().target == Op::kFull && m.node().args.size() == 3 && m.Has("dtype") &&
      m.Syms("size") == m.Type().sizes) {
    return false;  // core
  }
  if (value.is_tensor()) return m.Return(Expand(Cast(value.tensor, m.Type().dtype), m.Type().sizes));
  return m.Return(FullDeclared(m, value));
}

bool Arange(DecomposeContext& m) {
  const TensorType type = m.Type();
  if (m.node().target == Op::kArangeStartStep && m.node().args.size() == 4 && m.Has("dtype") &&
      m.Has("step")) {
    return false;  // core
  }
  GraphBuilder& b = m.b();
  return m.Return(b.Node(Op::kArangeStartStep,
                         {{"start", b.ToArgument(m.Scalar("start", 0))},
                          {"end", b.ToArgument(m.Scalar("end"))},
                          {"step", b.ToArgument(m.Scalar("step", 1))},
                          {"dtype", DTypeArg{type.dtype}}},
                         b.Dense(type.dtype, type.sizes)));
}

bool PrimsIota(DecomposeContext& m) {
  const TensorType type = m.Type();
  if (type.sizes.size() != 1) return false;
  return m.Return(m.b().Arange(m.Scalar("start"), m.Scalar("step"), type.sizes[0], type.dtype));
}

// From both ends towards the middle, as ATen does.
bool Linspace(DecomposeContext& m) {
  const TensorType type = m.Type();
  if (!IsFloat(type.dtype) || type.sizes.size() != 1) return false;
  const v1::DType compute = type.dtype == v1::F64 ? v1::F64 : v1::F32;
  const double start = m.Float("start"), end = m.Float("end");
  const int64_t steps = m.Int("steps");
  if (steps < 2) return m.Return(FullDeclared(m, start));
  const double step = (end - start) / static_cast<double>(steps - 1);
  Value i = m.b().Iota(type.sizes[0]);
  Value up = start + Cast(i, compute) * step;
  Value down = end - Cast(m.b().Binary(Op::kSubTensor, steps - 1, i), compute) * step;
  return m.Return(Where(Lt(i, steps / 2), up, down));
}

// The differences column - row of a matrix of these sizes, broadcastable.
struct Grid {
  Value rows, columns;
};
Grid GridOf(DecomposeContext& m, ExprId rows, ExprId columns) {
  return {Unsqueeze(m.b().Iota(rows), 1), Unsqueeze(m.b().Iota(columns), 0)};
}

bool Eye(DecomposeContext& m) {
  const TensorType type = m.Type();
  if (type.sizes.size() != 2) return false;
  Grid grid = GridOf(m, type.sizes[0], type.sizes[1]);
  return m.Return(Cast(Eq(grid.rows, grid.columns), type.dtype));
}

bool Triangle(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok() || x.rank() < 2) return false;
  const Sym diagonal{m.Sym("diagonal", m.b().Int(0))};
  Grid grid = GridOf(m, x.size(-2), x.size(-1));
  Value offset = grid.columns - grid.rows;
  Value keep = m.node().target == Op::kTril ? Le(offset, diagonal) : Ge(offset, diagonal);
  const Operand zero = x.dtype() == v1::BOOL ? Operand(false) : Operand(0);
  return m.Return(Where(keep, x, zero));
}

constexpr DecompositionRow kRows[] = {
    {"prims.iota", PrimsIota},
    {"zeros", Zeros},
    {"_efficientzerotensor", Zeros},
    {"zeros_like", Zeros},
    {"new_zeros", Zeros},
    {"empty.memory_format", Zeros},
    {"empty_like", Zeros},
    {"empty_strided", Zeros},
    {"empty_permuted", Zeros},
    {"new_empty", Zeros},
    {"new_empty_strided", Zeros},
    {"ones", Ones},
    {"ones_like", Ones},
    {"new_ones", Ones},
    {"full", FullValue},
    {"full_like", FullValue},
    {"new_full", FullValue},
    {"scalar_tensor", FullValue},
    {"arange", Arange},
    {"arange.start", Arange},
    {"arange.start_step", Arange},
    {"linspace", Linspace},
    {"eye", Eye},
    {"eye.m", Eye},
    {"tril", Triangle},
    {"triu", Triangle},
};

}  // namespace

absl::Span<const DecompositionRow> CreationRows() { return kRows; }

}  // namespace kiln
