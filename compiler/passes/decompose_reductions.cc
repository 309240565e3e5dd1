// Reductions: explicit dimension lists, means, variances, norms, softmax and its kin.
#include <cmath>
#include <limits>

#include "compiler/passes/decomposition.h"
#include "compiler/passes/types.h"

namespace kiln {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
using Dims = std::vector<int64_t>;

v1::DType ResultCompute(DecomposeContext& m) { return ComputeDType(m.Type().dtype); }

// The core form: every dimension listed in order, no dtype argument, nothing to convert first.
bool IsCanonical(DecomposeContext& m, const Value& x, const Dims& dims) {
  if (!x.ok() || x.rank() == 0 || m.Has("dtype")) return false;
  const Argument* given = m.node().Find("dim");
  return given != nullptr && std::holds_alternative<IntListArg>(*given) && m.Ints("dim") == dims;
}

bool SumDims(DecomposeContext& m) {
  Value x = m.Tensor("self");
  const Dims dims = m.Dims("dim", x);
  const v1::DType dtype = m.Type().dtype;
  if (x.ok() && x.dtype() == dtype && IsCanonical(m, x, dims)) return false;
  if (m.Has("dtype") || !IsFloat(dtype)) x = Cast(x, dtype);
  return m.Return(Sum(ToCompute(x), dims, m.Bool("keepdim", false)));
}

bool MeanDims(DecomposeContext& m) {
  Value x = Cast(m.Tensor("self"), ResultCompute(m));
  return m.Return(Mean(x, m.Dims("dim", x), m.Bool("keepdim", false)));
}

template <Value (*kReduce)(const Value&, Dims, bool)>
bool ExtremeDims(DecomposeContext& m) {
  Value x = m.Tensor("self");
  const Dims dims = m.Dims("dim", x);
  if (IsCanonical(m, x, dims)) return false;
  return m.Return(kReduce(x, dims, m.Bool("keepdim", false)));
}

// Of nothing there is no largest element, and eager's operator says so.
bool HasNone(DecomposeContext& m, const Value& x) {
  if (!x.ok()) return false;
  for (const ExprId size : x.sizes()) {
    if (m.exprs().AsConst(size) == 0) return true;
  }
  return false;
}

template <Value (*kReduce)(const Value&, Dims, bool)>
bool Extreme(DecomposeContext& m) {
  const Value x = m.Tensor("self");
  return !HasNone(m, x) && m.Return(kReduce(x, Dims(), false));
}

template <Value (*kReduce)(const Value&, Dims, bool)>
bool LogicDims(DecomposeContext& m) {
  Value x = m.Tensor("self");
  const Dims dims = m.Dims("dim", x);
  if (x.ok() && x.dtype() == v1::BOOL && m.Type().dtype == v1::BOOL && IsCanonical(m, x, dims)) return false;
  if (x.ok() && x.dtype() != v1::BOOL) x = Ne(x, 0);
  return m.Return(kReduce(x, dims, m.Bool("keepdim", false)));
}

// The core operator `name`, which reduces one dimension.
Value AlongDim(DecomposeContext& m, const OperatorName& name, const Value& x, int64_t dim, bool keepdim,
               v1::DType result) {
  GraphBuilder& b = m.b();
  std::vector<ExprId> sizes = x.sizes();
  if (keepdim) {
    sizes[dim] = b.Int(1);
  } else {
    sizes.erase(sizes.begin() + dim);
  }
  GraphBuilder::Args args{{"self", TensorArg{x.id()}}, {"dim", IntArg{b.Int(dim)}}};
  if (keepdim) args.push_back({"keepdim", BoolArg{true}});
  return b.Node(name, std::move(args), b.Dense(result, std::move(sizes)));
}

Value Position(DecomposeContext& m, const OperatorName& name, Value x, int64_t dim, bool keepdim) {
  if (!x.ok()) return x;
  if (x.dtype() == v1::BOOL) x = Cast(x, v1::U8);
  if (x.rank() == 0) return m.b().Full({}, 0, v1::I64);
  return AlongDim(m, name, x, dim, keepdim, v1::I64);
}

bool MaxDim(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (HasNone(m, x)) return false;
  const bool maximum = m.node().target == Op::kMaxDim, keepdim = m.Bool("keepdim", false);
  const int64_t dim = m.Dim("dim", x);
  m.Set(0, maximum ? Amax(x, {dim}, keepdim) : Amin(x, {dim}, keepdim));
  if (m.Wanted(1)) m.Set(1, Position(m, maximum ? Op::kArgmax : Op::kArgmin, x, dim, keepdim));
  return true;
}

bool ArgExtreme(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok()) return false;
  const bool keepdim = m.Bool("keepdim", false);
  if (m.Has("dim")) {
    const int64_t given = m.Int("dim"), dim = m.Dim("dim", x);
    if (given == dim && x.rank() > 0) return false;  // core
    return m.Return(Position(m, m.node().target, x, dim, keepdim));
  }
  Value flat = View(x, {CountOf(x, {})});
  Value position = Position(m, m.node().target, flat, 0, false);
  return m.Return(View(position, m.Type().sizes));
}

