#include "compiler/library/gemm.h"

#include <algorithm>

#include "compiler/graph/arguments.h"
#include "compiler/graph/dtypes.h"
#include "compiler/graph/expr_eval.h"
#include "compiler/library/form_of.h"

namespace kiln {
namespace {

constexpr GemmForm kForms[] = {
    {.target = Op::kMm, .a = "self", .b = "mat2", .c = ""},
    {.target = Op::kAddmm, .a = "mat1", .b = "mat2", .c = "self"},
    {.target = Op::kAddmmActivation, .a = "mat1", .b = "mat2", .c = "self", .gelu = "use_gelu"},
    {.target = Op::kBmm, .a = "self", .b = "mat2", .c = "", .batched = true},
    {.target = Op::kBaddbmm, .a = "batch1", .b = "batch2", .c = "self", .batched = true},
    {.target = Op::kIntMm, .a = "self", .b = "mat2", .c = "", .into_results = false, .integers = true},
    {.target = kOnednnGemm, .a = "X", .b = "W", .c = "B", .onednn = true, .into_results = false},
};

// Names of kiln.gemm's arguments and their words.
constexpr char kA[] = "a", kB[] = "b", kC[] = "c", kBeta[] = "beta", kAlpha[] = "alpha",
               kActivation[] = "activation", kRelu[] = "relu", kGeluTanh[] = "gelu_tanh",
               kLibrary[] = "library", kOnednn[] = "onednn";

// A factor that is not given is 1.
std::optional<double> FactorOf(const Graph& graph, const GraphNode& node, absl::string_view name) {
  const Argument* argument = node.Find(name);
  return argument == nullptr ? 1 : NumberOf(graph, argument);
}

Gemm::Activation ActivationOf(const GraphNode& node) {
  const absl::string_view word = StringOf(node, kActivation);
  if (word == kRelu) return Gemm::Activation::kRelu;
  return word == kGeluTanh ? Gemm::Activation::kGeluTanh : Gemm::Activation::kNone;
}

// The form that computes what the operands and words of a node say; nullptr where none does.
const GemmForm* FormFor(const Graph& graph, const GraphNode& node, const Gemm& gemm) {
  const bool batched = graph.type(gemm.d).rank() == 3, onednn = StringOf(node, kLibrary) == kOnednn;
  const bool adds = gemm.c != kNoValue, activates = gemm.activation != Gemm::Activation::kNone;
  const bool integers = graph.type(gemm.a).dtype == v1::I8 && graph.type(gemm.d).dtype == v1::I32;
  const auto* found = std::find_if(std::begin(kForms), std::end(kForms), [&](const GemmForm& form) {
    if (form.batched != batched || form.onednn != onednn || form.integers != integers) return false;
    return onednn ? !activates : form.c.empty() != adds && form.gelu.empty() != activates;
  });
  return found == std::end(kForms) ? nullptr : found;
}

bool IsArgumentOf(const GemmForm& form, absl::string_view name) {
  if (name == form.a || name == form.b) return true;
  if (form.onednn) return name == form.c || name == "attr" || name == "scalars" || name == "algorithm";
  if (form.c.empty()) return false;
  return name == form.c || name == kBeta || name == kAlpha || (!form.gelu.empty() && name == form.gelu);
}

std::pair<std::string, Argument> Operand(absl::string_view name, ValueId value) {
  return {std::string(name), value == kNoValue ? Argument(NoneArg{}) : TensorArg{value}};
}

}  // namespace

absl::Span<const GemmForm> GemmForms() { return kForms; }

const GemmForm* GemmFormOf(const OperatorName& target) { return FormOf<GemmForm>(kForms, target); }

std::optional<Gemm> GemmOf(const Graph& graph, const GraphNode& node) {
  if (node.target != Op::kGemm || node.results.size() != 1 || node.results[0] == kNoValue)
    return std::nullopt;
  Gemm gemm{.a = TensorOf(node, kA), .b = TensorOf(node, kB), .d = node.results[0], .c = TensorOf(node, kC)};
  if (gemm.a == kNoValue || gemm.b == kNoValue) return std::nullopt;
  const TensorType &a = graph.type(gemm.a), &b = graph.type(gemm.b), &d = graph.type(gemm.d);
  if (d.rank() != 2 && d.rank() != 3) return std::nullopt;
  for (const TensorType* type : {&a, &b, &d}) {
    if (type->rank() != d.rank() || type->strides.size() != type->rank() || IsComplex(type->dtype))
      return std::nullopt;
  }
  gemm.alpha = FactorOf(graph, node, kAlpha);
  gemm.beta = FactorOf(graph, node, kBeta);
  gemm.activation = ActivationOf(node);
  gemm.form = FormFor(graph, node, gemm);
  if (gemm.form == nullptr) return std::nullopt;
  const size_t first = d.rank() - 2;
  gemm.rows = a.sizes[first];
  gemm.columns = b.sizes[gemm.form->onednn ? 0 : first + 1];
  gemm.summed = b.sizes[gemm.form->onednn ? 1 : first];
  return gemm;
}

bool HasOneDType(const Graph& graph, const Gemm& gemm) {
  const v1::DType dtype = graph.type(gemm.d).dtype;
  return graph.type(gemm.a).dtype == dtype && graph.type(gemm.b).dtype == dtype;
}

bool AddsRow(const Graph& graph, const Gemm& gemm) {
  if (gemm.c == kNoValue) return false;
  const TensorType& c = graph.type(gemm.c);
  return c.rank() == 1 && c.strides.size() == 1 && c.sizes[0] == gemm.columns;
}

bool AddsBias(const Graph& graph, const Gemm& gemm) {
  if (!AddsRow(graph, gemm) || gemm.beta != 1) return false;
  const TensorType &c = graph.type(gemm.c), &d = graph.type(gemm.d);
  return c.dtype == d.dtype && c.device == d.device && graph.exprs.AsConst(c.strides[0]) == 1;
}

std::optional<double> Multiplications(const Graph& graph, const Gemm& gemm) {
  double multiplications = 1;
  std::vector<ExprId> sizes = {gemm.rows, gemm.summed, gemm.columns};
  if (gemm.form->batched) sizes.push_back(graph.type(gemm.d).sizes[0]);
  for (const ExprId size : sizes) {
    const auto estimate = graph.exprs.Evaluate(
        size, [&](const ExprNode& symbol) { return EstimateOfSymbol(graph.symbols, symbol.value); });
    if (!estimate.ok()) return std::nullopt;
    multiplications *= static_cast<double>(*estimate);
  }
  return multiplications;
}

Arguments GemmArguments(const GemmOperands& operands) {
  Arguments args = {Operand(kA, operands.a), Operand(kB, operands.b)};
  if (operands.c != kNoValue) args.push_back(Operand(kC, operands.c));
  return args;
}

Arguments WithOperands(const GraphNode& node, const GemmOperands& operands) {
  Arguments args = GemmArguments(operands);
  for (const auto& [name, argument] : node.args) {
    if (name != kA && name != kB && name != kC) args.emplace_back(name, argument);
  }
  return args;
}

void SetActivation(GraphNode& node, Gemm::Activation activation) {
  if (activation == Gemm::Activation::kNone) return;
  node.args.emplace_back(kActivation, StringArg{activation == Gemm::Activation::kRelu ? kRelu : kGeluTanh});
}

void SetOnednn(GraphNode& node) { node.args.emplace_back(kLibrary, StringArg{kOnednn}); }

std::optional<GraphNode> GemmNodeOf(const Graph& graph, const GraphNode& node) {
  const GemmForm* const form = GemmFormOf(node.target);
  if (form == nullptr) return std::nullopt;
  GraphNode made{.target = Op::kGemm, .args = {}, .results = node.results, .origin = node.origin};
  made.args = GemmArguments({.a = TensorOf(node, form->a),
                             .b = TensorOf(node, form->b),
                             .c = form->c.empty() ? kNoValue : TensorOf(node, form->c)});
  for (const auto& [name, argument] : node.args) {
    if (!IsArgumentOf(*form, name)) return std::nullopt;
    if (name == kBeta || name == kAlpha) made.args.emplace_back(name, argument);
  }
  if (!form->gelu.empty()) {
    SetActivation(made, FlagOf(node, form->gelu) ? Gemm::Activation::kGeluTanh : Gemm::Activation::kRelu);
  }
  if (form->onednn) {
    if (const absl::string_view attr = StringOf(node, "attr"); !attr.empty() && attr != "none")
      return std::nullopt;
    SetOnednn(made);
  }
  const std::optional<Gemm> gemm = GemmOf(graph, made);
  if (!gemm || gemm->form != form) return std::nullopt;
  return made;
}

GraphNode GemmCallOf(const Gemm& gemm, const GraphNode& node) {
  const GemmForm& form = *gemm.form;
  GraphNode call{.target = form.target, .args = {}, .results = node.results, .origin = node.origin};
  if (form.onednn) {
    call.args = {Operand(form.a, gemm.a),     Operand(form.b, gemm.b),     Operand(form.c, gemm.c),
                 {"attr", StringArg{"none"}}, {"scalars", FloatListArg{}}, {"algorithm", StringArg{""}}};
    return call;
  }
  if (!form.c.empty()) call.args.push_back(Operand(form.c, gemm.c));
  call.args.push_back(Operand(form.a, gemm.a));
  call.args.push_back(Operand(form.b, gemm.b));
  for (const auto& [name, argument] : node.args) {
    if (name == kBeta || name == kAlpha) call.args.emplace_back(name, argument);
  }
  if (!form.gelu.empty()) {
    call.args.emplace_back(form.gelu, BoolArg{gemm.activation == Gemm::Activation::kGeluTanh});
  }
  return call;
}

}  // namespace kiln
