#include "compiler/lower/node_arguments.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "compiler/lower/lowering_context.h"

namespace kiln {

const LoweredTensor& NodeArguments::Tensor(absl::string_view name) const {
  static const LoweredTensor* none = [] {
    auto* tensor = new LoweredTensor;
    tensor->dtype = v1::F32;
    tensor->body =
        std::make_shared<VirtualBody>(VirtualBody{{LoopOpData{LoopOpcode::kConstant, v1::F32}}, 0});
    return tensor;
  }();
  const ValueId id = TensorValue(name);
  if (context_.IsDefined(id)) return context_.value(id);
  context_.checks().Invalid(absl::StrCat("argument '", name, "' is not a defined tensor"));
  return *none;
}

ValueId NodeArguments::TensorValue(absl::string_view name) const {
  const Argument* argument = node_.Find(name);
  const auto* tensor = argument == nullptr ? nullptr : std::get_if<TensorArg>(argument);
  return tensor == nullptr ? kNoValue : tensor->value;
}

std::vector<ValueId> NodeArguments::TensorList(absl::string_view name) const {
  const Argument* argument = node_.Find(name);
  const auto* list = argument == nullptr ? nullptr : std::get_if<TensorListArg>(argument);
  if (list != nullptr) return list->values;
  context_.checks().Invalid(absl::StrCat("argument '", name, "' is not a list of tensors"));
  return {};
}

ExprId NodeArguments::Expr(absl::string_view name, ExprId otherwise) const {
  const Argument* argument = node_.Find(name);
  if (argument == nullptr) return otherwise;
  if (const auto* value = std::get_if<IntArg>(argument)) return value->value;
  if (const auto* value = std::get_if<BoolArg>(argument)) return context_.Const(value->value);
  context_.checks().Invalid(absl::StrCat("argument '", name, "' is not an integer"));
  return otherwise;
}

int64_t NodeArguments::Int(absl::string_view name, int64_t otherwise) const {
  if (!Has(name)) return otherwise;
  const auto value = context_.exprs().AsConst(Expr(name, context_.Const(otherwise)));
  if (value.has_value()) return *value;
  context_.checks().Fail(
      absl::UnimplementedError(absl::StrCat("unsupported: symbolic argument '", name, "'")));
  return otherwise;
}

bool NodeArguments::Bool(absl::string_view name, bool otherwise) const {
  const Argument* argument = node_.Find(name);
  if (argument == nullptr) return otherwise;
  if (const auto* value = std::get_if<BoolArg>(argument)) return value->value;
  return Int(name, otherwise) != 0;
}

double NodeArguments::Float(absl::string_view name, double otherwise) const {
  const Argument* argument = node_.Find(name);
  if (argument == nullptr) return otherwise;
  if (const auto* value = std::get_if<FloatArg>(argument)) return value->value;
  return static_cast<double>(Int(name, static_cast<int64_t>(otherwise)));
}

std::string NodeArguments::String(absl::string_view name, absl::string_view otherwise) const {
  const Argument* argument = node_.Find(name);
  const auto* value = argument == nullptr ? nullptr : std::get_if<StringArg>(argument);
  return value == nullptr ? std::string(otherwise) : value->value;
}

std::vector<ExprId> NodeArguments::ExprList(absl::string_view name) const {
  const Argument* argument = node_.Find(name);
  if (argument == nullptr) return {};
  if (const auto* list = std::get_if<IntListArg>(argument)) return list->values;
  if (const auto* value = std::get_if<IntArg>(argument)) return {value->value};
  context_.checks().Invalid(absl::StrCat("argument '", name, "' is not a list of integers"));
  return {};
}

std::vector<int64_t> NodeArguments::IntList(absl::string_view name) const {
  std::vector<int64_t> list;
  for (ExprId value : ExprList(name)) {
    const auto known = context_.exprs().AsConst(value);
    if (!known.has_value())
      context_.checks().Fail(
          absl::UnimplementedError(absl::StrCat("unsupported: symbolic argument '", name, "'")));
    list.push_back(known.value_or(0));
  }
  return list;
}

size_t NodeArguments::WrapDim(int64_t dim, size_t rank) const {
  const int64_t limit = std::max<int64_t>(static_cast<int64_t>(rank), 1);
  if (dim < -limit || dim >= limit) {
    context_.checks().Invalid(absl::StrCat("dimension ", dim, " of a tensor of rank ", rank));
    return 0;
  }
  return static_cast<size_t>(dim < 0 ? dim + limit : dim);
}

size_t NodeArguments::Dim(absl::string_view name, size_t rank, int64_t otherwise) const {
  return WrapDim(Int(name, otherwise), rank);
}

std::vector<size_t> NodeArguments::Dims(absl::string_view name, size_t rank) const {
  std::vector<size_t> dims;
  for (int64_t dim : IntList(name)) dims.push_back(WrapDim(dim, rank));
  if (dims.empty()) {
    for (size_t dim = 0; dim < rank; ++dim) dims.push_back(dim);
  }
  std::sort(dims.begin(), dims.end());
  if (std::adjacent_find(dims.begin(), dims.end()) != dims.end())
    context_.checks().Invalid("a dimension appears twice");
  dims.erase(std::unique(dims.begin(), dims.end()), dims.end());
  if (rank == 0) dims.clear();
  return dims;
}

}  // namespace kiln
