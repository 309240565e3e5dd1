#include "compiler/lower/strides.h"

#include <algorithm>
#include <numeric>

#include "absl/container/inlined_vector.h"

namespace kiln {

bool IsEmpty(ExprPool& exprs, const std::vector<ExprId>& sizes) {
  return std::find(sizes.begin(), sizes.end(), exprs.Const(0)) != sizes.end();
}

std::optional<std::vector<size_t>> DenseOrder(ExprPool& exprs, const std::vector<ExprId>& sizes,
                                              const std::vector<ExprId>& strides) {
  if (sizes.size() != strides.size()) return std::nullopt;
  const ExprId one = exprs.Const(1);
  std::vector<size_t> order;
  std::vector<bool> used(sizes.size(), false);
  size_t left = 0;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    used[dim] = sizes[dim] == one;
    left += !used[dim];
  }
  ExprId expected = one;
  for (; left > 0; --left) {
    size_t found = sizes.size();
    for (size_t dim = sizes.size(); dim-- > 0 && found == sizes.size();) {
      if (!used[dim] && strides[dim] == expected) found = dim;
    }
    if (found == sizes.size()) return std::nullopt;
    used[found] = true;
    order.push_back(found);
    expected = exprs.Mul(expected, sizes[found]);
  }
  return order;
}

bool IsDense(ExprPool& exprs, const std::vector<ExprId>& sizes, const std::vector<ExprId>& strides) {
  if (IsEmpty(exprs, sizes)) return sizes.size() == strides.size();
  return DenseOrder(exprs, sizes, strides).has_value();
}

bool SameLayout(ExprPool& exprs, const std::vector<ExprId>& sizes, const std::vector<ExprId>& a,
                const std::vector<ExprId>& b) {
  if (a.size() != sizes.size() || b.size() != sizes.size()) return false;
  const ExprId one = exprs.Const(1);
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (a[dim] != b[dim] && sizes[dim] != one) return false;
  }
  return true;
}

bool OverlapsItself(ExprPool& exprs, const std::vector<ExprId>& sizes, const std::vector<ExprId>& strides) {
  if (IsEmpty(exprs, sizes)) return false;
  for (size_t a = 0; a < sizes.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      const auto size_a = exprs.AsConst(sizes[a]), size_b = exprs.AsConst(sizes[b]);
      const auto step_a = exprs.AsConst(strides[a]), step_b = exprs.AsConst(strides[b]);
      if (!size_a || !size_b || !step_a || !step_b || *step_a <= 0 || *step_b <= 0) continue;
      const int64_t common = std::gcd(*step_a, *step_b);
      if (*step_b / common < *size_a && *step_a / common < *size_b) return true;
    }
  }
  return false;
}

std::vector<ExprId> PreferredStrides(ExprPool& exprs, const TensorType& type) {
  return IsDense(exprs, type.sizes, type.strides) ? type.strides : ContiguousStrides(exprs, type.sizes);
}

ExprId SpanOfElements(ExprPool& exprs, const std::vector<ExprId>& sizes, const std::vector<ExprId>& strides) {
  if (IsDense(exprs, sizes, strides)) return exprs.Product(sizes);
  const ExprId zero = exprs.Const(0), one = exprs.Const(1);
  ExprId span = one;
  bool may_be_empty = false;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    span = exprs.Add(span, exprs.Mul(exprs.Sub(sizes[dim], one), strides[dim]));
    may_be_empty = may_be_empty || exprs.Range(sizes[dim]).min <= 0;
  }
  if (IsEmpty(exprs, sizes)) return zero;
  return may_be_empty ? exprs.Max(span, zero) : span;
}

ExprId FlatIndex(ExprPool& exprs, const BufferView& view, absl::Span<const ExprId> index) {
  absl::InlinedVector<ExprId, 6> terms = {view.offset};
  for (size_t dim = 0; dim < index.size() && dim < view.strides.size(); ++dim) {
    terms.push_back(exprs.Mul(index[dim], view.strides[dim]));
  }
  return exprs.Sum(terms);
}

}  // namespace kiln