bool AMinMax(DecomposeContext& m) {
  Value x = m.Tensor("self");
  const Dims dims = m.Dims("dim", x);
  m.Set(0, Amin(x, dims, m.Bool("keepdim", false)));
  m.Set(1, Amax(x, dims, m.Bool("keepdim", false)));
  return true;
}

Value Product(DecomposeContext& m, const Value& x, int64_t dim, bool keepdim) {
  if (!x.ok() || x.rank() == 0) return x;
  return AlongDim(m, Op::kProdDimInt, x, dim, keepdim, x.dtype());
}

bool ProdDim(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok()) return false;
  const int64_t dim = m.Dim("dim", x);
  if (x.rank() > 0 && x.dtype() == ResultCompute(m) && !m.Has("dtype") && m.Int("dim") == dim)
    return false;  // core
  return m.Return(Product(m, Cast(x, ResultCompute(m)), dim, m.Bool("keepdim", false)));
}

bool ProdAll(DecomposeContext& m) {
  Value x = Cast(m.Tensor("self"), ResultCompute(m));
  return m.Return(Product(m, View(x, {CountOf(x, {})}), 0, false));
}

// ---- variance

struct Spread {
  Value mean;  // keepdim as asked
  Value variance;
};

// Summed up in F64 on the CPU, as eager does, or squares of large and small values leave F32's range.
Spread SpreadOf(DecomposeContext& m) {
  Value x = m.Tensor("self");
  x = m.Type().device == v1::CPU && x.ok() && IsFloat(x.dtype()) ? Cast(x, v1::F64) : ToCompute(x);
  const Dims dims = m.Dims("dim", x);
  const bool keepdim = m.Bool("keepdim", false);
  double correction = 1;
  if (m.Has("correction")) correction = m.Float("correction");
  if (m.Has("unbiased")) correction = m.Bool("unbiased", true) ? 1 : 0;
  Value mean = Mean(x, dims, true);
  Value centered = x - mean;
  const ExprId count = CountOf(x, dims);
  Operand divisor = 0.0;
  if (auto n = m.exprs().AsConst(count)) {
    divisor = std::max(static_cast<double>(*n) - correction, 0.0);
  } else {
    if (correction != std::floor(correction)) m.b().Fail("a fractional correction of a symbolic count");
    divisor =
        Sym{m.exprs().Max(m.exprs().Sub(count, m.b().Int(static_cast<int64_t>(correction))), m.b().Int(0))};
  }
  Value variance = Sum(centered * centered, dims, keepdim) / divisor;
  if (!keepdim && x.ok() && x.rank() > 0) mean = Squeeze(mean, dims);
  return {mean, variance};
}

bool Var(DecomposeContext& m) { return m.Return(SpreadOf(m).variance); }
bool Std(DecomposeContext& m) { return m.Return(Sqrt(SpreadOf(m).variance)); }
bool VarMean(DecomposeContext& m) {
  Spread spread = SpreadOf(m);
  m.Set(0, spread.variance);
  m.Set(1, spread.mean);
  return true;
}
bool StdMean(DecomposeContext& m) {
  Spread spread = SpreadOf(m);
  m.Set(0, Sqrt(spread.variance));
  m.Set(1, spread.mean);
  return true;
}

// ---- norms

