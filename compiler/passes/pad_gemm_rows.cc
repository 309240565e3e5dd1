#include "compiler/passes/pad_gemm_rows.h"

#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "compiler/library/choice.h"
#include "compiler/passes/graph_builder.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/passes/pinned_layouts.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

int64_t Missing(int64_t size) { return (kPaddedElements - size % kPaddedElements) % kPaddedElements; }

struct Sizes {
  int64_t rows, columns, summed;
};

class GemmPadder {
 public:
  GemmPadder(Graph& graph, const Machine& machine)
      : graph_(graph),
        machine_(machine),
        producers_(Producers(graph)),
        pinned_(PinnedLayouts(graph)),
        before_(graph.nodes),
        replacement_(IdentityReplacement(graph)) {}

  absl::Status Run() {
    for (const GraphNode& node : before_) {
      const std::optional<Gemm> gemm = GemmOf(graph_, node);
      const std::optional<Sizes> sizes = gemm ? Unpadded(*gemm) : std::nullopt;
      if (!sizes) {
        nodes_.push_back(node);
        continue;
      }
      GraphBuilder b(graph_, &nodes_, node.origin);
      b.device = graph_.type(gemm->d).device;
      const Value padded = PaddedGemm(b, node, *gemm, *sizes);
      const Value rows = Slice(padded, 0, b.Int(0), b.Int(sizes->rows), 1);
      const Value cut = Slice(rows, 1, b.Int(0), b.Int(sizes->columns), 1);
      KILN_RETURN_IF_ERROR(b.status());
      replacement_[gemm->d] = cut.id();
    }
    graph_.nodes = std::move(nodes_);
    replacement_.resize(graph_.values.size());
    for (size_t v = before_values_; v < replacement_.size(); ++v) replacement_[v] = static_cast<ValueId>(v);
    ReplaceUses(graph_, replacement_);
    return absl::OkStatus();
  }

 private:
  // Of a gemm that is to be padded.
  std::optional<Sizes> Unpadded(const Gemm& gemm) const {
    if (pinned_[gemm.d] || !WantsPaddedRows(graph_, gemm, machine_)) return std::nullopt;
    const ExprPool& exprs = graph_.exprs;
    return Sizes{*exprs.AsConst(gemm.rows), *exprs.AsConst(gemm.columns), *exprs.AsConst(gemm.summed)};
  }

  Value PaddedGemm(GraphBuilder& b, const GraphNode& node, const Gemm& gemm, const Sizes& sizes) {
    const int64_t rows = Missing(sizes.rows), columns = Missing(sizes.columns),
                  summed = Missing(sizes.summed);
    const Value left = Padded(b, gemm.a, rows, summed);
    const Value right = Padded(b, gemm.b, summed, columns);
    if (gemm.c == kNoValue) return Matmul(left, right);
    const Value bias = b.Use(gemm.c);
    const Value row = columns == 0 ? bias : ConstantPad(bias, {b.Int(0), b.Int(columns)}, 0);
    return b.Node(node.target, WithOperands(node, {.a = left.id(), .b = right.id(), .c = row.id()}),
                  b.Dense(graph_.type(gemm.d).dtype, {left.size(0), right.size(1)}));
  }

  // Appends `rows` and `columns` of zeros. A matrix that several gemms read, transposed or not, is padded
  // once.
  Value Padded(GraphBuilder& b, ValueId id, int64_t rows, int64_t columns) {
    if (rows + columns == 0) return b.Use(id);
    const int32_t producer = id < producers_.size() ? producers_[id] : -1;
    if (producer >= 0 && before_[producer].target == Op::kPermute) {  // of two dimensions: a transpose
      return Transpose(Padded(b, TensorOf(before_[producer], "self"), columns, rows), 0, 1);
    }
    ValueId& known = padded_.try_emplace({id, rows, columns}, kNoValue).first->second;
    if (known == kNoValue) {
      known = ConstantPad(b.Use(id), {b.Int(0), b.Int(columns), b.Int(0), b.Int(rows)}, 0).id();
    }
    return b.Use(known);
  }

  Graph& graph_;
  const Machine& machine_;
  const std::vector<int32_t> producers_;
  const std::vector<bool> pinned_;
  const std::vector<GraphNode> before_;
  std::vector<GraphNode> nodes_;
  std::vector<ValueId> replacement_;
  const size_t before_values_ = replacement_.size();
  std::map<std::tuple<ValueId, int64_t, int64_t>, ValueId> padded_;  // by value, rows and columns more
};

}  // namespace

absl::Status PadGemmRows(Graph& graph, const Machine& machine) { return GemmPadder(graph, machine).Run(); }

}  // namespace kiln
