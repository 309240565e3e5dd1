// Views: affine index maps and reshapes. Methods of LoweringContext.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compiler/lower/lowering_context.h"

namespace kiln {
namespace {

// Dimensions [from_begin, from_end) of one shape that hold the same elements as [to_begin, to_end) of
// another, in row-major order.
struct ReshapeGroup {
  std::vector<size_t> from;
  std::vector<size_t> to;
};

std::vector<size_t> DimsNotOne(const std::vector<ExprId>& sizes, ExprId one) {
  std::vector<size_t> dims;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] != one) dims.push_back(dim);
  }
  return dims;
}

// Cuts both shapes wherever their prefix products agree. False when their element counts are known to differ.
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

bool IsEmpty(ExprPool& exprs, const std::vector<ExprId>& sizes) {
  return std::find(sizes.begin(), sizes.end(), exprs.Const(0)) != sizes.end();
}

}  // namespace

LoweredTensor LoweringContext::WithView(const TensorType& type, BufferView view) {
  LoweredTensor tensor;
  tensor.dtype = type.dtype;
  tensor.device = type.device;
  tensor.sizes = type.sizes;
  tensor.strides = type.strides;
  tensor.view = std::move(view);
  return tensor;
}

LoweredTensor LoweringContext::MapIndex(const LoweredTensor& base, const TensorType& type, IndexMap map) {
  return Pointwise(type, [&](LoopRecorder& ops, Index index) { return Load(ops, base, map(index)); });
}

LoweredTensor LoweringContext::Affine(const LoweredTensor& base, const TensorType& type,
                                      const AffineMap& map) {
  if (map.start.size() != base.rank() || map.dims.size() != type.rank()) {
    Invalid("the view's rank does not fit");
    return base;
  }
  // No loop could convert them.
  if (base.dtype != type.dtype && (IsComplex(base.dtype) || IsComplex(type.dtype))) {
    Invalid("a view of complex numbers with another dtype");
    return base;
  }
  for (size_t dim = 0; dim < base.rank() && !IsEmpty(exprs(), type.sizes); ++dim) {
    ExprId last = map.start[dim];
    for (size_t to = 0; to < map.dims.size(); ++to) {
      for (const AffineMap::From& term : map.dims[to]) {
        if (term.dim == dim)
          last = exprs().Add(last, exprs().Mul(exprs().Sub(type.sizes[to], one_), term.step));
      }
    }
    const auto reached = exprs().AsConst(last), size = exprs().AsConst(base.sizes[dim]);
    if (reached.has_value() && size.has_value() && (*reached < 0 || *reached >= *size)) {
      Invalid(absl::StrCat("a view reaches element ", *reached, " of a dimension of size ", *size));
      return base;
    }
  }
  if (base.is_strided()) {
    BufferView view{base.view->buffer, base.view->dtype, type.sizes, {}, base.view->offset};
    for (size_t dim = 0; dim < base.rank(); ++dim) {
      view.offset = exprs().Add(view.offset, exprs().Mul(map.start[dim], base.view->strides[dim]));
    }
    bool forward = true;  // no more is asked of strides, whose range need not show that they are not negative
    for (const auto& from : map.dims) {
      ExprId stride = Const(0);
      for (const AffineMap::From& term : from) {
        stride = exprs().Add(stride, exprs().Mul(base.view->strides[term.dim], term.step));
        forward = forward && exprs().Range(term.step).min >= 0;
      }
      view.strides.push_back(stride);
    }
    if (forward) return WithView(type, std::move(view));
  }
  return MapIndex(base, type, [&](Index index) {
    std::vector<ExprId> from = map.start;
    for (size_t dim = 0; dim < index.size(); ++dim) {
      for (const AffineMap::From& term : map.dims[dim]) {
        from[term.dim] = exprs().Add(from[term.dim], exprs().Mul(index[dim], term.step));
      }
    }
    return from;
  });
}

