#include "compiler/lower/view_maps.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/expr_leaves.h"
#include "compiler/lower/reshape.h"
#include "compiler/lower/strides.h"

namespace kiln {

LoweredTensor MapIndex(LoweringContext& context, const LoweredTensor& base, const TensorType& type,
                       IndexMap map) {
  return context.loops().Pointwise(
      type, [&](LoopRecorder& ops, Index index) { return context.loops().Load(ops, base, map(index)); });
}

LoweredTensor Affine(LoweringContext& context, const LoweredTensor& base, const TensorType& type,
                     const AffineMap& map) {
  ExprPool& exprs = context.exprs();
  const ExprId one = context.Const(1);
  if (map.start.size() != base.rank() || map.dims.size() != type.rank()) {
    context.checks().Invalid("the view's rank does not fit");
    return base;
  }
  // No loop could convert them.
  if (base.dtype != type.dtype && (IsComplex(base.dtype) || IsComplex(type.dtype))) {
    context.checks().Invalid("a view of complex numbers with another dtype");
    return base;
  }
  for (size_t dim = 0; dim < base.rank() && !IsEmpty(exprs, type.sizes); ++dim) {
    ExprId last = map.start[dim];
    for (size_t to = 0; to < map.dims.size(); ++to) {
      for (const AffineMap::From& term : map.dims[to]) {
        if (term.dim == dim) last = exprs.Add(last, exprs.Mul(exprs.Sub(type.sizes[to], one), term.step));
      }
    }
    const auto reached = exprs.AsConst(last), size = exprs.AsConst(base.sizes[dim]);
    if (reached.has_value() && size.has_value() && (*reached < 0 || *reached >= *size)) {
      context.checks().Invalid(
          absl::StrCat("a view reaches element ", *reached, " of a dimension of size ", *size));
      return base;
    }
  }
  if (base.is_strided()) {
    BufferView view{base.view->buffer, base.view->dtype, type.sizes, {}, base.view->offset};
    for (size_t dim = 0; dim < base.rank(); ++dim) {
      view.offset = exprs.Add(view.offset, exprs.Mul(map.start[dim], base.view->strides[dim]));
    }
    bool forward = true;  // no more is asked of strides, whose range need not show that they are not negative
    for (const auto& from : map.dims) {
      ExprId stride = context.Const(0);
      for (const AffineMap::From& term : from) {
        stride = exprs.Add(stride, exprs.Mul(base.view->strides[term.dim], term.step));
        forward = forward && exprs.Range(term.step).min >= 0;
      }
      view.strides.push_back(stride);
    }
    if (forward) return WithView(type, std::move(view));
  }
  return MapIndex(context, base, type, [&](Index index) {
    std::vector<ExprId> from = map.start;
    for (size_t dim = 0; dim < index.size(); ++dim) {
      for (const AffineMap::From& term : map.dims[dim]) {
        from[term.dim] = exprs.Add(from[term.dim], exprs.Mul(index[dim], term.step));
      }
    }
    return from;
  });
}

namespace {

// Of symbols that numbers divide, as a guard says (s % 2 == 0): the number times another symbol, which stands
// in expressions that are compared and in no others.
absl::flat_hash_map<ExprId, ExprId> Multiples(LoopGraph& out) {
  absl::flat_hash_map<ExprId, ExprId> multiples;
  for (const ExprId guard : out.given) {
    const ExprNode equal = out.exprs.node(guard);
    if (equal.op != v1::EXPR_EQ) continue;
    for (const size_t side : {0, 1}) {
      const ExprNode rest = out.exprs.node(equal.args[side]);
      if (rest.op != v1::EXPR_MOD || out.exprs.AsConst(equal.args[1 - side]) != 0) continue;
      const ExprId symbol = rest.args[0];
      const auto divisor = out.exprs.AsConst(rest.args[1]);
      if (out.exprs.node(symbol).op != v1::EXPR_SYMBOL || !divisor || *divisor <= 0) continue;
      const ExprRange range = out.exprs.Range(symbol);
      const uint32_t number = UINT32_MAX - static_cast<uint32_t>(multiples.size());
      const ExprId times = out.exprs.Symbol(number, {range.min / *divisor, range.max / *divisor});
      multiples.try_emplace(symbol, out.exprs.Mul(rest.args[1], times));
    }
  }
  return multiples;
}

// The view of these sizes and strides, where it is one by what guards say of sizes: torch splits 2 * (s // 2)
// elements off s that are even.
std::optional<BufferView> WindowByGuards(LoopGraph& out, const BufferView& base, const TensorType& type) {
  const absl::flat_hash_map<ExprId, ExprId> multiples = Multiples(out);
  if (multiples.empty()) return std::nullopt;
  const auto compared = [&](std::vector<ExprId> ids) {
    for (ExprId& id : ids) {
      id = Substitute(out.exprs, id, [&](ExprId leaf) {
        const auto found = multiples.find(leaf);
        return found == multiples.end() ? leaf : found->second;
      });
    }
    return ids;
  };
  BufferView whole = base;
  whole.sizes = compared(base.sizes);
  whole.strides = compared(base.strides);
  const std::vector<ExprId> sizes = compared(type.sizes);
  const auto window = ReshapedWindow(out.exprs, whole, sizes);
  if (!window || !SameLayout(out.exprs, sizes, window->strides, compared(type.strides))) return std::nullopt;
  return BufferView{base.buffer, base.dtype, type.sizes, type.strides, base.offset};
}

}  // namespace

LoweredTensor Reshape(LoweringContext& context, ValueId id, const TensorType& type) {
  if (!context.IsDefined(id)) {
    context.checks().Invalid("an undefined tensor is viewed");
    return {};
  }
  ExprPool& exprs = context.exprs();
  LoweredTensor& base = context.MutableValue(id);
  if (base.sizes == type.sizes) {
    LoweredTensor same = base;
    same.strides = type.strides;
    return same;
  }
  std::vector<ReshapeGroup> groups;
  const bool grouped = IsEmpty(exprs, base.sizes) || GroupDims(exprs, base.sizes, type.sizes, &groups);
  if (!grouped || !context.out().Require(exprs.Eq(exprs.Product(base.sizes), exprs.Product(type.sizes)))) {
    context.checks().Invalid("a view with another number of elements");
    return base;
  }
  if (base.is_strided()) {
    if (auto view = ReshapedWindow(exprs, *base.view, type.sizes)) return WithView(type, *std::move(view));
    if (auto view = WindowByGuards(context.out(), *base.view, type)) return WithView(type, *std::move(view));
  }
  if (!IsEmpty(exprs, type.sizes)) {
    LoweredTensor mapped = MapIndex(context, base, type, [&](Index index) {
      std::vector<ExprId> from(base.rank(), context.Const(0));
      for (const ReshapeGroup& group : groups) {
        ExprId flat = context.Const(0), stride = context.Const(1);
        for (size_t i = group.to.size(); i-- > 0;) {
          flat = exprs.Add(flat, exprs.Mul(index[group.to[i]], stride));
          stride = exprs.Mul(stride, type.sizes[group.to[i]]);
        }
        for (size_t i = group.from.size(); i-- > 0;) {
          const ExprId size = base.sizes[group.from[i]];
          from[group.from[i]] = i == 0 ? flat : exprs.Mod(flat, size);
          flat = exprs.FloorDiv(flat, size);
        }
      }
      return from;
    });
    const bool divided_before = base.body != nullptr && base.body->divides;
    if (mapped.body == nullptr || !mapped.body->divides || divided_before) return mapped;
  }
  // The map would leave divisions in the index: a dense copy in the old shape views without any.
  if (!base.is_strided()) {
    context.memory().Materialize(base, Materializer::Layout::kContiguous);
    if (auto view = ReshapedWindow(exprs, *base.view, type.sizes)) return WithView(type, *std::move(view));
  }
  const BufferView copy = context.memory().CopyTo(base, ContiguousStrides(exprs, base.sizes));
  auto view = ReshapedWindow(exprs, copy, type.sizes);
  if (!view) {
    context.checks().Fail(absl::UnimplementedError(absl::StrCat(
        "unsupported: a view of ", ExprsText(exprs, base.sizes), " as ", ExprsText(exprs, type.sizes))));
    return base;
  }
  return WithView(type, *std::move(view));
}

}  // namespace kiln
