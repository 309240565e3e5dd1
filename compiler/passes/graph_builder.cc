#include "compiler/passes/graph_builder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compiler/library/gemm.h"
#include "compiler/passes/types.h"

namespace kiln {
namespace {

using Args = GraphBuilder::Args;

const TensorType& NoType() {
  static const auto* type = new TensorType;
  return *type;
}

std::vector<int64_t> AllDims(const Value& x) {
  std::vector<int64_t> dims(x.rank());
  for (int64_t i = 0; i < x.rank(); ++i) dims[i] = i;
  return dims;
}

Argument DimList(ExprPool& pool, const std::vector<int64_t>& dims) {
  IntListArg list;
  for (int64_t dim : dims) list.values.push_back(pool.Const(dim));
  return list;
}

std::vector<ExprId> ReducedSizes(const Value& x, const std::vector<int64_t>& dims, bool keepdim) {
  std::vector<ExprId> sizes;
  for (int64_t i = 0; i < x.rank(); ++i) {
    const bool reduced = std::find(dims.begin(), dims.end(), i) != dims.end();
    if (!reduced) sizes.push_back(x.sizes()[i]);
    if (reduced && keepdim) sizes.push_back(x.builder().Int(1));
  }
  return sizes;
}

std::vector<int64_t> NormalizedDims(const Value& x, std::vector<int64_t> dims) {
  if (dims.empty()) return AllDims(x);
  for (int64_t& dim : dims) dim = x.builder().Dim(dim, x.rank());
  std::sort(dims.begin(), dims.end());
  dims.erase(std::unique(dims.begin(), dims.end()), dims.end());
  return dims;
}

Value Reduce(const OperatorName& target, const Value& x, std::vector<int64_t> dims, bool keepdim,
             v1::DType dtype) {
  if (!x.ok()) return x;
  if (x.rank() == 0) return Cast(x, dtype);  // a reduction over nothing
  dims = NormalizedDims(x, std::move(dims));
  GraphBuilder& b = x.builder();
  Args args{{"self", TensorArg{x.id()}}, {"dim", DimList(b.exprs(), dims)}};
  if (keepdim) args.push_back({"keepdim", BoolArg{true}});
  return b.Node(target, std::move(args), b.Dense(dtype, ReducedSizes(x, dims, keepdim)));
}

}  // namespace

const TensorType& Value::type() const { return ok() ? builder_->graph().type(id_) : NoType(); }

ExprId Value::size(int64_t dim) const {
  if (!ok()) return 0;
  if (rank() == 0) {
    builder_->Fail("a tensor of rank 0 has no sizes");
    return builder_->Int(1);
  }
  return type().sizes[builder_->Dim(dim, rank())];
}

void GraphBuilder::Fail(absl::string_view message) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(message);
}

Value GraphBuilder::Use(ValueId id) {
  if (id == kNoValue || id >= graph_.values.size()) {
    Fail("a tensor argument is missing");
    return Value();
  }
  if (graph_.type(id).dtype == v1::DTYPE_UNSPECIFIED) {
    Fail("a tensor argument is an undefined result");
    return Value();
  }
  return Value(this, id);
}

Value GraphBuilder::Node(const OperatorName& target, Args args, TensorType type) {
  const std::vector<Value> results = Nodes(target, std::move(args), {std::move(type)});
  return results.empty() ? Value() : results[0];
}

std::vector<Value> GraphBuilder::Nodes(const OperatorName& target, Args args, std::vector<TensorType> types) {
  std::vector<Value> results;
  if (!status_.ok()) return results;
  GraphNode node;
  node.target = target;
  node.args = std::move(args);
  node.origin = origin_;
  for (TensorType& type : types) {
    node.results.push_back(graph_.NewValue(std::move(type)));
    results.push_back(Value(this, node.results.back()));
  }
  nodes_.push_back(std::move(node));
  return results;
}

TensorType GraphBuilder::Dense(v1::DType dtype, std::vector<ExprId> sizes) {
  TensorType type;
  type.dtype = dtype;
  type.device = device;
  type.strides = ContiguousStrides(exprs(), sizes);
  type.sizes = std::move(sizes);
  type.offset = Int(0);
  return type;
}

