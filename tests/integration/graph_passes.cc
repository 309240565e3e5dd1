// Runs the passes on graphs and prints what they leave, for tests that evaluate it with PyTorch.
//
// stdin: frames of a 4-byte little-endian length and the bytes of a v1::Graph, in any form.
// stdout: one line of JSON a frame: {"error": text} or
//   {"inputs": [id | null], "nodes": [{"target", "args": {name: [kind, value]}, "results": [[id, dtype,
//   sizes]]}],
//    "outputs": [id | {"int": expression} | null]}
// Expressions are Python's over s0, s1, …
#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/frontend/import.h"
#include "compiler/graph/canonical.h"
#include "compiler/library/attention.h"
#include "compiler/library/gemm.h"
#include "compiler/passes/pipeline.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

std::string Quoted(absl::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + "\"";
}

class Printer {
 public:
  explicit Printer(const Graph& graph) : graph_(graph) {}

  std::string Text() {
    std::string text = "{\"inputs\": [";
    absl::StrAppend(&text, absl::StrJoin(graph_.inputs, ", ", [&](std::string* out, const GraphInput& input) {
      absl::StrAppend(out, input.sym_int ? "null" : absl::StrCat(input.value));
    }));
    absl::StrAppend(&text, "], \"nodes\": [");
    absl::StrAppend(&text, absl::StrJoin(graph_.nodes, ", ", [&](std::string* out, const GraphNode& node) {
      absl::StrAppend(out, Node(node));
    }));
    absl::StrAppend(&text, "], \"outputs\": [");
    absl::StrAppend(&text,
                    absl::StrJoin(graph_.outputs, ", ", [&](std::string* out, const GraphOutput& output) {
                      if (output.sym_int) {
                        absl::StrAppend(out, "{\"int\": ", Expr(*output.sym_int), "}");
                      } else {
                        absl::StrAppend(out, Value(output.value));
                      }
                    }));
    return text + "]}";
  }

 private:
  std::string Expr(ExprId id) const { return Quoted(graph_.exprs.ToString(id)); }
  static std::string Value(ValueId value) { return value == kNoValue ? "null" : absl::StrCat(value); }
  std::string Exprs(const std::vector<ExprId>& ids) const {
    return absl::StrCat(
        "[", absl::StrJoin(ids, ", ", [&](std::string* out, ExprId id) { absl::StrAppend(out, Expr(id)); }),
        "]");
  }
  static std::string Exact(double value) {
    char text[64];
    std::snprintf(text, sizeof text, "\"%.17g\"", value);
    return text;
  }

  // Of compiler/library's nodes the calls that lowering makes of them: PyTorch knows those.
  std::string Node(const GraphNode& made) const {
    GraphNode node = made;
    if (const auto gemm = GemmOf(graph_, made)) node = GemmCallOf(*gemm, made);
    if (const auto attention = AttentionOf(graph_, made)) node = AttentionCallOf(*attention, made);
    std::string text = absl::StrCat("{\"target\": ", Quoted(node.target), ", \"args\": {");
    absl::StrAppend(&text, absl::StrJoin(node.args, ", ", [&](std::string* out, const auto& argument) {
      absl::StrAppend(out, Quoted(argument.first), ": ", std::visit(ArgumentText{*this}, argument.second));
    }));
    absl::StrAppend(&text, "}, \"results\": [");
    absl::StrAppend(&text, absl::StrJoin(node.results, ", ", [&](std::string* out, ValueId id) {
      if (id == kNoValue || graph_.type(id).dtype == v1::DTYPE_UNSPECIFIED) {
        absl::StrAppend(out, "null");
        return;
      }
      const TensorType& type = graph_.type(id);
      absl::StrAppend(out, "[", id, ", ", type.dtype, ", ", Exprs(type.sizes), ", ", Exprs(type.strides),
                      "]");
    }));
    return text + "]}";
  }

  struct ArgumentText {
    const Printer& p;
    std::string operator()(const NoneArg&) const { return "[\"none\", null]"; }
    std::string operator()(const TensorArg& a) const {
      return absl::StrCat("[\"tensor\", ", Value(a.value), "]");
    }
    std::string operator()(const TensorListArg& a) const {
      return absl::StrCat(
          "[\"tensors\", [",
          absl::StrJoin(a.values, ", ", [](std::string* out, ValueId v) { absl::StrAppend(out, Value(v)); }),
          "]]");
    }
    std::string operator()(const IntArg& a) const { return absl::StrCat("[\"int\", ", p.Expr(a.value), "]"); }
    std::string operator()(const IntListArg& a) const {
      return absl::StrCat("[\"ints\", ", p.Exprs(a.values), "]");
    }
    std::string operator()(const FloatArg& a) const {
      return absl::StrCat("[\"float\", ", Exact(a.value), "]");
    }
    std::string operator()(const FloatListArg& a) const {
      return absl::StrCat(
          "[\"floats\", [",
          absl::StrJoin(a.values, ", ", [](std::string* out, double v) { absl::StrAppend(out, Exact(v)); }),
          "]]");
    }
    std::string operator()(const BoolArg& a) const {
      return absl::StrCat("[\"bool\", ", a.value ? "true" : "false", "]");
    }
    std::string operator()(const BoolListArg& a) const {
      return absl::StrCat(
          "[\"bools\", [",
          absl::StrJoin(a.values, ", ",
                        [](std::string* out, bool v) { absl::StrAppend(out, v ? "true" : "false"); }),
          "]]");
    }
    std::string operator()(const StringArg& a) const {
      return absl::StrCat("[\"string\", ", Quoted(a.value), "]");
    }
    std::string operator()(const DTypeArg& a) const { return absl::StrCat("[\"dtype\", ", a.value, "]"); }
    std::string operator()(const MemoryFormatArg& a) const {
      return absl::StrCat("[\"memory_format\", ", a.value, "]");
    }
    std::string operator()(const LayoutArg& a) const { return absl::StrCat("[\"layout\", ", a.value, "]"); }
    std::string operator()(const DeviceArg& a) const { return absl::StrCat("[\"device\", ", a.value, "]"); }
  };

  const Graph& graph_;
};

absl::StatusOr<std::string> Run(const std::string& frame) {
  v1::Graph message;
  if (!message.ParseFromString(frame)) return absl::InvalidArgumentError("not a graph");
  KILN_ASSIGN_OR_RETURN(const CanonicalGraph canonical, Canonicalize(message));
  KILN_ASSIGN_OR_RETURN(Graph graph, ImportGraph(canonical.bytes, v1::GraphFacts()));
  // Each is compared with eager's, layout included: as the caller's own, not as what a backward takes as it
  // lies.
  for (GraphOutput& output : graph.outputs) output.fact.set_user_visible(true);
  KILN_RETURN_IF_ERROR(RunPasses(graph, {}));
  std::string text = Printer(graph).Text();
  // How the canonical symbols are named in the graph that came in.
  text.pop_back();
  absl::StrAppend(&text, ", \"symbols\": [", absl::StrJoin(canonical.symbols, ", "), "]}");
  return text;
}

}  // namespace
}  // namespace kiln

int main() {
  while (true) {
    uint32_t size = 0;
    if (std::fread(&size, sizeof size, 1, stdin) != 1) return 0;
    std::string frame(size, '\0');
    if (std::fread(frame.data(), 1, size, stdin) != size) return 1;
    const absl::StatusOr<std::string> text = kiln::Run(frame);
    const std::string line =
        text.ok() ? *text : absl::StrCat("{\"error\": ", kiln::Quoted(text.status().ToString()), "}");
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }
}
