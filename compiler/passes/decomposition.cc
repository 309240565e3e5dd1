#include "compiler/passes/decomposition.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "compiler/graph/dtype_range.h"

namespace kiln {

DecomposeContext::DecomposeContext(GraphBuilder& builder, const GraphNode& node, const Machine& machine)
    : b_(builder), node_(node), machine_(machine), results_(node.results.size()) {
  for (ValueId result : node.results) {
    const TensorType& type = b_.graph().type(result);
    if (type.dtype != v1::DTYPE_UNSPECIFIED) {
      b_.device = type.device;
      break;
    }
  }
}

const Argument* DecomposeContext::Required(absl::string_view name) {
  const Argument* argument = node_.Find(name);
  if (argument == nullptr) b_.Fail(absl::StrCat("argument '", name, "' is missing"));
  return argument;
}

namespace {

std::string WrongKind(absl::string_view name) {
  return absl::StrCat("argument '", name, "' is of a wrong kind");
}

}  // namespace

bool ConvertsAtRunTime(const Operand& value, const TensorType& type) {
  return value.is_tensor() && value.tensor.ok() && type.device == v1::CPU &&
         !AllConvert(value.tensor.dtype(), type.dtype);
}

Value DecomposeContext::Tensor(absl::string_view name) {
  const Argument* argument = Required(name);
  if (argument == nullptr) return Value();
  const auto* tensor = std::get_if<TensorArg>(argument);
  if (tensor == nullptr) {
    b_.Fail(WrongKind(name));
    return Value();
  }
  return b_.Use(tensor->value);
}

Value DecomposeContext::OptionalTensor(absl::string_view name) {
  if (!Has(name)) return Value();
  const auto* tensor = std::get_if<TensorArg>(node_.Find(name));
  return tensor != nullptr && tensor->value == kNoValue ? Value() : Tensor(name);
}

std::vector<Value> DecomposeContext::Tensors(absl::string_view name) {
  std::vector<Value> values;
  const Argument* argument = Required(name);
  if (argument == nullptr) return values;
  const auto* list = std::get_if<TensorListArg>(argument);
  if (list == nullptr) {
    b_.Fail(WrongKind(name));
    return values;
  }
  for (ValueId id : list->values) values.push_back(id == kNoValue ? Value() : b_.Use(id));
  return values;
}

Operand DecomposeContext::Scalar(absl::string_view name, std::optional<Operand> otherwise) {
  const Argument* argument = node_.Find(name);
  if (argument == nullptr) {
    if (otherwise.has_value()) return *otherwise;
    Required(name);
    return 0;
  }
  if (const auto* tensor = std::get_if<TensorArg>(argument)) return b_.Use(tensor->value);
  if (const auto* number = std::get_if<FloatArg>(argument)) return number->value;
  if (const auto* flag = std::get_if<BoolArg>(argument)) return flag->value;
  if (const auto* integer = std::get_if<IntArg>(argument)) {
    if (auto value = exprs().AsConst(integer->value)) return *value;
    return kiln::Sym{integer->value};
  }
  b_.Fail(WrongKind(name));
  return 0;
}

double DecomposeContext::Float(absl::string_view name, std::optional<double> otherwise) {
  const Argument* argument = node_.Find(name);
  if (argument == nullptr) {
    if (!otherwise.has_value()) Required(name);
    return otherwise.value_or(0);
  }
  const Operand scalar = Scalar(name);
  if (scalar.is_tensor() || scalar.symbolic) {
    b_.Fail(absl::StrCat("argument '", name, "' has to be a constant"));
    return 0;
  }
  return scalar.kind == Operand::Kind::kFloat ? scalar.number : static_cast<double>(scalar.integer);
}

ExprId DecomposeContext::Sym(absl::string_view name, std::optional<ExprId> otherwise) {
  const Argument* argument = node_.Find(name);
  if (argument == nullptr) {
    if (!otherwise.has_value()) Required(name);
    return otherwise.value_or(b_.Int(0));
  }
  if (const auto* integer = std::get_if<IntArg>(argument)) return integer->value;
  if (const auto* flag = std::get_if<BoolArg>(argument)) return b_.Int(flag->value);
  b_.Fail(WrongKind(name));
  return b_.Int(0);
}

int64_t DecomposeContext::Int(absl::string_view name, std::optional<int64_t> otherwise) {
  if (node_.Find(name) == nullptr && otherwise.has_value()) return *otherwise;
  auto value = exprs().AsConst(Sym(name));
  if (!value) b_.Fail(absl::StrCat("argument '", name, "' has to be a constant"));
  return value.value_or(0);
}

std::vector<ExprId> DecomposeContext::Syms(absl::string_view name) {
  const Argument* argument = node_.Find(name);
  if (argument == nullptr) return {};
  if (const auto* list = std::get_if<IntListArg>(argument)) return list->values;
  if (const auto* one = std::get_if<IntArg>(argument)) return {one->value};
  b_.Fail(WrongKind(name));
  return {};
}

std::vector<int64_t> DecomposeContext::Ints(absl::string_view name) {
  std::vector<int64_t> values;
  for (ExprId id : Syms(name)) {
    auto value = exprs().AsConst(id);
    if (!value) b_.Fail(absl::StrCat("argument '", name, "' has to be constant"));
    values.push_back(value.value_or(0));
  }
  return values;
}

std::vector<int64_t> DecomposeContext::Dims(absl::string_view name, const Value& of) {
  std::vector<int64_t> dims = Ints(name);
  if (dims.empty()) {
    for (int64_t i = 0; i < of.rank(); ++i) dims.push_back(i);
    return dims;
  }
  for (int64_t& dim : dims) dim = b_.Dim(dim, of.rank());
  std::sort(dims.begin(), dims.end());
  dims.erase(std::unique(dims.begin(), dims.end()), dims.end());
  if (of.rank() == 0) dims.clear();
  return dims;
}

int64_t DecomposeContext::Dim(absl::string_view name, const Value& of, std::optional<int64_t> otherwise) {
  return b_.Dim(Int(name, otherwise), of.rank());
}

bool DecomposeContext::Bool(absl::string_view name, bool otherwise) {
  const Argument* argument = node_.Find(name);
  if (argument == nullptr) return otherwise;
  if (const auto* flag = std::get_if<BoolArg>(argument)) return flag->value;
  return Int(name) != 0;
}

std::vector<bool> DecomposeContext::Bools(absl::string_view name) {
  const Argument* argument = Required(name);
  if (argument == nullptr) return {};
  if (const auto* list = std::get_if<BoolListArg>(argument)) return list->values;
  b_.Fail(WrongKind(name));
  return {};
}

std::string DecomposeContext::String(absl::string_view name, absl::string_view otherwise) {
  const Argument* argument = node_.Find(name);
  if (argument == nullptr) return std::string(otherwise);
  if (const auto* text = std::get_if<StringArg>(argument)) return text->value;
  b_.Fail(WrongKind(name));
  return std::string(otherwise);
}

v1::DType DecomposeContext::DType(absl::string_view name, v1::DType otherwise) {
  const Argument* argument = node_.Find(name);
  if (argument == nullptr) return otherwise;
  if (const auto* dtype = std::get_if<DTypeArg>(argument)) return dtype->value;
  b_.Fail(WrongKind(name));
  return otherwise;
}

bool DecomposeContext::Wanted(size_t i) const {
  return i < node_.results.size() && node_.results[i] != kNoValue &&
         b_.graph().type(node_.results[i]).dtype != v1::DTYPE_UNSPECIFIED;
}

TensorType DecomposeContext::Type(size_t i) {
  if (i >= node_.results.size()) {
    b_.Fail(absl::StrCat("result ", i, " is missing"));
    return TensorType();
  }
  return b_.graph().type(node_.results[i]);
}

void DecomposeContext::SetAs(size_t i, const Value& value, bool view) {
  if (i < results_.size()) results_[i] = {value, view};
}

namespace {

// "add.Tensor" → "aten.add.Tensor", "relu" → "aten.relu.default", "prims.iota" → "prims.iota.default"
OperatorName FullTarget(absl::string_view name) {
  absl::string_view operator_name = name;
  const bool others =
      absl::ConsumePrefix(&operator_name, "prims.") || absl::ConsumePrefix(&operator_name, "kiln.");
  const bool has_overload = absl::StrContains(operator_name, '.');
  return absl::StrCat(others ? "" : "aten.", name, has_overload ? "" : ".default");
}

}  // namespace

const DecompositionTable& Decompositions() {
  static const auto* table = [] {
    auto* all = new DecompositionTable;
    for (auto rows : {ActivationRows(), AttentionRows(), ConvolutionRows(), CreationRows(), IndexRows(),
                      LossRows(), MatmulRows(), NormalizationRows(), PointwiseRows(), PoolingRows(),
                      RandomRows(), DropoutRows(), ReductionRows(), ResizeRows(), ShapeRows(), UnaryRows()}) {
      for (const DecompositionRow& row : rows) {
        (*all)[FullTarget(row.target)] = row.decompose;
      }
    }
    return all;
  }();
  return *table;
}

bool IsRandomDecomposition(const OperatorName& target) {
  static const auto* targets = [] {
    auto* all = new absl::flat_hash_set<OperatorName>;
    for (const DecompositionRow& row : RandomRows()) all->insert(FullTarget(row.target));
    return all;
  }();
  return targets->contains(target);
}

}  // namespace kiln