void GraphBuilder::Assert(const Value& holds, absl::string_view message) {
  const Value all = All(holds, {}, false);
  if (!all.ok()) return;
  Nodes(Op::kAssertAsyncMsg, {{"self", TensorArg{all.id()}}, {"assert_msg", StringArg{std::string(message)}}},
        {});
}

int64_t GraphBuilder::Dim(int64_t dim, int64_t rank) {
  const int64_t range = std::max<int64_t>(rank, 1);
  if (dim < -range || dim >= range) {
    Fail(absl::StrCat("dimension ", dim, " is out of range for rank ", rank));
    return 0;
  }
  return dim < 0 ? dim + range : dim;
}

Argument GraphBuilder::ToArgument(const Operand& operand) {
  switch (operand.kind) {
    case Operand::Kind::kTensor: return TensorArg{operand.tensor.id()};
    case Operand::Kind::kFloat: return FloatArg{operand.number};
    case Operand::Kind::kBool: return BoolArg{operand.integer != 0};
    case Operand::Kind::kInt: break;
  }
  return IntArg{operand.symbolic ? operand.expr : Int(operand.integer)};
}

Value GraphBuilder::Pointwise(const OperatorName& target,
                              const std::vector<std::pair<const char*, Operand>>& operands, v1::DType dtype) {
  std::vector<ExprId> sizes;
  std::vector<const TensorType*> types;
  Args args;
  for (const auto& [name, operand] : operands) {
    if (operand.is_tensor() && !operand.tensor.ok()) {
      Fail("a tensor argument is missing");
      return Value();
    }
    args.push_back({name, ToArgument(operand)});
    if (!operand.is_tensor()) continue;
    const TensorType& type = operand.tensor.type();
    auto broadcast = BroadcastSizes(exprs(), sizes, type.sizes);
    if (!broadcast.ok()) {
      Fail(broadcast.status().message());
      return Value();
    }
    sizes = *std::move(broadcast);
    types.push_back(&type);
  }
  TensorType type;
  type.dtype = dtype;
  type.device = types.empty() ? device : types[0]->device;
  type.strides = ElementwiseStrides(exprs(), sizes, types);
  type.sizes = std::move(sizes);
  type.offset = Int(0);
  return Node(target, std::move(args), std::move(type));
}

namespace {

v1::DType Promote(std::initializer_list<const Operand*> operands) {
  std::vector<PromotionOperand> promotion;
  using Rank = PromotionOperand::Rank;
  for (const Operand* operand : operands) {
    switch (operand->kind) {
      case Operand::Kind::kTensor:
        promotion.push_back(
            {operand->tensor.dtype(), operand->tensor.rank() == 0 ? Rank::kZeroDim : Rank::kDimensioned});
        break;
      case Operand::Kind::kFloat: promotion.push_back({v1::F64, Rank::kScalar}); break;
      case Operand::Kind::kInt: promotion.push_back({v1::I64, Rank::kScalar}); break;
      case Operand::Kind::kBool: promotion.push_back({v1::BOOL, Rank::kScalar}); break;
    }
  }
  return PromoteDTypes(promotion);
}

}  // namespace

Value GraphBuilder::Unary(const OperatorName& target, Value x) {
  return x.ok() ? Pointwise(target, {{"self", x}}, x.dtype()) : x;
}

Value GraphBuilder::Predicate(const OperatorName& target, Value x) {
  return Pointwise(target, {{"self", x}}, v1::BOOL);
}

Value GraphBuilder::Binary(const OperatorName& target, const Operand& a, const Operand& b) {
  return Pointwise(target, {{"self", a}, {target == Op::kPowTensorTensor ? "exponent" : "other", b}},
                   Promote({&a, &b}));
}

Value GraphBuilder::Compare(const OperatorName& target, const Operand& a, const Operand& b) {
  return Pointwise(target, {{"self", a}, {"other", b}}, v1::BOOL);
}

