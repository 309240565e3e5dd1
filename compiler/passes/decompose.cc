#include "compiler/passes/decompose.h"

#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/passes/decomposition.h"
#include "compiler/passes/graph_builder.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/passes/types.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

class Decomposer {
 public:
  Decomposer(Graph& graph, const DecomposeOptions& options) : graph_(graph), options_(options) {}

  absl::Status Run() {
    std::vector<GraphNode> source = std::move(graph_.nodes);
    done_.reserve(source.size() * 2);
    for (GraphNode& node : source) {
      KILN_RETURN_IF_ERROR(Visit(std::move(node), 0));
      if (done_.size() > kGraphNodesMax) {
        return absl::InvalidArgumentError(
            absl::StrCat("the decomposed graph has more than ", kGraphNodesMax, " nodes"));
      }
    }
    graph_.nodes = std::move(done_);
    return absl::OkStatus();
  }

 private:
  absl::Status Visit(GraphNode node, int depth) {
    auto row = Decompositions().find(node.target);
    if (row == Decompositions().end() || depth > kDecomposeDepthMax || TouchesComplex(node) ||
        (options_.fallback_random && IsRandomDecomposition(node.target))) {
      done_.push_back(std::move(node));
      return absl::OkStatus();
    }
    std::vector<GraphNode> emitted;
    GraphBuilder builder(graph_, &emitted, node.origin);
    DecomposeContext match(builder, node, options_.machine);
    const bool covered = row->second(match) && RanksFit(emitted);
    if (builder.status().ok() && covered) Finish(match, node, emitted);
    if (!builder.status().ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("node ", node.origin, " (", node.target.text(), "): ", builder.status().message()));
    }
    if (!covered) {
      done_.push_back(std::move(node));
      return absl::OkStatus();
    }
    for (GraphNode& next : emitted) KILN_RETURN_IF_ERROR(Visit(std::move(next), depth + 1));
    return absl::OkStatus();
  }

  // A row may write a dimension as several: with more than a tensor has the node stays as it is.
  bool RanksFit(const std::vector<GraphNode>& emitted) const {
    return absl::c_all_of(emitted, [&](const GraphNode& node) {
      return absl::c_all_of(node.results, [&](ValueId v) { return graph_.type(v).rank() <= kRankMax; });
    });
  }

  // Those of complex numbers are library calls, undecomposed: rows hold for real ones (conj is the identity).
  bool TouchesComplex(const GraphNode& node) const {
    bool complex = false;
    const auto look = [&](ValueId value) { complex = complex || IsComplex(graph_.type(value).dtype); };
    ForEachOperand(node, look);
    for (ValueId result : node.results) look(result);
    return complex;
  }

  // Lets the emitted nodes define the values that the replaced node defined, with their declared types.
  void Finish(DecomposeContext& match, const GraphNode& node, std::vector<GraphNode>& emitted) {
    GraphBuilder& b = match.b();
    for (size_t i = 0; i < node.results.size(); ++i) {
      if (!match.Wanted(i)) continue;
      Value value = match.results()[i].value;
      if (!value.ok()) return b.Fail(absl::StrCat("result ", i, " cannot be computed"));
      const TensorType declared = graph_.type(node.results[i]);
      if (absl::Status sizes = CheckSizes(value, declared); !sizes.ok()) return b.Fail(sizes.message());
      value = Cast(value, declared.dtype);
      const bool is_view = match.results()[i].is_view;
      if (!CanRetarget(value.id(), is_view, emitted)) value = is_view ? Alias(value) : Clone(value, declared);
      if (!value.ok()) return;
      Retarget(emitted, value.id(), node.results[i]);
      taken_.push_back(node.results[i]);
    }
    taken_.clear();
  }

  absl::Status CheckSizes(const Value& value, const TensorType& declared) {
    if (value.sizes().size() != declared.sizes.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the declared result has rank ", declared.sizes.size(),
                                                     ", not ", value.sizes().size()));
    }
    for (size_t i = 0; i < declared.sizes.size(); ++i) {
      const auto a = graph_.exprs.AsConst(value.sizes()[i]), c = graph_.exprs.AsConst(declared.sizes[i]);
      if (a && c && *a != *c) {
        return absl::InvalidArgumentError(
            absl::StrCat("size ", i, " of the declared result is ", *c, ", not ", *a));
      }
    }
    return absl::OkStatus();
  }

  // True when a node emitted here defines the value and may define the result instead.
  bool CanRetarget(ValueId id, bool is_view, const std::vector<GraphNode>& emitted) const {
    for (ValueId taken : taken_) {
      if (taken == id) return false;
    }
    for (const GraphNode& node : emitted) {
      for (ValueId result : node.results) {
        if (result == id) return is_view || !IsViewNode(node);
      }
    }
    return false;
  }

  static void Retarget(std::vector<GraphNode>& emitted, ValueId from, ValueId to) {
    for (GraphNode& node : emitted) {
      ForEachOperand(node, [&](ValueId& value) {
        if (value == from) value = to;
      });
      for (ValueId& result : node.results) {
        if (result == from) result = to;
      }
    }
  }

  Graph& graph_;
  const DecomposeOptions& options_;
  std::vector<GraphNode> done_;
  std::vector<ValueId> taken_;  // results of the running node that a value already defines
};

}  // namespace

absl::Status Decompose(Graph& graph, const DecomposeOptions& options) {
  return Decomposer(graph, options).Run();
}

}  // namespace kiln
