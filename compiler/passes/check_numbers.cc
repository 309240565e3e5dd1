#include "compiler/passes/check_numbers.h"

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/dtype_range.h"
#include "compiler/ir/dtype_groups.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/passes/types.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

// What eager converts a number to.
enum class Into {
  kResult,            // the result's dtype
  kComputed,          // what that is computed in: F32 for F16 and BF16
  kResultNegated,     // its negative, to the result's dtype
  kResultUnlessHalf,  // the result's dtype; to F16 and BF16 whatever it gives
  kExponent,          // the result's dtype but for F32 and F64; of integers no negative one
};

struct Row {
  const char* target;  // without "aten." and ".default"
  const char* argument;
  Into into;
  bool of_sum = false;  // what its other operand is multiplied by
};

constexpr Row kRows[] = {
    {"clamp", "min", Into::kResult},
    {"clamp", "max", Into::kResult},
    {"clamp_min", "min", Into::kResult},
    {"clamp_max", "max", Into::kResult},
    {"hardtanh", "min_val", Into::kResult},
    {"hardtanh", "max_val", Into::kResult},
    {"hardtanh_backward", "min_val", Into::kComputed},
    {"hardtanh_backward", "max_val", Into::kComputed},
    {"masked_fill.Scalar", "value", Into::kResult},
    {"index_fill.int_Scalar", "value", Into::kResult},
    {"fill.Scalar", "value", Into::kResult},
    {"full", "fill_value", Into::kResult},
    {"full_like", "fill_value", Into::kResult},
    {"new_full", "fill_value", Into::kResult},
    {"scalar_tensor", "s", Into::kResultUnlessHalf},
    {"where.Scalar", "self", Into::kResultUnlessHalf},
    {"where.Scalar", "other", Into::kResultUnlessHalf},
    {"where.ScalarSelf", "self", Into::kResultUnlessHalf},
    {"where.ScalarOther", "other", Into::kResultUnlessHalf},
    {"scatter.value", "value", Into::kResult},
    {"scatter.value_reduce", "value", Into::kResult},
    {"constant_pad_nd", "value", Into::kResult},
    {"_unsafe_masked_index", "fill", Into::kResult},
    {"threshold", "threshold", Into::kComputed},
    {"threshold", "value", Into::kResult},
    {"threshold_backward", "threshold", Into::kComputed},
    {"hardshrink", "lambd", Into::kResult},
    {"hardshrink_backward", "lambd", Into::kResult},
    {"softshrink_backward", "lambd", Into::kResult},
    {"leaky_relu", "negative_slope", Into::kComputed},
    {"leaky_relu_backward", "negative_slope", Into::kComputed},
    {"elu", "alpha", Into::kComputed},
    {"elu", "scale", Into::kComputed},
    {"elu", "input_scale", Into::kComputed},
    {"elu_backward", "alpha", Into::kComputed},
    {"elu_backward", "scale", Into::kComputed},
    {"elu_backward", "input_scale", Into::kComputed},
    {"celu", "alpha", Into::kComputed},
    {"softplus", "beta", Into::kComputed},
    {"softplus", "threshold", Into::kComputed},
    {"softplus_backward", "beta", Into::kComputed},
    {"softplus_backward", "threshold", Into::kComputed},
    {"addcmul", "value", Into::kComputed},
    {"addcdiv", "value", Into::kComputed},
    {"lerp.Scalar", "weight", Into::kComputed},
    {"logit", "eps", Into::kResult},
    {"addmv", "alpha", Into::kResult},
    {"addmv", "beta", Into::kResult},
    {"add.Tensor", "alpha", Into::kResult, /*of_sum=*/true},
    {"add.Scalar", "alpha", Into::kResult, /*of_sum=*/true},
    {"index_add", "alpha", Into::kResult},
    {"sub.Tensor", "alpha", Into::kResultNegated, /*of_sum=*/true},
    {"sub.Scalar", "alpha", Into::kResultNegated, /*of_sum=*/true},
    {"rsub.Tensor", "alpha", Into::kResultNegated, /*of_sum=*/true},
    {"rsub.Scalar", "alpha", Into::kResultNegated, /*of_sum=*/true},
    {"linspace", "start", Into::kResult},
    {"linspace", "end", Into::kResult},
    {"pow.Tensor_Scalar", "exponent", Into::kExponent},
};

// What an operator takes, whatever its operands' dtype.
struct Domain {
  const char* target;
  const char* argument;
  double min;
  double max;
  bool zero = true;
};

constexpr Domain kDomains[] = {
    {"smooth_l1_loss", "beta", 0, HUGE_VAL},
    {"celu", "alpha", -HUGE_VAL, HUGE_VAL, /*zero=*/false},
    {"bernoulli.p", "p", 0, 1},
    {"native_dropout", "p", 0, 1},
};

template <class Row>
using RowsByTarget = absl::flat_hash_map<OperatorName, std::vector<const Row*>>;

template <class Row>
const RowsByTarget<Row>* ByTarget(absl::Span<const Row> rows) {
  auto* map = new RowsByTarget<Row>;
  for (const Row& row : rows) {
    const std::string target = absl::StrCat("aten.", row.target);
    (*map)[target.find('.', 5) == std::string::npos ? target + ".default" : target].push_back(&row);
  }
  return map;
}

absl::Span<const Row* const> RowsOf(const GraphNode& node) {
  static const auto* table = ByTarget<Row>(kRows);
  const auto rows = table->find(node.target);
  return rows == table->end() ? absl::Span<const Row* const>() : rows->second;
}

absl::Span<const Domain* const> DomainsOf(const GraphNode& node) {
  static const auto* table = ByTarget<Domain>(kDomains);
  const auto rows = table->find(node.target);
  return rows == table->end() ? absl::Span<const Domain* const>() : rows->second;
}