Value GraphBuilder::Full(std::vector<ExprId> sizes, const Operand& value, v1::DType dtype) {
  TensorType type = Dense(dtype, sizes);
  return Node(
      Op::kFull,
      {{"size", IntListArg{std::move(sizes)}}, {"fill_value", ToArgument(value)}, {"dtype", DTypeArg{dtype}}},
      std::move(type));
}

Value GraphBuilder::Iota(ExprId count, v1::DType dtype) { return Arange(0, 1, count, dtype); }

Value GraphBuilder::Arange(const Operand& start, const Operand& step, ExprId count, v1::DType dtype) {
  // `end` only has to give the right count; it is exact for integers, else half a step beyond the last.
  Operand end = Sym{count};
  const bool integers = start.kind != Operand::Kind::kFloat && step.kind != Operand::Kind::kFloat;
  auto expr_of = [&](const Operand& o) { return o.symbolic ? o.expr : Int(o.integer); };
  if (integers) {
    end = Sym{exprs().Add(expr_of(start), exprs().Mul(expr_of(step), count))};
  } else if (auto n = exprs().AsConst(count); n && !start.symbolic && !step.symbolic) {
    auto number = [](const Operand& o) {
      return o.kind == Operand::Kind::kFloat ? o.number : double(o.integer);
    };
    end = number(start) + number(step) * (static_cast<double>(*n) - 0.5);
  } else {
    Fail("a floating point range needs a constant length");
  }
  return Node(Op::kArangeStartStep,
              {{"start", ToArgument(start)},
               {"end", ToArgument(end)},
               {"step", ToArgument(step)},
               {"dtype", DTypeArg{dtype}}},
              Dense(dtype, {count}));
}

Value GraphBuilder::Cat(const std::vector<Value>& parts, int64_t dim) {
  if (parts.empty() || !parts[0].ok()) {
    Fail("nothing to concatenate");
    return Value();
  }
  dim = Dim(dim, parts[0].rank());
  TensorListArg list;
  std::vector<ExprId> sizes = parts[0].sizes();
  if (sizes.empty()) {
    Fail("tensors of rank 0 do not concatenate");
    return Value();
  }
  sizes[dim] = Int(0);
  for (const Value& part : parts) {
    if (!part.ok() || part.rank() != static_cast<int64_t>(sizes.size())) {
      Fail("concatenated tensors differ in rank");
      return Value();
    }
    sizes[dim] = exprs().Add(sizes[dim], part.size(dim));
    list.values.push_back(part.id());
  }
  TensorType type = Dense(parts[0].dtype(), std::move(sizes));
  return Node(Op::kCat, {{"tensors", std::move(list)}, {"dim", IntArg{Int(dim)}}}, std::move(type));
}

Value GraphBuilder::Rand(std::vector<ExprId> sizes, v1::DType dtype) {
  TensorType type = Dense(dtype, sizes);
  return Node(Op::kRand, {{"size", IntListArg{std::move(sizes)}}, {"dtype", DTypeArg{dtype}}},
              std::move(type));
}

Value Where(const Operand& condition, const Operand& a, const Operand& b) {
  if (!condition.tensor.ok()) return Value();
  return condition.tensor.builder().Pointwise(
      Op::kWhereSelf, {{"condition", condition}, {"self", a}, {"other", b}}, Promote({&a, &b}));
}

Value operator+(const Value& a, const Operand& b) {
  return a.ok() ? a.builder().Binary(Op::kAddTensor, a, b) : a;
}
Value operator-(const Value& a, const Operand& b) {
  return a.ok() ? a.builder().Binary(Op::kSubTensor, a, b) : a;
}
Value operator*(const Value& a, const Operand& b) {
  return a.ok() ? a.builder().Binary(Op::kMulTensor, a, b) : a;
}
Value operator/(const Value& a, const Operand& b) {
  return a.ok() ? a.builder().Binary(Op::kDivTensor, a, b) : a;
}
Value operator+(double a, const Value& b) { return b + a; }
Value operator-(double a, const Value& b) { return b.ok() ? b.builder().Binary(Op::kSubTensor, a, b) : b; }
Value operator*(double a, const Value& b) { return b * a; }
Value operator/(double a, const Value& b) { return b.ok() ? b.builder().Binary(Op::kDivTensor, a, b) : b; }
Value operator-(const Value& a) { return a.ok() ? a.builder().Unary(Op::kNeg, a) : a; }

