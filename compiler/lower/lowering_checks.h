// What must hold of a graph that is lowered: sizes that agree, indices that stay inside. What is known not to
// hold is an error, the first of which is kept; what is not known becomes a condition of the loop graph.
//
// Ownership: borrows the loop graph. Threads: one. Errors: `status()`; the driver looks after every node.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "compiler/lower/loop_graph.h"
#include "compiler/lower/loop_recorder.h"

namespace kiln {

class LoweringChecks {
 public:
  explicit LoweringChecks(LoopGraph& out) : out_(out) {}

  absl::Status status() const { return status_; }
  void Fail(const absl::Status& status);
  void Invalid(absl::string_view what) { Fail(absl::InvalidArgumentError(what)); }

  // Fails when two sizes that must agree are known to differ; a guard where that is not known.
  void CheckSize(ExprId have, ExprId want);
  void CheckSizes(const std::vector<ExprId>& have, const std::vector<ExprId>& want);
  // Declared sizes make the loops: fails in `ops` where an index is known to leave its dimension, and
  // guards where that is not known. An index that an open mask compares is the operator's own affair.
  void CheckIndex(LoopRecorder& ops, absl::Span<const ExprId> index, const std::vector<ExprId>& sizes);

 private:
  LoopGraph& out_;
  absl::Status status_;
};

}  // namespace kiln