// Every number converts to F64.
v1::DType DTypeOf(Into into, v1::DType result) {
  switch (into) {
    case Into::kComputed: return ComputeDType(result);
    case Into::kResultUnlessHalf: return ir::IsHalf(result) ? v1::F64 : result;
    case Into::kExponent: return result == v1::F32 ? v1::F64 : result;
    default: return result;
  }
}

// A sum of integers or booleans takes no fraction, others take no boolean.
bool IsFactorOf(v1::DType result, const Argument& factor) {
  if (std::holds_alternative<FloatArg>(factor)) return IsFloat(result) || IsComplex(result);
  return !std::holds_alternative<BoolArg>(factor) || result == v1::BOOL;
}

// The integers that eager takes.
IntegerBounds BoundsOf(const Row& row, v1::DType result) {
  IntegerBounds bounds = ConvertingIntegers(DTypeOf(row.into, result));
  if (row.into == Into::kExponent && IsInteger(result)) bounds.min = 0;
  if (row.into == Into::kResultNegated && bounds.min != INT64_MIN) bounds = {-bounds.max, -bounds.min};
  return bounds;
}

absl::Status Refuse(const Row& row, const std::string& number, v1::DType result) {
  return absl::InvalidArgumentError(absl::StrCat(row.target, ": ", row.argument, " = ", number,
                                                 " cannot be converted to ", DTypeName(result),
                                                 " without overflow"));
}

// A number that depends on sizes is refused when it is too large: the graph then runs without this program.
absl::Status CheckInteger(Graph& graph, const Row& row, ExprId number, v1::DType result) {
  ExprPool& exprs = graph.exprs;
  const IntegerBounds bounds = BoundsOf(row, result);
  const auto known = exprs.AsConst(number);
  if (row.into == Into::kExponent && IsInteger(result) && known.value_or(0) < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        row.target, ": integers to negative integer powers are not allowed, but the exponent is ", *known));
  }
  for (ExprId holds :
       {exprs.Le(exprs.Const(bounds.min), number), exprs.Le(number, exprs.Const(bounds.max))}) {
    const auto always = exprs.AsConst(holds);
    if (always == 0) return Refuse(row, exprs.ToString(number), result);
    if (!always.has_value()) graph.conditions.push_back(holds);
  }
  return absl::OkStatus();
}

absl::Status CheckDomains(const Graph& graph, const GraphNode& node) {
  for (const Domain* domain : DomainsOf(node)) {
    const std::optional<double> number = NumberOf(graph, node.Find(domain->argument));
    if (!number.has_value()) continue;
    if (*number >= domain->min && *number <= domain->max && (domain->zero || *number != 0)) continue;
    return absl::InvalidArgumentError(absl::StrCat(domain->target, ": ", domain->argument, " = ", *number,
                                                   " is out of range (node ", node.origin, ", ",
                                                   node.target.text(), ")"));
  }
  return absl::OkStatus();
}

// Where eager looks whether there is anything to choose from. Of sizes that are known before a call torch has
// looked.
void CheckExtreme(Graph& graph, const GraphNode& node) {
  static const auto* targets = new absl::flat_hash_set<OperatorName>{
      Op::kAmax, Op::kAmin, Op::kMax, Op::kMin, Op::kMaxDim, Op::kMinDim, Op::kArgmax, Op::kArgmin};
  if (!targets->contains(node.target)) return;
  const ValueId self = TensorOf(node, "self");
  if (self == kNoValue) return;
  const std::vector<ExprId> sizes = graph.type(self).sizes;
  std::vector<ExprId> dims, reduced;
  if (const Argument* argument = node.Find("dim")) {
    if (const auto* dim = std::get_if<IntArg>(argument)) dims = {dim->value};
    if (const auto* list = std::get_if<IntListArg>(argument)) dims = list->values;
  }
  const int64_t rank = static_cast<int64_t>(sizes.size());
  for (ExprId id : dims) {
    const int64_t dim = graph.exprs.AsConst(id).value_or(rank);
    if (dim < -rank || dim >= rank) return;
    reduced.push_back(sizes[dim < 0 ? dim + rank : dim]);
  }
  const ExprId count = graph.exprs.Product(dims.empty() ? sizes : reduced);
  if (!HasUnbacked(graph.exprs, graph.symbols, count)) return;
  const ExprId holds = graph.exprs.Ne(count, graph.exprs.Const(0));
  if (!graph.exprs.AsConst(holds)) graph.conditions.push_back(holds);
}

}  // namespace

absl::Status CheckNumbers(Graph& graph) {
  for (const GraphNode& node : graph.nodes) {
    CheckExtreme(graph, node);
    KILN_RETURN_IF_ERROR(CheckDomains(graph, node));
    if (node.results.empty() || node.results[0] == kNoValue) continue;
    const v1::DType result = graph.type(node.results[0]).dtype;
    for (const Row* row : RowsOf(node)) {
      const Argument* argument = node.Find(row->argument);
      absl::Status status;
      if (argument == nullptr) continue;
      if (row->of_sum && !IsFactorOf(result, *argument)) {
        status = absl::InvalidArgumentError(
            absl::StrCat(row->target, ": ", row->argument, " is no factor of ", DTypeName(result)));
      } else if (const auto* integer = std::get_if<IntArg>(argument)) {
        status = CheckInteger(graph, *row, integer->value, result);
      } else if (const auto* real = std::get_if<FloatArg>(argument)) {
        if (!Converts(real->value, DTypeOf(row->into, result)))
          status = Refuse(*row, absl::StrCat(real->value), result);
      }
      if (!status.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(status.message(), " (node ", node.origin, ", ", node.target.text(), ")"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace kiln