#define KILN_UNARY(Name, op) \
  Value Name(const Value& x) { return x.ok() ? x.builder().Unary(op, x) : x; }
KILN_UNARY(Abs, Op::kAbs)
KILN_UNARY(Exp, Op::kExp)
KILN_UNARY(Expm1, Op::kExpm1)
KILN_UNARY(Log, Op::kLog)
KILN_UNARY(Log1p, Op::kLog1p)
KILN_UNARY(Tanh, Op::kTanh)
KILN_UNARY(Sqrt, Op::kSqrt)
KILN_UNARY(Rsqrt, Op::kRsqrt)
KILN_UNARY(Reciprocal, Op::kReciprocal)
KILN_UNARY(Erf, Op::kErf)
KILN_UNARY(OnePlusErf, Op::kOnePlusErf)
KILN_UNARY(OnePlusTanh, Op::kOnePlusTanh)
KILN_UNARY(SoftmaxExp, Op::kSoftmaxExp)
KILN_UNARY(Sigmoid, Op::kSigmoid)
KILN_UNARY(Floor, Op::kFloor)
KILN_UNARY(Sign, Op::kSign)
#undef KILN_UNARY

Value IsNan(const Value& x) { return x.ok() ? x.builder().Predicate(Op::kIsnan, x) : x; }
Value LogicalNot(const Value& x) { return x.ok() ? x.builder().Predicate(Op::kLogicalNot, x) : x; }

#define KILN_BINARY(Name, Kind, B, op) \
  Value Name(const Value& a, const B& b) { return a.ok() ? a.builder().Kind(op, a, b) : a; }
KILN_BINARY(LogicalAnd, Compare, Value, Op::kLogicalAnd)
KILN_BINARY(LogicalOr, Compare, Value, Op::kLogicalOr)
KILN_BINARY(Maximum, Binary, Operand, Op::kMaximum)
KILN_BINARY(Minimum, Binary, Operand, Op::kMinimum)
KILN_BINARY(Pow, Binary, Operand, Op::kPowTensorTensor)
KILN_BINARY(Eq, Compare, Operand, Op::kEqTensor)
KILN_BINARY(Ne, Compare, Operand, Op::kNeTensor)
KILN_BINARY(Lt, Compare, Operand, Op::kLtTensor)
KILN_BINARY(Le, Compare, Operand, Op::kLeTensor)
KILN_BINARY(Gt, Compare, Operand, Op::kGtTensor)
KILN_BINARY(Ge, Compare, Operand, Op::kGeTensor)
#undef KILN_BINARY

Value Cast(const Value& x, v1::DType dtype) {
  if (!x.ok() || x.dtype() == dtype) return x;
  GraphBuilder& b = x.builder();
  TensorType type = x.type();
  type.dtype = dtype;
  type.strides = ElementwiseStrides(b.exprs(), type.sizes, {&x.type()});
  type.offset = b.Int(0);
  return b.Node(Op::kToCopy, {{"self", TensorArg{x.id()}}, {"dtype", DTypeArg{dtype}}}, std::move(type));
}

Value ToCompute(const Value& x) { return Cast(x, ComputeDType(x.dtype())); }

Value Sum(const Value& x, std::vector<int64_t> dims, bool keepdim) {
  const bool counts = x.dtype() == v1::BOOL || IsInteger(x.dtype());
  return Reduce(Op::kSumDimIntList, x, std::move(dims), keepdim, counts ? v1::I64 : x.dtype());
}
Value Mean(const Value& x, std::vector<int64_t> dims, bool keepdim) {
  if (!x.ok()) return x;
  const ExprId count = CountOf(x, dims);
  return Sum(x, std::move(dims), keepdim) / Sym{count};
}
Value Amax(const Value& x, std::vector<int64_t> dims, bool keepdim) {
  return Reduce(Op::kAmax, x, std::move(dims), keepdim, x.dtype());
}
Value Amin(const Value& x, std::vector<int64_t> dims, bool keepdim) {
  return Reduce(Op::kAmin, x, std::move(dims), keepdim, x.dtype());
}
Value Any(const Value& x, std::vector<int64_t> dims, bool keepdim) {
  return Reduce(Op::kAnyDims, x, std::move(dims), keepdim, v1::BOOL);
}
Value All(const Value& x, std::vector<int64_t> dims, bool keepdim) {
  return Reduce(Op::kAllDims, x, std::move(dims), keepdim, v1::BOOL);
}

