// Builds core nodes with inferred result types, so that a decomposition reads like the mathematics.
//
//   GraphBuilder b(graph, &nodes, origin);
//   Value x = b.Use(id);
//   Value y = Sum(x * x, {1}, /*keepdim=*/true) / 2.0;
//
// A builder appends nodes to a list of its caller's and values to the graph. Errors are sticky: a
// misuse that a malformed graph can cause (a dimension out of range, sizes that do not broadcast, a
// missing value) makes status() INVALID_ARGUMENT and every later call harmless, so that callers check
// once. Values are handles, valid while the builder lives. Threads: none shared.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "compiler/graph/graph.h"

namespace kiln {

class GraphBuilder;

class Value {
 public:
  Value() = default;
  Value(GraphBuilder* builder, ValueId id) : builder_(builder), id_(id) {}

  bool ok() const { return builder_ != nullptr && id_ != kNoValue; }
  ValueId id() const { return id_; }
  GraphBuilder& builder() const { return *builder_; }
  const TensorType& type() const;
  v1::DType dtype() const { return type().dtype; }
  int64_t rank() const { return static_cast<int64_t>(type().rank()); }
  // Size of a dimension; negative ones count from the end. Out of range is the builder's error.
  ExprId size(int64_t dim) const;
  const std::vector<ExprId>& sizes() const { return type().sizes; }

 private:
  GraphBuilder* builder_ = nullptr;
  ValueId id_ = kNoValue;
};

// A symbolic integer used as a scalar operand.
struct Sym {
  ExprId expr;
};

// What a pointwise operator takes: a tensor or a scalar.
struct Operand {
  enum class Kind { kTensor, kFloat, kInt, kBool };
  Operand(Value v) : kind(Kind::kTensor), tensor(v) {}                // NOLINT: implicit by design
  Operand(double v) : kind(Kind::kFloat), number(v) {}                // NOLINT
  Operand(int v) : kind(Kind::kInt), integer(v) {}                    // NOLINT
  Operand(int64_t v) : kind(Kind::kInt), integer(v) {}                // NOLINT
  Operand(bool v) : kind(Kind::kBool), integer(v) {}                  // NOLINT
  Operand(Sym v) : kind(Kind::kInt), symbolic(true), expr(v.expr) {}  // NOLINT

  Kind kind;
  Value tensor;
  double number = 0;
  int64_t integer = 0;
  bool symbolic = false;
  ExprId expr = 0;

  bool is_tensor() const { return kind == Kind::kTensor; }
};

class GraphBuilder {
 public:
  using Args = std::vector<std::pair<std::string, Argument>>;

  GraphBuilder(Graph& graph, std::vector<GraphNode>* nodes, uint32_t origin)
      : graph_(graph), nodes_(*nodes), origin_(origin) {}

  Graph& graph() { return graph_; }
  ExprPool& exprs() { return graph_.exprs; }
  const absl::Status& status() const { return status_; }
  void Fail(absl::string_view message);  // keeps the first

  Value Use(ValueId id);
  // Any operator with one result of the given type.
  Value Node(const OperatorName& target, Args args, TensorType type);
  // The same with several results; empty after a failure.
  std::vector<Value> Nodes(const OperatorName& target, Args args, std::vector<TensorType> types);
  // A type of a computed value: dense, row-major.
  TensorType Dense(v1::DType dtype, std::vector<ExprId> sizes);
  // Device of new values; that of the first tensor used, until set.
  v1::DeviceType device = v1::CPU;

  // A dimension in [0, rank); negative ones count from the end; out of range fails and gives 0.
  int64_t Dim(int64_t dim, int64_t rank);
  ExprId Int(int64_t value) { return exprs().Const(value); }
  Argument ToArgument(const Operand& operand);

  Value Unary(const OperatorName& target, Value x);      // same dtype (floats)
  Value Predicate(const OperatorName& target, Value x);  // BOOL result
  Value Binary(const OperatorName& target, const Operand& a, const Operand& b);
  Value Compare(const OperatorName& target, const Operand& a, const Operand& b);
  Value Full(std::vector<ExprId> sizes, const Operand& value, v1::DType dtype);
  Value Iota(ExprId count, v1::DType dtype = v1::I64);
  Value Arange(const Operand& start, const Operand& step, ExprId count, v1::DType dtype);
  Value Cat(const std::vector<Value>& parts, int64_t dim);
  Value Rand(std::vector<ExprId> sizes, v1::DType dtype);
  // The call fails with `message` unless all of `holds` (BOOL) is true.
  void Assert(const Value& holds, absl::string_view message);

