// What follows from a kernel alone: its ops and stages by number, how an index moves along a loop, which ops
// give the same values. The rules of schedules choose by it and verify by it, and emitters ask it.
//
// Ownership: borrows the kernel, which must outlive it, stay as it is, and have passed ir/verify_kernel.h.
// Threads: any, once made. Errors: none. Limits: what walks an expression takes as long as the expression
// written out; ask ExpressionsFit first of a kernel that nobody bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "compiler/ir/ops.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

struct StageFacts {
  const v1::Stage* stage = nullptr;
  uint32_t first_op = 0;
  bool has_scan = false;
  bool has_reduce = false;
  bool cheap = true;       // nothing but memory and simple arithmetic
  bool short_body = true;  // that, and an exponential at most

  uint32_t end_op() const { return first_op + static_cast<uint32_t>(stage->ops_size()); }
  // One loop along a row, in any order.
  bool IsRowPass() const { return !has_scan && stage->inner_size() == 1; }
};

class KernelFacts {
 public:
  explicit KernelFacts(const v1::Kernel& kernel);

  const v1::Kernel& kernel() const { return kernel_; }
  const std::vector<StageFacts>& stages() const { return stages_; }
  const std::vector<const v1::LoopOp*>& ops() const { return ops_; }
  const v1::LoopOp& op(uint32_t id) const { return *ops_[id]; }
  LoopOpcode opcode(uint32_t id) const { return static_cast<LoopOpcode>(ops_[id]->op()); }
  bool IsReduction(uint32_t id, v1::ReduceKind kind) const;
  int uses(uint32_t id) const { return uses_[id]; }  // as an argument
  const StageFacts& StageOf(uint32_t op) const;
  bool WalksRows() const { return kernel_.schedule().vector_dim() == v1::VECTOR_INNER_LAST; }

  // Expressions share parts, and code is emitted for each use: is none too large, written out?
  bool ExpressionsFit() const;

  // ---- expressions
  std::optional<int64_t> ConstantExpr(uint32_t expr) const;  // a constant as it stands
  // How much an expression changes with a step of the loop variable; nullopt: not by a constant. `varies`:
  // does the value of an op change with the variable? Without it none does: ask DependsOnOps first where some
  // may.
  using Varies = absl::FunctionRef<bool(uint32_t op)>;
  std::optional<int64_t> CoefficientOf(uint32_t expr, uint32_t variable, Varies varies) const;
  std::optional<int64_t> CoefficientOf(uint32_t expr, uint32_t variable) const;
  bool DependsOnOps(uint32_t expr) const;
  bool IndexesByValues() const {
    return indexes_by_values_;
  }  // somewhere: an op may be asked for by an index

  // ---- ops
  // A load of what the kernel only reads, at a place that no op gives.
  bool IsSourceLoad(const v1::LoopOp& op) const;
  // Two ops that give the same values in loops of the same extents.
  bool SameValue(uint32_t a, uint32_t b) const;
  // Does an op's stage walk the row that this one walks?
  bool SameRow(const StageFacts& stage, uint32_t op) const;

 private:
  bool SameValue(uint32_t a, uint32_t b, int* budget) const;

  const v1::Kernel& kernel_;
  std::vector<StageFacts> stages_;
  std::vector<const v1::LoopOp*> ops_;
  std::vector<int> uses_;
  bool indexes_by_values_ = false;
};

}  // namespace kiln