ExprId CountOf(const Value& x, const std::vector<int64_t>& dims) {
  if (!x.ok()) return 0;
  ExprPool& pool = x.builder().exprs();
  ExprId count = pool.Const(1);
  if (x.rank() == 0) return count;
  for (int64_t dim : NormalizedDims(x, dims)) count = pool.Mul(count, x.size(dim));
  return count;
}

Value View(const Value& x, std::vector<ExprId> sizes) {
  if (!x.ok() || x.sizes() == sizes) return x;
  GraphBuilder& b = x.builder();
  TensorType type = b.Dense(x.dtype(), sizes);
  return b.Node(Op::kView, {{"self", TensorArg{x.id()}}, {"size", IntListArg{std::move(sizes)}}},
                std::move(type));
}

Value Expand(const Value& x, std::vector<ExprId> sizes) {
  if (!x.ok() || x.sizes() == sizes) return x;
  GraphBuilder& b = x.builder();
  if (sizes.size() < x.sizes().size()) {
    b.Fail("expand to a lower rank");
    return Value();
  }
  for (ExprId size : sizes) {
    if (const auto value = b.exprs().AsConst(size); value && *value < 0) {
      b.Fail("expand to a negative size");
      return Value();
    }
  }
  TensorType type = x.type();
  const size_t added = sizes.size() - x.sizes().size();
  type.strides.assign(sizes.size(), b.Int(0));
  for (size_t i = added; i < sizes.size(); ++i) {
    if (x.sizes()[i - added] == sizes[i]) type.strides[i] = x.type().strides[i - added];
  }
  type.sizes = sizes;
  return b.Node(Op::kExpand, {{"self", TensorArg{x.id()}}, {"size", IntListArg{std::move(sizes)}}},
                std::move(type));
}

Value ExpandAs(const Value& x, const Value& like) { return like.ok() ? Expand(x, like.sizes()) : like; }

Value Permute(const Value& x, std::vector<int64_t> dims) {
  if (!x.ok()) return x;
  GraphBuilder& b = x.builder();
  std::vector<bool> seen(x.rank(), false);
  TensorType type = x.type();
  if (static_cast<int64_t>(dims.size()) != x.rank()) b.Fail("permute with a wrong number of dimensions");
  for (size_t i = 0; i < dims.size() && b.status().ok(); ++i) {
    const int64_t dim = dims[i] = b.Dim(dims[i], x.rank());
    if (seen[dim]) b.Fail("permute names a dimension twice");
    seen[dim] = true;
    type.sizes[i] = x.type().sizes[dim];
    type.strides[i] = x.type().strides[dim];
  }
  if (x.rank() < 2) return x;
  return b.Node(Op::kPermute, {{"self", TensorArg{x.id()}}, {"dims", DimList(b.exprs(), dims)}},
                std::move(type));
}

Value Transpose(const Value& x, int64_t first, int64_t second) {
  if (!x.ok() || x.rank() < 2) return x;
  std::vector<int64_t> dims = AllDims(x);
  std::swap(dims[x.builder().Dim(first, x.rank())], dims[x.builder().Dim(second, x.rank())]);
  return Permute(x, std::move(dims));
}

Value Unsqueeze(const Value& x, int64_t dim) {
  if (!x.ok()) return x;
  GraphBuilder& b = x.builder();
  dim = b.Dim(dim, x.rank() + 1);
  TensorType type = x.type();
  const ExprId stride = dim < x.rank() ? b.exprs().Mul(type.sizes[dim], type.strides[dim]) : b.Int(1);
  type.sizes.insert(type.sizes.begin() + dim, b.Int(1));
  type.strides.insert(type.strides.begin() + dim, stride);
  return b.Node(Op::kUnsqueeze, {{"self", TensorArg{x.id()}}, {"dim", IntArg{b.Int(dim)}}}, std::move(type));
}

