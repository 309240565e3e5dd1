#include "compiler/lower/lowering_checks.h"

#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/expr_leaves.h"
#include "compiler/graph/expr_proofs.h"
#include "compiler/lower/index_bounds.h"

namespace kiln {
namespace {

// The open masks are known to hold nowhere.
bool IsMaskedOut(const LoopRecorder& ops) {
  const std::optional<LoopOpId> mask = ops.mask();
  if (!mask.has_value()) return false;
  const LoopOpData& op = ops.body().op(*mask);
  return op.op == LoopOpcode::kConstant && op.bits == 0;
}

// An open mask compares an index that has a variable in common with `index`.
bool MaskNames(LoopRecorder& ops, ExprId index) {
  const std::optional<LoopOpId> mask = ops.mask();
  if (!mask.has_value()) return false;
  const ExprPool& exprs = ops.exprs();
  const std::vector<ExprId> leaves = LeavesOf(exprs, index);
  std::vector<LoopOpId> pending = {*mask};
  absl::flat_hash_set<LoopOpId> seen;
  while (!pending.empty()) {
    const LoopOpId id = pending.back();
    pending.pop_back();
    if (!seen.insert(id).second) continue;
    const LoopOpData& op = ops.body().op(id);
    if (op.op == LoopOpcode::kIndexExpr) {
      for (ExprId leaf : leaves) {
        if (exprs.Extent(leaf).has_value() && DependsOn(exprs, op.index, leaf)) return true;
      }
    }
    // What a load gives bounds no index, whatever its address is made of.
    if (op.op != LoopOpcode::kLoad) pending.insert(pending.end(), op.args.begin(), op.args.end());
  }
  return false;
}

}  // namespace

void LoweringChecks::Fail(const absl::Status& status) {
  if (status_.ok() && !status.ok()) status_ = status;
}

void LoweringChecks::CheckSize(ExprId have, ExprId want) {
  ExprPool& exprs = out_.exprs;
  const auto a = exprs.AsConst(have), b = exprs.AsConst(want);
  if (a.has_value() && b.has_value() && *a != *b) {
    Invalid(absl::StrCat("a size of ", *a, " where ", *b, " is declared"));
  } else if (!ProvablyEqual(exprs, have, want) && !out_.Require(exprs.Eq(have, want))) {
    Invalid(
        absl::StrCat("a size of ", exprs.ToString(have), " where ", exprs.ToString(want), " is declared"));
  }
}

void LoweringChecks::CheckSizes(const std::vector<ExprId>& have, const std::vector<ExprId>& want) {
  if (have.size() != want.size()) return Invalid("the result's rank does not fit");
  for (size_t dim = 0; dim < have.size(); ++dim) CheckSize(have[dim], want[dim]);
}

void LoweringChecks::CheckIndex(LoopRecorder& ops, absl::Span<const ExprId> index,
                                const std::vector<ExprId>& sizes) {
  if (IsMaskedOut(ops)) return;
  ExprPool& exprs = out_.exprs;
  for (size_t dim = 0; dim < index.size() && dim < sizes.size(); ++dim) {
    const auto extent = exprs.Extent(index[dim]);
    if (extent == sizes[dim]) continue;
    // An operator opens a mask to keep the indices that it compares inside.
    if (MaskNames(ops, index[dim])) continue;
    const auto loop = extent.has_value() ? exprs.AsConst(*extent) : std::nullopt;
    const auto size = exprs.AsConst(sizes[dim]);
    if (loop.has_value() && size.has_value()) {
      if (*loop > *size) ops.Fail(absl::StrCat("a dimension of size ", *size, " is read as one of ", *loop));
      continue;
    }
    const auto inside = IsInBounds(exprs, index[dim], sizes[dim]);
    if (inside.has_value() && !out_.Require(*inside)) {
      ops.Fail(absl::StrCat("index ", exprs.ToString(index[dim]), " of a dimension of size ",
                            exprs.ToString(sizes[dim])));
    }
  }
}

}  // namespace kiln
