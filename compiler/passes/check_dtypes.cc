#include "compiler/passes/check_dtypes.h"

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "compiler/ir/dtype_groups.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/passes/types.h"

namespace kiln {
namespace {

// What eager wants of an operand's dtype.
enum class Wants {
  kSame,       // the other operand's
  kParameter,  // the other operand's, or F32 beside F16 and BF16
  kClass,      // I64 or U8
  kPosition,   // I64
  kIndex,      // I64 or I32
  kNumber,     // not BOOL, or beside the other operand that is no BOOL
  kFraction,   // a float, or beside the other operand that is one
};

constexpr char kNormalizations[] =
    "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit_functional "
    "_native_batch_norm_legit.no_stats _native_batch_norm_legit_no_training";

constexpr char kNumeric[] =
    "sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar abs ceil floor trunc round round.decimals relu threshold "
    "argmax argmin dot vdot mv trace reflection_pad1d reflection_pad2d "
    "reflection_pad3d replication_pad1d replication_pad2d replication_pad3d";

struct Row {
  const char* targets;  // without "aten." and ".default"
  const char* argument;
  Wants wants;
  const char* other = nullptr;
};

constexpr Row kRows[] = {
    {"index_put _unsafe_masked_index_put_accumulate heaviside", "values", Wants::kSame, "self"},
    {"index_add index_copy put", "source", Wants::kSame, "self"},
    {"index_copy put index_fill.int_Scalar index_fill.int_Tensor", "index", Wants::kPosition},
    {"index_select index_add", "index", Wants::kIndex},
    {"binary_cross_entropy", "target", Wants::kSame, "self"},
    {"binary_cross_entropy", "weight", Wants::kSame, "self"},
    {"nll_loss_forward nll_loss2d_forward", "target", Wants::kClass},
    {"nll_loss_forward nll_loss2d_forward", "weight", Wants::kSame, "self"},
    {"_softmax_backward_data _log_softmax_backward_data", "output", Wants::kSame, "grad_output"},
    {kNormalizations, "weight", Wants::kParameter, "input"},
    {kNormalizations, "bias", Wants::kParameter, "input"},
    {kNormalizations, "bias", Wants::kSame, "weight"},
    {kNormalizations, "running_mean", Wants::kParameter, "input"},
    {kNormalizations, "running_var", Wants::kSame, "running_mean"},
    {kNormalizations, "input", Wants::kFraction},
    {kNumeric, "self", Wants::kNumber},
    {"sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar ldexp.Tensor", "other", Wants::kNumber},
    {"pow.Tensor_Tensor", "self", Wants::kNumber, "exponent"},
    {"logaddexp logaddexp2", "self", Wants::kNumber, "other"},
    {"clamp.Tensor", "self", Wants::kNumber, "min"},
    {"bucketize.Tensor", "self", Wants::kNumber, "boundaries"},
    {"addcmul", "self", Wants::kNumber, "tensor1"},
    {"addcdiv", "tensor1", Wants::kFraction, "tensor2"},
    {"frac elu celu gelu glu silu mish softplus hardshrink hardsigmoid hardswish _prelu_kernel lerp.Scalar "
     "lerp.Tensor soft_margin_loss bernoulli",
     "self", Wants::kFraction},
    {"bernoulli.Tensor", "p", Wants::kFraction},
    {"smooth_l1_loss huber_loss", "self", Wants::kFraction, "target"},
    {"_softmax_backward_data _log_softmax_backward_data", "grad_output", Wants::kFraction},
};

using RowsByTarget = absl::flat_hash_map<OperatorName, std::vector<const Row*>>;

const RowsByTarget& Table() {
  static const auto* table = [] {
    auto* map = new RowsByTarget;
    for (const Row& row : kRows) {
      for (absl::string_view target : absl::StrSplit(row.targets, ' ')) {
        (*map)[absl::StrCat("aten.", target, absl::StrContains(target, '.') ? "" : ".default")].push_back(
            &row);
      }
    }
    return map;
  }();
  return *table;
}

// Of a tensor, and where numbers are asked for BOOL for Python's True and False.
v1::DType DTypeOf(const Graph& graph, const GraphNode& node, absl::string_view name, Wants wants) {
  const ValueId value = TensorOf(node, name);
  if (value != kNoValue) return graph.type(value).dtype;
  const Argument* argument = node.Find(name);
  const bool truth = argument != nullptr && std::holds_alternative<BoolArg>(*argument);
  return truth && wants == Wants::kNumber ? v1::BOOL : v1::DTYPE_UNSPECIFIED;
}

bool Holds(Wants wants, v1::DType dtype, v1::DType other) {
  switch (wants) {
    case Wants::kSame: return dtype == other;
    case Wants::kParameter: return dtype == other || (dtype == v1::F32 && ir::IsHalf(other));
    case Wants::kClass: return dtype == v1::I64 || dtype == v1::U8;
    case Wants::kPosition: return dtype == v1::I64;
    case Wants::kIndex: return dtype == v1::I64 || dtype == v1::I32;
    case Wants::kNumber: return dtype != v1::BOOL || other != v1::BOOL;
    case Wants::kFraction: return IsFloat(dtype) || IsFloat(other);
  }
  return true;
}

}  // namespace

absl::Status CheckDTypes(const Graph& graph) {
  for (const GraphNode& node : graph.nodes) {
    const auto rows = Table().find(node.target);
    if (rows == Table().end()) continue;
    for (const Row* row : rows->second) {
      const v1::DType dtype = DTypeOf(graph, node, row->argument, row->wants);
      const v1::DType beside = row->other == nullptr ? dtype : DTypeOf(graph, node, row->other, row->wants);
      if (dtype == v1::DTYPE_UNSPECIFIED || beside == v1::DTYPE_UNSPECIFIED) continue;
      if (Holds(row->wants, dtype, beside)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          absl::StripPrefix(node.target.text(), "aten."), ": ", row->argument, " is ", DTypeName(dtype),
          row->other == nullptr ? "" : absl::StrCat(" beside ", row->other, " of ", DTypeName(beside)),
          " (node ", node.origin, ", ", node.target.text(), ")"));
    }
  }
  return absl::OkStatus();
}

}  // namespace kiln