Value Squeeze(const Value& x, std::vector<int64_t> dims) {
  if (!x.ok() || dims.empty()) return x;
  GraphBuilder& b = x.builder();
  dims = NormalizedDims(x, std::move(dims));
  TensorType type = x.type();
  type.sizes.clear();
  type.strides.clear();
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (std::find(dims.begin(), dims.end(), i) != dims.end()) continue;
    type.sizes.push_back(x.type().sizes[i]);
    type.strides.push_back(x.type().strides[i]);
  }
  return b.Node(Op::kSqueezeDims, {{"self", TensorArg{x.id()}}, {"dim", DimList(b.exprs(), dims)}},
                std::move(type));
}

Value Slice(const Value& x, int64_t dim, ExprId start, ExprId end, int64_t step) {
  if (!x.ok()) return x;
  GraphBuilder& b = x.builder();
  ExprPool& pool = b.exprs();
  if (x.rank() == 0 || step < 1) {
    b.Fail("a slice needs a dimension and a positive step");
    return Value();
  }
  dim = b.Dim(dim, x.rank());
  TensorType type = x.type();
  if (step == 1 && pool.AsConst(start) == 0 && end == type.sizes[dim]) return x;
  type.offset = pool.Add(type.offset, pool.Mul(start, type.strides[dim]));
  type.sizes[dim] = pool.CeilDiv(pool.Sub(end, start), pool.Const(step));
  type.strides[dim] = pool.Mul(type.strides[dim], pool.Const(step));
  return b.Node(Op::kSliceTensor,
                {{"self", TensorArg{x.id()}},
                 {"dim", IntArg{b.Int(dim)}},
                 {"start", IntArg{start}},
                 {"end", IntArg{end}},
                 {"step", IntArg{b.Int(step)}}},
                std::move(type));
}

Value Select(const Value& x, int64_t dim, ExprId index) {
  if (!x.ok()) return x;
  GraphBuilder& b = x.builder();
  if (x.rank() == 0) {
    b.Fail("a tensor of rank 0 has nothing to select");
    return Value();
  }
  dim = b.Dim(dim, x.rank());
  TensorType type = x.type();
  type.offset = b.exprs().Add(type.offset, b.exprs().Mul(index, type.strides[dim]));
  type.sizes.erase(type.sizes.begin() + dim);
  type.strides.erase(type.strides.begin() + dim);
  return b.Node(Op::kSelectInt,
                {{"self", TensorArg{x.id()}}, {"dim", IntArg{b.Int(dim)}}, {"index", IntArg{index}}},
                std::move(type));
}

Value Clone(const Value& x, const TensorType& like) {
  if (!x.ok()) return x;
  TensorType type = like;
  type.dtype = x.dtype();
  type.offset = x.builder().Int(0);
  return x.builder().Node(Op::kClone, {{"self", TensorArg{x.id()}}}, std::move(type));
}

Value Alias(const Value& x) {
  if (!x.ok()) return x;
  return x.builder().Node(Op::kAlias, {{"self", TensorArg{x.id()}}}, x.type());
}

Value Flip(const Value& x, std::vector<int64_t> dims) {
  if (!x.ok() || x.rank() == 0 || dims.empty()) return x;
  GraphBuilder& b = x.builder();
  dims = NormalizedDims(x, std::move(dims));
  return b.Node(Op::kFlip, {{"self", TensorArg{x.id()}}, {"dims", DimList(b.exprs(), dims)}},
                b.Dense(x.dtype(), x.sizes()));
}

Value ConstantPad(const Value& x, const std::vector<ExprId>& pad, const Operand& value) {
  if (!x.ok()) return x;
  GraphBuilder& b = x.builder();
  std::vector<ExprId> sizes = x.sizes();
  if (pad.size() % 2 != 0 || pad.size() / 2 > sizes.size()) {
    b.Fail("a wrong number of pads");
    return Value();
  }
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    ExprId& size = sizes[sizes.size() - 1 - i];
    size = b.exprs().Sum({size, pad[2 * i], pad[2 * i + 1]});
  }
  return b.Node(Op::kConstantPadNd,
                {{"self", TensorArg{x.id()}}, {"pad", IntListArg{pad}}, {"value", b.ToArgument(value)}},
                b.Dense(x.dtype(), std::move(sizes)));
}

