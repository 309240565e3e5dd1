#include "compiler/passes/expand_foreach.h"

#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kiln {
namespace {

constexpr char kPrefix[] = "aten._foreach_";

struct Row {
  const char* of;       // without "aten._foreach_" and ".default"
  const char* target;   // of one tensor, without "aten." and ".default"
  const char* renamed;  // an argument of the list's operator, "" for none …
  const char* to;       // … and its name there
  const char* again = "";
  const char* to_again = "";
};

// ATen's own loops over these (ForeachOpsKernels.cpp) call the same operators.
constexpr Row kRows[] = {
    {"add.List", "add.Tensor", "", ""},
    {"add.Scalar", "add.Scalar", "scalar", "other"},
    {"add.ScalarList", "add.Scalar", "scalars", "other"},
    {"add.Tensor", "add.Tensor", "", ""},
    {"sub.List", "sub.Tensor", "", ""},
    {"sub.Scalar", "sub.Scalar", "scalar", "other"},
    {"sub.ScalarList", "sub.Scalar", "scalars", "other"},
    {"mul.List", "mul.Tensor", "", ""},
    {"mul.Scalar", "mul.Scalar", "scalar", "other"},
    {"mul.ScalarList", "mul.Scalar", "scalars", "other"},
    {"mul.Tensor", "mul.Tensor", "", ""},
    {"div.List", "div.Tensor", "", ""},
    {"div.Scalar", "div.Scalar", "scalar", "other"},
    {"div.ScalarList", "div.Scalar", "scalars", "other"},
    {"div.Tensor", "div.Tensor", "", ""},
    {"clamp_min.List", "clamp_min.Tensor", "other", "min"},
    {"clamp_min.Scalar", "clamp_min", "scalar", "min"},
    {"clamp_min.ScalarList", "clamp_min", "scalars", "min"},
    {"clamp_max.List", "clamp_max.Tensor", "other", "max"},
    {"clamp_max.Scalar", "clamp_max", "scalar", "max"},
    {"clamp_max.ScalarList", "clamp_max", "scalars", "max"},
    {"maximum.List", "clamp_min.Tensor", "other", "min"},
    {"maximum.Scalar", "clamp_min", "scalar", "min"},
    {"maximum.ScalarList", "clamp_min", "scalars", "min"},
    {"minimum.List", "clamp_max.Tensor", "other", "max"},
    {"minimum.Scalar", "clamp_max", "scalar", "max"},
    {"minimum.ScalarList", "clamp_max", "scalars", "max"},
    {"addcdiv.Scalar", "addcdiv", "", ""},
    {"addcdiv.ScalarList", "addcdiv", "scalars", "value"},
    {"addcmul.Scalar", "addcmul", "", ""},
    {"addcmul.ScalarList", "addcmul", "scalars", "value"},
    {"lerp.List", "lerp.Tensor", "tensors1", "end", "weights", "weight"},
    {"lerp.Scalar", "lerp.Scalar", "tensors1", "end"},
    {"lerp.ScalarList", "lerp.Scalar", "tensors1", "end"},
    {"pow.List", "pow.Tensor_Tensor", "", ""},
    {"pow.Scalar", "pow.Tensor_Scalar", "", ""},
    {"pow.ScalarList", "pow.Tensor_Scalar", "", ""},
    {"pow.ScalarAndTensor", "pow.Scalar", "", ""},
    {"norm.Scalar", "linalg_vector_norm", "", ""},
    {"max", "max", "", ""},
    {"mm", "mm", "", ""},
    {"copy", "copy", "", ""},
    {"zero", "zeros_like", "", ""},
    {"clone", "clone", "", ""},
    {"abs", "abs", "", ""},
    {"acos", "acos", "", ""},
    {"asin", "asin", "", ""},
    {"atan", "atan", "", ""},
    {"ceil", "ceil", "", ""},
    {"cos", "cos", "", ""},
    {"cosh", "cosh", "", ""},
    {"erf", "erf", "", ""},
    {"erfc", "erfc", "", ""},
    {"exp", "exp", "", ""},
    {"expm1", "expm1", "", ""},
    {"floor", "floor", "", ""},
    {"frac", "frac", "", ""},
    {"lgamma", "lgamma", "", ""},
    {"log", "log", "", ""},
    {"log10", "log10", "", ""},
    {"log1p", "log1p", "", ""},
    {"log2", "log2", "", ""},
    {"neg", "neg", "", ""},
    {"reciprocal", "reciprocal", "", ""},
    {"round", "round", "", ""},
    {"rsqrt", "rsqrt", "", ""},
    {"sigmoid", "sigmoid", "", ""},
    {"sign", "sign", "", ""},
    {"sin", "sin", "", ""},
    {"sinh", "sinh", "", ""},
    {"sqrt", "sqrt", "", ""},
    {"tan", "tan", "", ""},
    {"tanh", "tanh", "", ""},
    {"trunc", "trunc", "", ""},
};

std::string Named(absl::string_view name) {
  return absl::StrCat(name, absl::StrContains(name, '.') ? "" : ".default");
}

const Row* RowOf(absl::string_view target) {
  static const auto* rows = [] {
    auto* all = new absl::flat_hash_map<std::string, const Row*>;
    for (const Row& row : kRows) (*all)[Named(row.of)] = &row;
    return all;
  }();
  if (!absl::ConsumePrefix(&target, kPrefix)) return nullptr;
  const auto found = rows->find(target);
  return found == rows->end() ? nullptr : found->second;
}

// The argument for tensor `i`; nothing where the list is shorter or has no tensor there.
std::optional<Argument> Element(const Argument& argument, size_t i) {
  if (const auto* list = std::get_if<TensorListArg>(&argument)) {
    if (i >= list->values.size() || list->values[i] == kNoValue) return std::nullopt;
    return TensorArg{list->values[i]};
  }
  const auto at = [&](const auto& values, auto make) -> std::optional<Argument> {
    if (i >= values.size()) return std::nullopt;
    return make(values[i]);
  };
  if (const auto* list = std::get_if<IntListArg>(&argument)) {
    return at(list->values, [](ExprId value) { return Argument(IntArg{value}); });
  }
  if (const auto* list = std::get_if<FloatListArg>(&argument)) {
    return at(list->values, [](double value) { return Argument(FloatArg{value}); });
  }
  if (const auto* list = std::get_if<BoolListArg>(&argument)) {
    return at(list->values, [](bool value) { return Argument(BoolArg{value}); });
  }
  return argument;
}

absl::string_view NameIn(const Row& row, absl::string_view name) {
  if (name == row.renamed) return row.to;
  if (name == row.again) return row.to_again;
  return name;
}

// One node a result; nothing where the lists do not match.
std::optional<std::vector<GraphNode>> Expanded(const GraphNode& node, const Row& row) {
  std::vector<GraphNode> nodes;
  for (size_t i = 0; i < node.results.size(); ++i) {
    if (node.results[i] == kNoValue) continue;
    GraphNode one;
    one.target = absl::StrCat("aten.", Named(row.target));
    one.origin = node.origin;
    one.results = {node.results[i]};
    for (const auto& [name, argument] : node.args) {
      std::optional<Argument> element = Element(argument, i);
      if (!element) return std::nullopt;
      one.args.emplace_back(NameIn(row, name), *std::move(element));
    }
    nodes.push_back(std::move(one));
  }
  return nodes;
}

}  // namespace

absl::Status ExpandForeach(Graph& graph) {
  std::vector<GraphNode> nodes;
  nodes.reserve(graph.nodes.size());
  for (GraphNode& node : graph.nodes) {
    const Row* row = RowOf(node.target);
    auto expanded = row == nullptr ? std::nullopt : Expanded(node, *row);
    if (!expanded) {
      nodes.push_back(std::move(node));
      continue;
    }
    std::move(expanded->begin(), expanded->end(), std::back_inserter(nodes));
  }
  graph.nodes = std::move(nodes);
  return absl::OkStatus();
}

}  // namespace kiln