 private:
  Value Pointwise(const OperatorName& target, const std::vector<std::pair<const char*, Operand>>& operands,
                  v1::DType dtype);
  friend Value Where(const Operand& condition, const Operand& a, const Operand& b);

  Graph& graph_;
  std::vector<GraphNode>& nodes_;
  uint32_t origin_;
  absl::Status status_;
};

// ---- pointwise
Value operator+(const Value& a, const Operand& b);
Value operator-(const Value& a, const Operand& b);
Value operator*(const Value& a, const Operand& b);
Value operator/(const Value& a, const Operand& b);
Value operator+(double a, const Value& b);
Value operator-(double a, const Value& b);
Value operator*(double a, const Value& b);
Value operator/(double a, const Value& b);
Value operator-(const Value& a);

Value Abs(const Value& x);
Value Exp(const Value& x);
Value Expm1(const Value& x);
Value Log(const Value& x);
Value Log1p(const Value& x);
Value Tanh(const Value& x);
Value Sqrt(const Value& x);
Value Rsqrt(const Value& x);
Value Reciprocal(const Value& x);
Value Erf(const Value& x);
Value OnePlusErf(const Value& x);   // 1 + erf(x), within 2^-21 of 1
Value OnePlusTanh(const Value& x);  // 1 + tanh(x), the same
Value SoftmaxExp(const Value& x);   // e^x of a row's elements less the row's maximum; see ir/ops.def
Value Sigmoid(const Value& x);
Value Floor(const Value& x);
Value Sign(const Value& x);
Value IsNan(const Value& x);
Value LogicalNot(const Value& x);
Value LogicalAnd(const Value& a, const Value& b);
Value LogicalOr(const Value& a, const Value& b);
Value Maximum(const Value& a, const Operand& b);
Value Minimum(const Value& a, const Operand& b);
Value Pow(const Value& a, const Operand& b);
Value Eq(const Value& a, const Operand& b);
Value Ne(const Value& a, const Operand& b);
Value Lt(const Value& a, const Operand& b);
Value Le(const Value& a, const Operand& b);
Value Gt(const Value& a, const Operand& b);
Value Ge(const Value& a, const Operand& b);
Value Where(const Operand& condition, const Operand& a, const Operand& b);
Value Cast(const Value& x, v1::DType dtype);  // x itself when it has the dtype
Value ToCompute(const Value& x);              // F16 and BF16 to F32

// ---- reductions; `dims` are in range and distinct, empty means all
Value Sum(const Value& x, std::vector<int64_t> dims, bool keepdim);
Value Mean(const Value& x, std::vector<int64_t> dims, bool keepdim);  // floats
Value Amax(const Value& x, std::vector<int64_t> dims, bool keepdim);
Value Amin(const Value& x, std::vector<int64_t> dims, bool keepdim);
Value Any(const Value& x, std::vector<int64_t> dims, bool keepdim);
Value All(const Value& x, std::vector<int64_t> dims, bool keepdim);
// Number of elements along the dimensions.
ExprId CountOf(const Value& x, const std::vector<int64_t>& dims);

// ---- views and copies
Value View(const Value& x, std::vector<ExprId> sizes);
Value Expand(const Value& x, std::vector<ExprId> sizes);
Value ExpandAs(const Value& x, const Value& like);
Value Permute(const Value& x, std::vector<int64_t> dims);
Value Transpose(const Value& x, int64_t a, int64_t b);
Value Unsqueeze(const Value& x, int64_t dim);
Value Squeeze(const Value& x, std::vector<int64_t> dims);
Value Slice(const Value& x, int64_t dim, ExprId start, ExprId end, int64_t step);
Value Select(const Value& x, int64_t dim, ExprId index);
Value Flip(const Value& x, std::vector<int64_t> dims);
Value Clone(const Value& x, const TensorType& like);  // same values with the layout of `like`
Value Alias(const Value& x);                          // the same memory, a value of its own
Value ConstantPad(const Value& x, const std::vector<ExprId>& pad,
                  const Operand& value);  // as torch: last dim first

// ---- library calls
// a b, of two matrices of one dtype, plus c where there is one; !ok() for anything else.
Value Matmul(const Value& a, const Value& b);
Value Matmul(const Value& a, const Value& b, const Value& c);
Value BatchedMatmul(const Value& a, const Value& b);  // the same of two equal rows of matrices

// ---- addressed by data; `indices` entries that are not ok() are None
Value UnsafeIndex(const Value& x, const std::vector<Value>& indices);
Value UnsafeIndexPut(const Value& x, const std::vector<Value>& indices, const Value& values, bool accumulate);
Value Gather(const Value& x, int64_t dim, const Value& index);

}  // namespace kiln
