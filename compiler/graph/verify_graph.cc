#include "compiler/graph/verify_graph.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

absl::Status Wrong(absl::string_view what) { return absl::InternalError(what); }

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph), defined_(graph.values.size(), false) {}

  absl::Status Run() {
    KILN_RETURN_IF_ERROR(graph_.exprs.status());
    for (size_t i = 0; i < graph_.inputs.size(); ++i) {
      KILN_RETURN_IF_ERROR(StatusWrap(CheckInput(graph_.inputs[i]), absl::StrCat("graph input ", i)));
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      absl::Status status = CheckNode(graph_.nodes[i]);
      if (!status.ok())
        return StatusWrap(status, absl::StrCat("node ", i, " (", graph_.nodes[i].target.text(), ")"));
    }
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      KILN_RETURN_IF_ERROR(StatusWrap(CheckOutput(graph_.outputs[i]), absl::StrCat("graph output ", i)));
    }
    for (ExprId guard : graph_.guards) KILN_RETURN_IF_ERROR(StatusWrap(CheckExpr(guard), "guard"));
    return absl::OkStatus();
  }

 private:
  absl::Status CheckExpr(ExprId id) {
    return id < graph_.exprs.size() ? absl::OkStatus() : Wrong("names an expression that does not exist");
  }

  absl::Status CheckType(const TensorType& type) {
    if (type.dtype == v1::DTYPE_UNSPECIFIED) return absl::OkStatus();
    if (ByteSize(type.dtype) == 0) return Wrong("has an unknown dtype");
    if (type.rank() > kRankMax) return Wrong("has too many dimensions");
    if (type.strides.size() != type.sizes.size()) return Wrong("has another number of strides than of sizes");
    for (const std::vector<ExprId>* list : {&type.sizes, &type.strides}) {
      for (ExprId id : *list) {
        KILN_RETURN_IF_ERROR(CheckExpr(id));
        if (graph_.exprs.Range(id).max < 0) return Wrong("has a negative size or stride");
      }
    }
    return CheckExpr(type.offset);
  }

  absl::Status Define(ValueId value) {
    if (value >= defined_.size()) return Wrong(absl::StrCat("defines %", value, ", which does not exist"));
    if (defined_[value]) return Wrong(absl::StrCat("defines %", value, " a second time"));
    defined_[value] = true;
    return StatusWrap(CheckType(graph_.type(value)), absl::StrCat("%", value));
  }

  absl::Status Use(ValueId value) {
    if (value >= defined_.size() || !defined_[value]) {
      return Wrong(absl::StrCat("uses %", value, ", which is not defined before it"));
    }
    if (graph_.type(value).dtype == v1::DTYPE_UNSPECIFIED)
      return Wrong(absl::StrCat("uses %", value, ", which is undefined"));
    return absl::OkStatus();
  }

  absl::Status CheckInput(const GraphInput& input) {
    if (input.sym_int) return CheckExpr(*input.sym_int);
    return Define(input.value);
  }

  absl::Status CheckNode(const GraphNode& node) {
    if (node.target.empty()) return Wrong("has no target");
    std::set<absl::string_view> names;
    for (const auto& [name, value] : node.args) {
      if (!names.insert(name).second) return Wrong(absl::StrCat("has two arguments '", name, "'"));
      KILN_RETURN_IF_ERROR(StatusWrap(CheckArgument(value), name));
    }
    for (ValueId value : node.results) {
      if (value != kNoValue) KILN_RETURN_IF_ERROR(Define(value));
    }
    return absl::OkStatus();
  }

  absl::Status CheckArgument(const Argument& argument) {
    if (const auto* tensor = std::get_if<TensorArg>(&argument)) return Use(tensor->value);
    if (const auto* tensors = std::get_if<TensorListArg>(&argument)) {
      for (ValueId value : tensors->values) {
        if (value != kNoValue) KILN_RETURN_IF_ERROR(Use(value));
      }
    }
    if (const auto* number = std::get_if<IntArg>(&argument)) return CheckExpr(number->value);
    if (const auto* numbers = std::get_if<IntListArg>(&argument)) {
      for (ExprId id : numbers->values) KILN_RETURN_IF_ERROR(CheckExpr(id));
    }
    return absl::OkStatus();
  }

  absl::Status CheckOutput(const GraphOutput& output) {
    if (output.sym_int) return CheckExpr(*output.sym_int);
    if (output.offset) KILN_RETURN_IF_ERROR(CheckExpr(*output.offset));
    return output.value == kNoValue ? absl::OkStatus() : Use(output.value);
  }

  const Graph& graph_;
  std::vector<bool> defined_;  // by value
};

}  // namespace

absl::Status VerifyGraph(const Graph& graph) { return Verifier(graph).Run(); }

}  // namespace kiln
