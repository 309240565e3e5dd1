#include "compiler/lower/reshape.h"

#include <utility>

#include "compiler/lower/strides.h"

namespace kiln {
namespace {

std::vector<size_t> DimsNotOne(const std::vector<ExprId>& sizes, ExprId one) {
  std::vector<size_t> dims;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] != one) dims.push_back(dim);
  }
  return dims;
}

}  // namespace

bool GroupDims(ExprPool& exprs, const std::vector<ExprId>& from_sizes, const std::vector<ExprId>& to_sizes,
               std::vector<ReshapeGroup>* groups) {
  const ExprId one = exprs.Const(1);
  const std::vector<size_t> from = DimsNotOne(from_sizes, one), to = DimsNotOne(to_sizes, one);
  std::vector<ExprId> to_products;
  ExprId product = one;
  for (size_t dim : to) to_products.push_back(product = exprs.Mul(product, to_sizes[dim]));
  ReshapeGroup group;
  size_t next = 0;
  product = one;
  for (size_t dim : from) {
    product = exprs.Mul(product, from_sizes[dim]);
    group.from.push_back(dim);
    for (size_t end = next; end < to.size(); ++end) {
      if (to_products[end] != product) continue;
      for (; next <= end; ++next) group.to.push_back(to[next]);
      groups->push_back(std::move(group));
      group = {};
      break;
    }
  }
  for (; next < to.size(); ++next) group.to.push_back(to[next]);
  if (group.from.empty() && group.to.empty()) return true;
  // What is left agrees only if the symbols make it so; constants that differ are an error.
  ExprId left = one, right = one;
  for (size_t dim : group.from) left = exprs.Mul(left, from_sizes[dim]);
  for (size_t dim : group.to) right = exprs.Mul(right, to_sizes[dim]);
  groups->push_back(std::move(group));
  const auto a = exprs.AsConst(left), b = exprs.AsConst(right);
  return !a.has_value() || !b.has_value() || *a == *b;
}

std::optional<BufferView> ReshapedWindow(ExprPool& exprs, const BufferView& base,
                                         const std::vector<ExprId>& sizes) {
  BufferView view{base.buffer, base.dtype, sizes, {}, base.offset};
  if (IsEmpty(exprs, sizes)) {
    view.strides = ContiguousStrides(exprs, sizes);
    return view;
  }
  std::vector<ReshapeGroup> groups;
  GroupDims(exprs, base.sizes, sizes, &groups);
  const ExprId one = exprs.Const(1);
  std::vector<ExprId> strides(sizes.size(), one);
  for (const ReshapeGroup& group : groups) {
    if (group.from.empty()) continue;
    for (size_t i = 0; i + 1 < group.from.size(); ++i) {
      const ExprId size = base.sizes[group.from[i + 1]], inner = base.strides[group.from[i + 1]];
      const ExprId stride = base.strides[group.from[i]];
      // Contiguous strides take a dimension that may be empty for one of size 1.
      if (stride != exprs.Mul(inner, size) && stride != exprs.Mul(inner, exprs.Max(size, one)))
        return std::nullopt;
    }
    ExprId stride = base.strides[group.from.back()];
    for (size_t i = group.to.size(); i-- > 0;) {
      strides[group.to[i]] = stride;
      stride = exprs.Mul(stride, sizes[group.to[i]]);
    }
  }
  // A dimension of size 1 takes the stride that a contiguous tensor would have there.
  for (size_t dim = sizes.size(); dim-- > 0;) {
    if (sizes[dim] != one) continue;
    strides[dim] = dim + 1 < sizes.size() ? exprs.Mul(strides[dim + 1], sizes[dim + 1]) : one;
  }
  view.strides = std::move(strides);
  return view;
}

}  // namespace kiln