Value NormOf(const Value& x, double order, const Dims& dims, bool keepdim) {
  if (order == 2) return Sqrt(Sum(x * x, dims, keepdim));
  if (order == 1) return Sum(Abs(x), dims, keepdim);
  if (order == 0) return Sum(Cast(Ne(x, 0.0), x.dtype()), dims, keepdim);
  if (order == kInfinity) return Amax(Abs(x), dims, keepdim);
  if (order == -kInfinity) return Amin(Abs(x), dims, keepdim);
  return Pow(Sum(Pow(Abs(x), order), dims, keepdim), 1.0 / order);
}

bool Norm(DecomposeContext& m) {
  Value x = Cast(m.Tensor("self"), ResultCompute(m));
  const Dims dims = m.Dims("dim", x);
  double order = m.Float(m.Has("ord") ? "ord" : "p", 2);
  // Of one element it is the magnitude, as in eager: a power's root is next to it.
  if (order != 0 && x.ok() && m.exprs().AsConst(CountOf(x, dims)) == 1) order = 1;
  return m.Return(NormOf(x, order, dims, m.Bool("keepdim", false)));
}

bool Dist(DecomposeContext& m) {
  Value d = Cast(m.Tensor("self"), ResultCompute(m)) - Cast(m.Tensor("other"), ResultCompute(m));
  return m.Return(NormOf(d, m.Float("p", 2), {}, false));
}

bool CountNonzero(DecomposeContext& m) {
  Value x = m.Tensor("self");
  return m.Return(Sum(Ne(x, 0), m.Dims("dim", x), false));
}

bool NanSum(DecomposeContext& m) {
  Value x = Cast(m.Tensor("self"), ResultCompute(m));
  if (x.ok() && IsFloat(x.dtype())) x = Where(IsNan(x), 0.0, x);
  return m.Return(Sum(x, m.Dims("dim", x), m.Bool("keepdim", false)));
}

bool NanMean(DecomposeContext& m) {
  Value x = Cast(m.Tensor("self"), ResultCompute(m));
  const Dims dims = m.Dims("dim", x);
  const bool keepdim = m.Bool("keepdim", false);
  Value number = LogicalNot(IsNan(x));
  return m.Return(Sum(Where(number, x, 0.0), dims, keepdim) /
                  Cast(Sum(number, dims, keepdim), ResultCompute(m)));
}

bool Trace(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok() || x.rank() != 2) return false;
  GraphBuilder& b = m.b();
  TensorType type = b.Dense(x.dtype(), {m.exprs().Min(x.size(0), x.size(1))});
  type.strides = {m.exprs().Add(x.type().strides[0], x.type().strides[1])};
  Value diagonal = b.Node(Op::kDiagonal, {{"self", TensorArg{x.id()}}}, type);
  return m.Return(Sum(diagonal, {0}, false));
}

// ---- softmax

// Exponentials as parts of their sum. The sum is at least 1, for the largest one's is: its reciprocal, one a
// row, is exact to half an ulp, and a division of each element takes ten times as long as a product.
Value Shares(const Value& exponentials, const Dims& dims) {
  return exponentials * Reciprocal(Sum(exponentials, dims, true));
}

bool Softmax(DecomposeContext& m) {
  Value x = Cast(m.Tensor("self"), ResultCompute(m));
  const Dims dims = {m.Dim("dim", x)};
  Value e = SoftmaxExp(x - Amax(x, dims, true));
  return m.Return(Shares(e, dims));
}

// As softmax, but rows that are -inf throughout give 0.
bool SafeSoftmax(DecomposeContext& m) {
  Value x = Cast(m.Tensor("self"), ResultCompute(m));
  const Dims dims = {m.Dim("dim", x)};
  Value largest = Amax(x, dims, true);
  Value e = SoftmaxExp(x - largest);
  return m.Return(Where(Eq(largest, -kInfinity), 0.0, Shares(e, dims)));
}

bool SoftmaxBackward(DecomposeContext& m) {
  Value g = ToCompute(m.Tensor("grad_output")), y = ToCompute(m.Tensor("output"));
  return m.Return((g - Sum(g * y, {m.Dim("dim", y)}, true)) * y);
}