// Strides of the reshaped window, if each group of merged dimensions is contiguous in itself.
bool LoweringContext::ReshapeStrided(const BufferView& base, const TensorType& type, BufferView* view) {
  *view = BufferView{base.buffer, base.dtype, type.sizes, {}, base.offset};
  if (IsEmpty(exprs(), type.sizes)) {
    view->strides = ContiguousStrides(exprs(), type.sizes);
    return true;
  }
  std::vector<ReshapeGroup> groups;
  GroupDims(exprs(), base.sizes, type.sizes, &groups);
  std::vector<ExprId> strides(type.rank(), one_);
  for (const ReshapeGroup& group : groups) {
    if (group.from.empty()) continue;
    for (size_t i = 0; i + 1 < group.from.size(); ++i) {
      const ExprId size = base.sizes[group.from[i + 1]], inner = base.strides[group.from[i + 1]];
      const ExprId stride = base.strides[group.from[i]];
      // Contiguous strides take a dimension that may be empty for one of size 1.
      if (stride != exprs().Mul(inner, size) && stride != exprs().Mul(inner, exprs().Max(size, one_)))
        return false;
    }
    ExprId stride = base.strides[group.from.back()];
    for (size_t i = group.to.size(); i-- > 0;) {
      strides[group.to[i]] = stride;
      stride = exprs().Mul(stride, type.sizes[group.to[i]]);
    }
  }
  // A dimension of size 1 takes the stride that a contiguous tensor would have there.
  for (size_t dim = type.rank(); dim-- > 0;) {
    if (!IsOne(type.sizes[dim])) continue;
    strides[dim] = dim + 1 < type.rank() ? exprs().Mul(strides[dim + 1], type.sizes[dim + 1]) : one_;
  }
  view->strides = std::move(strides);
  return true;
}

LoweredTensor LoweringContext::Reshape(ValueId id, const TensorType& type) {
  if (!IsDefined(id)) {
    Invalid("an undefined tensor is viewed");
    return {};
  }
  LoweredTensor& base = values_[id];
  if (base.sizes == type.sizes) {
    LoweredTensor same = base;
    same.strides = type.strides;
    return same;
  }
  std::vector<ReshapeGroup> groups;
  const bool grouped = IsEmpty(exprs(), base.sizes) || GroupDims(exprs(), base.sizes, type.sizes, &groups);
  if (!grouped || !Require(exprs().Eq(Numel(base.sizes), Numel(type.sizes)))) {
    Invalid("a view with another number of elements");
    return base;
  }
  BufferView view;
  if (base.is_strided() && ReshapeStrided(*base.view, type, &view)) return WithView(type, std::move(view));
  if (!IsEmpty(exprs(), type.sizes)) {
    LoweredTensor mapped = MapIndex(base, type, [&](Index index) {
      std::vector<ExprId> from(base.rank(), Const(0));
      for (const ReshapeGroup& group : groups) {
        ExprId flat = Const(0), stride = one_;
        for (size_t i = group.to.size(); i-- > 0;) {
          flat = exprs().Add(flat, exprs().Mul(index[group.to[i]], stride));
          stride = exprs().Mul(stride, type.sizes[group.to[i]]);
        }
        for (size_t i = group.from.size(); i-- > 0;) {
          const ExprId size = base.sizes[group.from[i]];
          from[group.from[i]] = i == 0 ? flat : exprs().Mod(flat, size);
          flat = exprs().FloorDiv(flat, size);
        }
      }
      return from;
    });
    const bool divided_before = base.body != nullptr && base.body->divides;
    if (mapped.body == nullptr || !mapped.body->divides || divided_before) return mapped;
  }
  // The map would leave divisions in the index: a dense copy in the old shape views without any.
  if (!base.is_strided()) {
    Realise(base, Layout::kContiguous);
    if (ReshapeStrided(*base.view, type, &view)) return WithView(type, std::move(view));
  }
  const BufferView copy = CopyTo(base, ContiguousStrides(exprs(), base.sizes));
  if (!ReshapeStrided(copy, type, &view)) {
    Fail(absl::UnimplementedError(absl::StrCat("unsupported: a view of ", ExprsText(exprs(), base.sizes),
                                               " as ", ExprsText(exprs(), type.sizes))));
    return base;
  }
  return WithView(type, std::move(view));
}

}  // namespace kiln
