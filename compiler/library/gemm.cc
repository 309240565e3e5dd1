#include "compiler/library/gemm.h"

#include "compiler/graph/arguments.h"
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
    {.target = Op::kIntMm, .a = "self", .b = "mat2", .c = "", .into_results = false},
    {.target = kOnednnGemm, .a = "X", .b = "W", .c = "B", .onednn = true, .into_results = false},
};

// A factor that is not given is 1.
std::optional<double> FactorOf(const Graph& graph, const GraphNode& node, absl::string_view name) {
  const Argument* argument = node.Find(name);
  return argument == nullptr ? 1 : NumberOf(graph, argument);
}

Gemm::Activation ActivationOf(const GraphNode& node, const GemmForm& form) {
  if (form.gelu.empty()) return Gemm::Activation::kNone;
  return FlagOf(node, form.gelu) ? Gemm::Activation::kGeluTanh : Gemm::Activation::kRelu;
}

}  // namespace

absl::Span<const GemmForm> GemmForms() { return kForms; }

const GemmForm* GemmFormOf(const OperatorName& target) { return FormOf<GemmForm>(kForms, target); }

std::optional<Gemm> GemmOf(const Graph& graph, const GraphNode& node) {
  const GemmForm* const form = GemmFormOf(node.target);
  if (form == nullptr || node.results.size() != 1 || node.results[0] == kNoValue) return std::nullopt;
  Gemm gemm{.form = form,
            .a = TensorOf(node, form->a),
            .b = TensorOf(node, form->b),
            .d = node.results[0],
            .c = form->c.empty() ? kNoValue : TensorOf(node, form->c)};
  if (gemm.a == kNoValue || gemm.b == kNoValue) return std::nullopt;
  if (gemm.c == kNoValue && !form->c.empty() && !form->onednn) return std::nullopt;
  const TensorType &a = graph.type(gemm.a), &b = graph.type(gemm.b), &d = graph.type(gemm.d);
  const size_t first = form->batched ? 1 : 0;
  for (const TensorType* type : {&a, &b, &d}) {
    if (type->rank() != first + 2 || type->strides.size() != type->rank()) return std::nullopt;
  }
  gemm.alpha = FactorOf(graph, node, "alpha");
  gemm.beta = FactorOf(graph, node, "beta");
  gemm.activation = ActivationOf(node, *form);
  gemm.rows = a.sizes[first];
  gemm.columns = b.sizes[form->onednn ? 0 : first + 1];
  gemm.summed = b.sizes[form->onednn ? 1 : first];
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

Arguments GemmArguments(Op target, const GemmOperands& operands) {
  const GemmForm& form = *GemmFormOf(target);
  const auto argument = [](absl::string_view name, ValueId value) {
    return std::pair<std::string, Argument>(name, value == kNoValue ? Argument(NoneArg{}) : TensorArg{value});
  };
  if (form.onednn) {
    return {argument(form.a, operands.a), argument(form.b, operands.b), argument(form.c, operands.c),
            {"attr", StringArg{"none"}},  {"scalars", FloatListArg{}},  {"algorithm", StringArg{""}}};
  }
  Arguments args;
  if (!form.c.empty()) args.push_back(argument(form.c, operands.c));
  args.push_back(argument(form.a, operands.a));
  args.push_back(argument(form.b, operands.b));
  return args;
}

Arguments WithOperands(const GraphNode& node, const GemmOperands& operands) {
  const GemmForm& form = *GemmFormOf(node.target);
  Arguments args = node.args;
  for (auto& [name, argument] : args) {
    if (name == form.a) argument = TensorArg{operands.a};
    if (name == form.b) argument = TensorArg{operands.b};
    if (name == form.c) argument = TensorArg{operands.c};
  }
  return args;
}

}  // namespace kiln