namespace {

TensorListArg IndexList(const std::vector<Value>& indices) {
  TensorListArg list;
  for (const Value& index : indices) list.values.push_back(index.ok() ? index.id() : kNoValue);
  return list;
}

}  // namespace

Value Matmul(const Value& a, const Value& b) {
  if (!a.ok() || !b.ok() || a.rank() != 2 || b.rank() != 2) return Value();
  return a.builder().Node(Op::kGemm, GemmArguments({.a = a.id(), .b = b.id()}),
                          a.builder().Dense(a.dtype(), {a.size(0), b.size(1)}));
}

Value Matmul(const Value& a, const Value& b, const Value& c) {
  if (!a.ok() || !b.ok() || !c.ok() || a.rank() != 2 || b.rank() != 2) return Value();
  return a.builder().Node(Op::kGemm, GemmArguments({.a = a.id(), .b = b.id(), .c = c.id()}),
                          a.builder().Dense(a.dtype(), {a.size(0), b.size(1)}));
}

Value BatchedMatmul(const Value& a, const Value& b) {
  if (!a.ok() || !b.ok() || a.rank() != 3 || b.rank() != 3) return Value();
  return a.builder().Node(Op::kGemm, GemmArguments({.a = a.id(), .b = b.id()}),
                          a.builder().Dense(a.dtype(), {a.size(0), a.size(1), b.size(2)}));
}

Value UnsafeIndex(const Value& x, const std::vector<Value>& indices) {
  if (!x.ok()) return x;
  GraphBuilder& b = x.builder();
  if (static_cast<int64_t>(indices.size()) > x.rank()) {
    b.Fail("more indices than dimensions");
    return Value();
  }
  // Broadcast shape of the indices; it stands at the first of them when they are adjacent, else in front.
  std::vector<ExprId> shape;
  std::vector<size_t> used;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (!indices[i].ok()) continue;
    auto broadcast = BroadcastSizes(b.exprs(), shape, indices[i].sizes());
    if (!broadcast.ok()) {
      b.Fail(broadcast.status().message());
      return Value();
    }
    shape = *std::move(broadcast);
    used.push_back(i);
  }
  if (used.empty()) return x;
  const bool adjacent = used.back() - used.front() + 1 == used.size();
  std::vector<ExprId> sizes;
  if (!adjacent) sizes = shape;
  for (size_t i = 0; i < x.sizes().size(); ++i) {
    const bool indexed = i < indices.size() && indices[i].ok();
    if (indexed && adjacent && i == used.front()) sizes.insert(sizes.end(), shape.begin(), shape.end());
    if (!indexed) sizes.push_back(x.sizes()[i]);
  }
  return b.Node(Op::kUnsafeIndexTensor, {{"self", TensorArg{x.id()}}, {"indices", IndexList(indices)}},
                b.Dense(x.dtype(), std::move(sizes)));
}

Value UnsafeIndexPut(const Value& x, const std::vector<Value>& indices, const Value& values,
                     bool accumulate) {
  if (!x.ok() || !values.ok()) return Value();
  GraphBuilder& b = x.builder();
  return b.Node(Op::kUnsafeIndexPut,
                {{"self", TensorArg{x.id()}},
                 {"indices", IndexList(indices)},
                 {"values", TensorArg{values.id()}},
                 {"accumulate", BoolArg{accumulate}}},
                b.Dense(x.dtype(), x.sizes()));
}

Value Gather(const Value& x, int64_t dim, const Value& index) {
  if (!x.ok() || !index.ok()) return Value();
  GraphBuilder& b = x.builder();
  return b.Node(Op::kGather,
                {{"self", TensorArg{x.id()}},
                 {"dim", IntArg{b.Int(b.Dim(dim, x.rank()))}},
                 {"index", TensorArg{index.id()}}},
                b.Dense(x.dtype(), index.sizes()));
}

}  // namespace kiln
