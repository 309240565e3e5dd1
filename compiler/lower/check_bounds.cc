#include "compiler/lower/check_bounds.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/lower/index_bounds.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

class BoundsChecker {
 public:
  explicit BoundsChecker(LoopGraph& loops) : loops_(loops), exprs_(loops.exprs) {}

  absl::Status Check(const LoopNode& node) {
    // Loops over nothing reach nothing.
    ExprId idle = exprs_.Const(0);
    for (const std::vector<LoopVar>* vars : {&node.outer, &node.inner}) {
      for (const LoopVar& var : *vars) idle = exprs_.Or(idle, exprs_.Le(var.extent, exprs_.Const(0)));
    }
    for (LoopOpId id = 0; id < node.body.size(); ++id) {
      const LoopOpData& op = node.body.op(id);
      size_t values = op.op == LoopOpcode::kLoad ? 0 : 1;  // arguments before the mask
      bool access = op.op == LoopOpcode::kLoad || op.op == LoopOpcode::kStore;
      if (!access || op.args.size() > values) continue;
      std::optional<IndexBounds> bounds = BoundsOf(exprs_, op.index);
      if (!bounds) continue;
      ExprId span = loops_.buffers[op.buffer].span;
      if (!loops_.Require(exprs_.Or(idle, exprs_.Lt(bounds->most, span))) ||
          !loops_.Require(exprs_.Or(idle, exprs_.Le(exprs_.Const(0), bounds->least)))) {
        return absl::InvalidArgumentError(
            absl::StrCat("node ", node.origins.empty() ? 0 : node.origins.back(), " (",
                         absl::StrJoin(node.operators, ", "), "): declared sizes do not fit: elements ",
                         exprs_.ToString(bounds->least), " to ", exprs_.ToString(bounds->most),
                         " of a tensor of ", exprs_.ToString(span)));
      }
    }
    return absl::OkStatus();
  }

 private:
  LoopGraph& loops_;
  ExprPool& exprs_;
};

}  // namespace

absl::Status CheckBounds(LoopGraph& loops) {
  BoundsChecker checker(loops);
  for (const LoopGraphNode& node : loops.nodes) {
    if (node.kind == LoopGraphNode::Kind::kLoops) KILN_RETURN_IF_ERROR(checker.Check(node.loops));
  }
  return absl::OkStatus();
}

}  // namespace kiln