bool LogSoftmax(DecomposeContext& m) {
  Value x = Cast(m.Tensor("self"), ResultCompute(m));
  const Dims dims = {m.Dim("dim", x)};
  Value shifted = x - Amax(x, dims, true);
  return m.Return(shifted - Log(Sum(Exp(shifted), dims, true)));
}

bool LogSoftmaxBackward(DecomposeContext& m) {
  Value g = ToCompute(m.Tensor("grad_output")), y = ToCompute(m.Tensor("output"));
  return m.Return(g - Exp(y) * Sum(g, {m.Dim("dim", y)}, true));
}

bool LogSumExp(DecomposeContext& m) {
  Value x = Cast(m.Tensor("self"), ResultCompute(m));
  const Dims dims = m.Dims("dim", x);
  Value largest = Amax(x, dims, true);
  largest = Where(Eq(Abs(largest), kInfinity), 0.0, largest);
  const bool keepdim = m.Bool("keepdim", false);
  Value sum = Log(Sum(Exp(x - largest), dims, keepdim));
  if (!keepdim && x.ok() && x.rank() > 0) largest = Squeeze(largest, dims);
  return m.Return(sum + largest);
}

// ---- scans: the dtype of the result, a non-negative dimension

bool Scan(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok()) return false;
  const int64_t dim = m.Dim("dim", x);
  const v1::DType dtype = ResultCompute(m);
  if (x.rank() == 0) return m.Return(Cast(x, dtype));
  if (x.dtype() == dtype && !m.Has("dtype") && m.Int("dim") == dim) return false;  // core
  x = Cast(x, dtype);
  return m.Return(m.b().Node(m.node().target, {{"self", TensorArg{x.id()}}, {"dim", IntArg{m.b().Int(dim)}}},
                             m.b().Dense(dtype, x.sizes())));
}

constexpr DecompositionRow kRows[] = {
    {"sum", SumDims},
    {"sum.dim_IntList", SumDims},
    {"mean", MeanDims},
    {"mean.dim", MeanDims},
    {"amax", ExtremeDims<Amax>},
    {"amin", ExtremeDims<Amin>},
    {"max", Extreme<Amax>},
    {"min", Extreme<Amin>},
    {"max.dim", MaxDim},
    {"min.dim", MaxDim},
    {"argmax", ArgExtreme},
    {"argmin", ArgExtreme},
    {"aminmax", AMinMax},
    {"any", LogicDims<Any>},
    {"any.dim", LogicDims<Any>},
    {"any.dims", LogicDims<Any>},
    {"all", LogicDims<All>},
    {"all.dim", LogicDims<All>},
    {"all.dims", LogicDims<All>},
    {"prod", ProdAll},
    {"prod.dim_int", ProdDim},
    {"var", Var},
    {"var.dim", Var},
    {"var.correction", Var},
    {"std", Std},
    {"std.dim", Std},
    {"std.correction", Std},
    {"var_mean", VarMean},
    {"var_mean.dim", VarMean},
    {"var_mean.correction", VarMean},
    {"std_mean", StdMean},
    {"std_mean.dim", StdMean},
    {"std_mean.correction", StdMean},
    {"norm.Scalar", Norm},
    {"norm.ScalarOpt_dim", Norm},
    {"norm.ScalarOpt_dtype", Norm},
    {"norm.ScalarOpt_dim_dtype", Norm},
    {"linalg_vector_norm", Norm},
    {"frobenius_norm.dim", Norm},
    {"dist", Dist},
    {"count_nonzero", CountNonzero},
    {"count_nonzero.dim_IntList", CountNonzero},
    {"nansum", NanSum},
    {"nanmean", NanMean},
    {"trace", Trace},
    {"_softmax", Softmax},
    {"softmax.int", Softmax},
    {"_safe_softmax", SafeSoftmax},
    {"_softmax_backward_data", SoftmaxBackward},
    {"_log_softmax", LogSoftmax},
    {"log_softmax.int", LogSoftmax},
    {"_log_softmax_backward_data", LogSoftmaxBackward},
    {"logsumexp", LogSumExp},
    {"cumsum", Scan},
    {"cumprod", Scan},
};

}  // namespace

absl::Span<const DecompositionRow> ReductionRows() { return kRows; }

}  // namespace kiln
