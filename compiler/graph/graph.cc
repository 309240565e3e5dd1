#include "compiler/graph/graph.h"

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "compiler/graph/expr_leaves.h"

namespace kiln {
namespace {

std::string Exprs(const ExprPool& pool, const std::vector<ExprId>& ids) {
  auto text = [&](std::string* out, ExprId id) { absl::StrAppend(out, pool.ToString(id)); };
  return absl::StrCat("[", absl::StrJoin(ids, ", ", text), "]");
}

std::string ValueName(ValueId value) { return value == kNoValue ? "None" : absl::StrCat("%", value); }

template <typename T>
std::string Numbers(const std::vector<T>& values) {
  return absl::StrCat("[", absl::StrJoin(values, ", "), "]");
}

// "f32[s0, 768]", and the strides where they are not row-major.
std::string TypeText(const ExprPool& pool, const TensorType& type) {
  if (type.dtype == v1::DTYPE_UNSPECIFIED) return "undefined";
  std::string text = absl::StrCat(DTypeName(type.dtype), Exprs(pool, type.sizes));
  // Printing must not grow the pool, so the default strides are found in a copy of what is needed.
  ExprPool scratch;
  std::vector<ExprId> sizes, strides;
  for (ExprId size : type.sizes) sizes.push_back(ImportExpr(scratch, pool, size));
  for (ExprId stride : type.strides) strides.push_back(ImportExpr(scratch, pool, stride));
  if (strides != ContiguousStrides(scratch, sizes))
    absl::StrAppend(&text, " strides ", Exprs(pool, type.strides));
  if (type.offset != 0) absl::StrAppend(&text, " offset ", pool.ToString(type.offset));
  if (type.device != v1::CPU) absl::StrAppend(&text, " on ", v1::DeviceType_Name(type.device));
  return text;
}

struct ArgumentText {
  const ExprPool& pool;
  std::string operator()(const NoneArg&) const { return "None"; }
  std::string operator()(const TensorArg& arg) const { return ValueName(arg.value); }
  std::string operator()(const TensorListArg& arg) const {
    auto text = [](std::string* out, ValueId id) { absl::StrAppend(out, ValueName(id)); };
    return absl::StrCat("[", absl::StrJoin(arg.values, ", ", text), "]");
  }
  std::string operator()(const IntArg& arg) const { return pool.ToString(arg.value); }
  std::string operator()(const IntListArg& arg) const { return Exprs(pool, arg.values); }
  std::string operator()(const FloatArg& arg) const {
    std::string text = absl::StrCat(arg.value);
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  }
  std::string operator()(const FloatListArg& arg) const { return Numbers(arg.values); }
  std::string operator()(const BoolArg& arg) const { return arg.value ? "True" : "False"; }
  std::string operator()(const BoolListArg& arg) const { return Numbers(arg.values); }
  std::string operator()(const StringArg& arg) const {
    return absl::StrCat("'", absl::CEscape(arg.value), "'");
  }
  std::string operator()(const DTypeArg& arg) const { return std::string(DTypeName(arg.value)); }
  std::string operator()(const MemoryFormatArg& arg) const {
    return absl::StrCat("memory_format:", arg.value);
  }
  std::string operator()(const LayoutArg& arg) const { return absl::StrCat("layout:", arg.value); }
  std::string operator()(const DeviceArg& arg) const { return v1::DeviceType_Name(arg.value); }
};

std::string NodeText(const Graph& graph, const GraphNode& node) {
  std::vector<std::string> results, args;
  for (ValueId value : node.results) {
    results.push_back(absl::StrCat(ValueName(value), ": ", TypeText(graph.exprs, graph.type(value))));
  }
  for (const auto& [name, value] : node.args) {
    args.push_back(absl::StrCat(name, "=", std::visit(ArgumentText{graph.exprs}, value)));
  }
  return absl::StrCat(absl::StrJoin(results, ", "), results.empty() ? "" : " = ", node.target.text(), "(",
                      absl::StrJoin(args, ", "), ")");
}

std::string InputText(const Graph& graph, const GraphInput& input) {
  if (input.sym_int) return absl::StrCat("int ", graph.exprs.ToString(*input.sym_int));
  std::string text =
      absl::StrCat(ValueName(input.value), ": ", TypeText(graph.exprs, graph.type(input.value)));
  if (input.fact.is_static()) absl::StrAppend(&text, " static");
  if (input.fact.mutated()) absl::StrAppend(&text, " mutated");
  if (input.fact.donated()) absl::StrAppend(&text, " donated");
  return text;
}

}  // namespace

const Argument* GraphNode::Find(absl::string_view name) const {
  for (const auto& [key, value] : args) {
    if (key == name) return std::holds_alternative<NoneArg>(value) ? nullptr : &value;
  }
  return nullptr;
}

ValueId Graph::NewValue(TensorType type) {
  values.push_back(std::move(type));
  return static_cast<ValueId>(values.size() - 1);
}

std::string Graph::ToString() const {
  std::string text = absl::StrCat("graph ", v1::GraphKind_Name(kind), "\n");
  for (size_t i = 0; i < symbols.size(); ++i) {
    absl::StrAppend(&text, "symbol s", i, " in [", symbols[i].min(), ", ");
    absl::StrAppend(&text, symbols[i].max() == INT64_MAX ? "inf" : absl::StrCat(symbols[i].max()), "]\n");
  }
  for (const GraphInput& input : inputs) absl::StrAppend(&text, "input ", InputText(*this, input), "\n");
  for (const GraphNode& node : nodes) absl::StrAppend(&text, NodeText(*this, node), "\n");
  for (const GraphOutput& output : outputs) {
    absl::StrAppend(
        &text, "output ",
        output.sym_int ? absl::StrCat("int ", exprs.ToString(*output.sym_int)) : ValueName(output.value),
        output.offset ? absl::StrCat(" offset ", exprs.ToString(*output.offset)) : "",
        output.fact.user_visible() ? " user_visible" : "", "\n");
  }
  for (ExprId guard : guards) absl::StrAppend(&text, "guard ", exprs.ToString(guard), "\n");
  return text;
}

std::vector<ExprId> ContiguousStrides(ExprPool& pool, const std::vector<ExprId>& sizes) {
  std::vector<ExprId> strides(sizes.size());
  ExprId stride = pool.Const(1);
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride = pool.Mul(stride, pool.Max(sizes[i], pool.Const(1)));
  }
  return strides;
}

bool IsUnbacked(const v1::Symbol& symbol) { return symbol.kind() == v1::SYMBOL_UNBACKED; }

bool IsBoundByValue(const v1::Symbol& symbol) {
  return symbol.binding().source() == v1::SymbolBinding::VALUE_ITEM ||
         symbol.binding().source() == v1::SymbolBinding::VALUE_SIZE;
}

bool HasUnbacked(const ExprPool& exprs, const std::vector<v1::Symbol>& symbols, ExprId id) {
  if (absl::c_none_of(symbols, IsUnbacked)) return false;
  return absl::c_any_of(LeavesOf(exprs, id), [&](ExprId leaf) {
    const ExprNode& node = exprs.node(leaf);
    return node.op == v1::EXPR_SYMBOL && IsUnbacked(symbols[node.value]);
  });
}

bool IsCustom(absl::string_view target) {
  constexpr absl::string_view kTorch[] = {
      "_c10d_functional", "aten",  "c10d",      "c10d_functional",      "fbgemm",     "kiln", "mkl",
      "mkldnn",           "prims", "quantized", "quantized_decomposed", "torchvision"};
  return !absl::c_linear_search(kTorch, target.substr(0, target.find('.')));
}

}  // namespace kiln
