#include "compiler/lower/lowering_checks.h"

#include "absl/strings/str_cat.h"
#include "compiler/graph/expr_proofs.h"
#include "compiler/lower/index_reach.h"

namespace kiln {

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
  if (ops.masked_out()) return;
  ExprPool& exprs = out_.exprs;
  for (size_t dim = 0; dim < index.size() && dim < sizes.size(); ++dim) {
    const auto extent = exprs.Extent(index[dim]);
    if (extent == sizes[dim]) continue;
    // An operator opens a mask to keep the indices that it compares inside.
    if (ops.MaskNames(index[dim])) continue;
    const auto loop = extent.has_value() ? exprs.AsConst(*extent) : std::nullopt;
    const auto size = exprs.AsConst(sizes[dim]);
    if (loop.has_value() && size.has_value()) {
      if (*loop > *size) ops.Fail(absl::StrCat("a dimension of size ", *size, " is read as one of ", *loop));
      continue;
    }
    const auto inside = StaysInside(exprs, index[dim], sizes[dim]);
    if (inside.has_value() && !out_.Require(*inside)) {
      ops.Fail(absl::StrCat("index ", exprs.ToString(index[dim]), " of a dimension of size ",
                            exprs.ToString(sizes[dim])));
    }
  }
}

}  // namespace kiln
