// Views and rearrangements: explicit sizes, permutations for transposes, slices for splits, concatenations.
#include <algorithm>

#include "compiler/graph/expr_proofs.h"
#include "compiler/passes/decomposition.h"

namespace kiln {
namespace {

using Dims = std::vector<int64_t>;

bool Alias(DecomposeContext& m) { return m.ReturnView(m.Tensor("self")); }

// Sizes may hold a -1; the declared result has them all.
bool ViewDeclared(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok()) return false;
  std::vector<ExprId> sizes = m.Type().sizes;
  if (m.node().target == Op::kView && m.Syms("size") == sizes && m.node().args.size() == 2)
    return false;  // core
  const auto from = m.exprs().AsConst(CountOf(x, {})), to = m.exprs().AsConst(m.exprs().Product(sizes));
  if (from && to && *from != *to) {
    m.b().Fail("a view cannot change the number of elements");
    return false;
  }
  if (sizes == x.sizes()) return m.ReturnView(x);
  return m.ReturnView(View(x, sizes));
}

bool ExpandDeclared(DecomposeContext& m) {
  Value x = m.Tensor("self");
  std::vector<ExprId> sizes = m.Type().sizes;
  if (m.node().target == Op::kExpand && m.Syms("size") == sizes && m.node().args.size() == 2)
    return false;  // core
  return m.ReturnView(Expand(x, sizes));
}

bool PermuteDims(DecomposeContext& m) {
  Value x = m.Tensor("self");
  const Dims dims = m.Ints("dims");
  if (x.ok() && x.rank() >= 2 && std::all_of(dims.begin(), dims.end(), [](int64_t d) { return d >= 0; }))
    return false;  // core
  return m.ReturnView(Permute(x, dims));
}

bool TransposeMatrix(DecomposeContext& m) { return m.ReturnView(Transpose(m.Tensor("self"), 0, 1)); }

bool TransposeDims(DecomposeContext& m) {
  Value x = m.Tensor("self");
  const bool axes = m.Has("axis0");
  return m.ReturnView(Transpose(x, m.Int(axes ? "axis0" : "dim0"), m.Int(axes ? "axis1" : "dim1")));
}

bool MoveDim(DecomposeContext& m) {
  Value x = m.Tensor("self");
  Dims from = m.Ints("source"), to = m.Ints("destination");
  if (!x.ok() || from.size() != to.size()) return false;
  Dims order(x.rank(), -1);
  std::vector<bool> used(x.rank(), false);
  for (size_t i = 0; i < from.size() && x.rank() > 0; ++i) {
    const int64_t source = m.b().Dim(from[i], x.rank());
    order[m.b().Dim(to[i], x.rank())] = source;
    used[source] = true;
  }
  int64_t next = 0;
  for (int64_t& dim : order) {
    if (dim >= 0) continue;
    while (next < x.rank() && used[next]) ++next;
    dim = next++;
  }
  return m.ReturnView(Permute(x, order));
}

bool UnsqueezeDim(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (m.Int("dim") >= 0) return false;  // core
  return m.ReturnView(Unsqueeze(x, m.Int("dim")));
}

// Which dimensions go is what the declared result says: those of size 1 and, where these are too few, those
// too whose size torch knows to be 1 by a guard.
bool SqueezeDims(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok()) return false;
  const int64_t gone = x.rank() - static_cast<int64_t>(m.Type().sizes.size());
  Dims asked = m.Dims("dim", x), dims, may_be_one;
  for (int64_t dim : asked) {
    const auto size = m.exprs().AsConst(x.size(dim));
    if (size == 1) dims.push_back(dim);
    if (size.value_or(1) == 1) may_be_one.push_back(dim);
  }
  if (static_cast<int64_t>(dims.size()) != gone) dims = may_be_one;
  if (m.node().target == Op::kSqueezeDims && m.Ints("dim") == dims && !dims.empty()) return false;  // core
  return m.ReturnView(Squeeze(x, dims));
}

// An index argument in [0, size]: negative ones count from the end, others are clamped where they are known.
ExprId Bound(DecomposeContext& m, ExprId value, ExprId size) {
  ExprPool& pool = m.exprs();
  const auto constant = pool.AsConst(value), limit = pool.AsConst(size);
  if (constant && *constant < 0) {
    if (limit) return pool.Const(std::max<int64_t>(*constant + *limit, 0));
    return pool.Max(pool.Add(value, size), pool.Const(0));
  }
  if (constant && limit) return pool.Const(std::min(*constant, *limit));
  if (constant && *constant >= (int64_t{1} << 62)) return size;
  if (pool.Range(value).min < 0 && HasUnbacked(pool, m.b().graph().symbols, value)) {
    return pool.Where(pool.Lt(value, pool.Const(0)), pool.Max(pool.Add(value, size), pool.Const(0)),
                      pool.Min(value, size));
  }
  // A symbolic bound is taken as not negative, as the capture assumed when it computed the result's size.
  return ProvablyLessEqual(pool, value, size) ? value : pool.Min(value, size);
}

struct SliceBounds {
  ExprId start, end;
  int64_t step;
};

// Of `size` elements; the declared length decides where the bounds are symbolic.
SliceBounds BoundsOf(DecomposeContext& m, ExprId size, ExprId declared_length) {
  ExprPool& pool = m.exprs();
  const int64_t step = m.Int("step", 1);
  if (step < 1) m.b().Fail("a slice needs a positive step");
  ExprId start = Bound(m, m.Sym("start", m.b().Int(0)), size);
  ExprId end = Bound(m, m.Sym("end", m.b().Int(INT64_MAX)), size);
  if (step == 1 && (!pool.AsConst(start) || !pool.AsConst(end))) end = pool.Add(start, declared_length);
  const auto first = pool.AsConst(start), last = pool.AsConst(end);
  if (first && last && *last < *first) end = start;
  return {start, end, std::max<int64_t>(step, 1)};
}

bool SliceTensor(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok() || x.rank() == 0) return false;
  const int64_t dim = m.Dim("dim", x, 0);
  const SliceBounds bounds =
      BoundsOf(m, x.size(dim), m.Type().sizes.size() == x.sizes().size() ? m.Type().sizes[dim] : 0);
  if (!m.b().status().ok()) return false;
  if (m.node().args.size() == 5 && m.Int("dim") == dim && m.Sym("start") == bounds.start &&
      m.Sym("end") == bounds.end) {
    return false;  // core
  }
  return m.ReturnView(Slice(x, dim, bounds.start, bounds.end, bounds.step));
}

bool Narrow(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok() || x.rank() == 0) return false;
  const int64_t dim = m.Dim("dim", x);
  ExprId start = Bound(m, m.Sym("start"), x.size(dim));
  return m.ReturnView(Slice(x, dim, start, m.exprs().Add(start, m.Sym("length")), 1));
}

ExprId IndexIn(DecomposeContext& m, ExprId index, ExprId size) {
  const auto constant = m.exprs().AsConst(index), limit = m.exprs().AsConst(size);
  if (constant && limit && (*constant < -*limit || *constant >= *limit))
    m.b().Fail("the selected index is out of range");
  return constant && *constant < 0 ? m.exprs().Add(index, size) : index;
}

bool SelectInt(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok() || x.rank() == 0) return false;
  const int64_t dim = m.Dim("dim", x);
  const ExprId index = IndexIn(m, m.Sym("index"), x.size(dim));
  if (m.Int("dim") == dim && m.Sym("index") == index) return false;  // core
  return m.ReturnView(Select(x, dim, index));
}

// split, chunk, split_with_sizes: consecutive slices of the declared lengths.
bool Split(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok() || x.rank() == 0) return false;
  const int64_t dim = m.Dim("dim", x, 0);
  ExprId start = m.b().Int(0);
  for (size_t i = 0; i < m.result_count(); ++i) {
    if (m.Type(i).sizes.size() != x.sizes().size()) {
      if (!m.Wanted(i)) continue;
      m.b().Fail("a part of a split has another rank than the whole");
      return false;
    }
    const ExprId end = m.exprs().Add(start, m.Type(i).sizes[dim]);
    m.SetView(i, Slice(x, dim, start, end, 1));
    start = end;
  }
  return true;
}

bool Unbind(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok() || x.rank() == 0) return false;
  const int64_t dim = m.Dim("dim", x, 0);
  for (size_t i = 0; i < m.result_count(); ++i) {
    if (m.Wanted(i)) m.SetView(i, Select(x, dim, IndexIn(m, m.b().Int(i), x.size(dim))));
  }
  return true;
}

// ---- concatenation and repetition

bool CatTensors(DecomposeContext& m) {
  std::vector<Value> parts = m.Tensors("tensors"), kept;
  const v1::DType dtype = m.Type().dtype;
  const int64_t rank = static_cast<int64_t>(m.Type().sizes.size());
  const int64_t dim = m.b().Dim(m.Int("dim", 0), rank);
  bool changes = !m.Has("dim") || m.Int("dim") != dim;
  for (const Value& part : parts) {
    if (!part.ok()) return false;
    const bool legacy_empty = part.rank() == 1 && rank != 1 && m.exprs().AsConst(part.size(0)) == 0;
    changes = changes || legacy_empty || part.dtype() != dtype;
    if (!legacy_empty) kept.push_back(Cast(part, dtype));
  }
  if (!changes) return false;  // core
  if (kept.size() == 1) return m.Return(kept[0]);
  return m.Return(m.b().Cat(kept, dim));
}

bool Stack(DecomposeContext& m) {
  std::vector<Value> parts = m.Tensors("tensors");
  const int64_t dim = m.b().Dim(m.Int("dim", 0), static_cast<int64_t>(m.Type().sizes.size()));
  for (Value& part : parts) part = Unsqueeze(Cast(part, m.Type().dtype), dim);
  return m.Return(parts.size() == 1 ? parts[0] : m.b().Cat(parts, dim));
}

// Each dimension n repeated r times: [n] as [1, n], expanded to [r, n], seen as [r * n].
Value Repeated(DecomposeContext& m, Value x, std::vector<ExprId> repeats) {
  if (!x.ok()) return x;
  while (repeats.size() < x.sizes().size()) repeats.insert(repeats.begin(), m.b().Int(1));
  std::vector<ExprId> sizes = x.sizes();
  sizes.insert(sizes.begin(), repeats.size() - sizes.size(), m.b().Int(1));
  std::vector<ExprId> apart, expanded, joined;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const bool once = m.exprs().AsConst(repeats[i]) == 1;
    if (!once) {
      apart.push_back(m.b().Int(1));
      expanded.push_back(repeats[i]);
    }
    apart.push_back(sizes[i]);
    expanded.push_back(sizes[i]);
    joined.push_back(m.exprs().Mul(repeats[i], sizes[i]));
  }
  return View(Expand(View(x, apart), expanded), joined);
}

bool Repeat(DecomposeContext& m) {
  return m.Return(Repeated(m, m.Tensor("self"), m.Syms(m.Has("repeats") ? "repeats" : "dims")));
}

bool RepeatInterleave(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok()) return false;
  if (!m.Has("dim")) x = View(x, {CountOf(x, {})});
  if (!x.ok() || x.rank() == 0) return false;
  const int64_t dim = m.Has("dim") ? m.Dim("dim", x) : 0;
  std::vector<ExprId> expanded = x.sizes(), joined = x.sizes();
  expanded.insert(expanded.begin() + dim + 1, m.Sym("repeats"));
  joined[dim] = m.exprs().Mul(joined[dim], m.Sym("repeats"));
  return m.Return(View(Expand(Unsqueeze(x, dim + 1), expanded), joined));
}

bool Roll(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok()) return false;
  const std::vector<ExprId> shifts = m.Syms("shifts");
  const std::vector<ExprId> original = x.sizes();
  Dims dims = m.Ints("dims");
  const bool flat = dims.empty();
  if (flat) {
    x = View(x, {CountOf(x, {})});
    dims = {0};
  }
  if (dims.size() != shifts.size() || x.rank() == 0)
    return flat && x.ok() && x.rank() == 0 ? m.Return(x) : false;
  for (size_t i = 0; i < dims.size() && x.ok(); ++i) {
    const int64_t dim = m.b().Dim(dims[i], x.rank());
    const ExprId size = x.size(dim);
    if (m.exprs().AsConst(size) == 0) continue;
    // Of nothing, where only the run knows that, nothing is cut.
    const ExprId cut = m.exprs().Mod(m.exprs().Neg(shifts[i]), m.exprs().Max(size, m.b().Int(1)));
    if (m.exprs().AsConst(cut) == 0) continue;
    x = m.b().Cat({Slice(x, dim, cut, size, 1), Slice(x, dim, m.b().Int(0), cut, 1)}, dim);
  }
  return m.Return(flat ? View(x, original) : x);
}

bool Flip(DecomposeContext& m) {
  Value x = m.Tensor("self");
  const Dims given = m.Ints("dims");
  if (!x.ok() || given.empty() || x.rank() == 0) return m.Return(x);
  const Dims dims = m.Dims("dims", x);
  if (given == dims) return false;  // core
  return m.Return(kiln::Flip(x, dims));
}

bool Rot90(DecomposeContext& m) {
  Value x = m.Tensor("self");
  Dims dims = m.Ints("dims");
  if (dims.empty()) dims = {0, 1};
  if (!x.ok() || x.rank() < 2 || dims.size() != 2) return false;
  switch (((m.Int("k", 1) % 4) + 4) % 4) {
    case 1: return m.Return(Transpose(kiln::Flip(x, {dims[1]}), dims[0], dims[1]));
    case 2: return m.Return(kiln::Flip(x, dims));
    case 3: return m.Return(Transpose(kiln::Flip(x, {dims[0]}), dims[0], dims[1]));
    default: return m.Return(x);
  }
}

// [.., C*r*r, H, W] to [.., C, H*r, W*r], and back.
bool PixelShuffle(DecomposeContext& m) {
  Value x = m.Tensor("self");
  const bool back = m.node().target == Op::kPixelUnshuffle;
  const ExprId r = m.Sym(back ? "downscale_factor" : "upscale_factor");
  if (!x.ok() || x.rank() < 3 || m.exprs().Range(r).min < 1) return false;
  ExprPool& pool = m.exprs();
  const int64_t lead = x.rank() - 3;
  std::vector<ExprId> sizes(x.sizes().begin(), x.sizes().begin() + lead);
  const ExprId c = x.size(-3), h = x.size(-2), w = x.size(-1);
  std::vector<ExprId> apart = sizes;
  Dims order;
  for (int64_t i = 0; i < lead; ++i) order.push_back(i);
  if (back) {
    apart.insert(apart.end(), {c, pool.FloorDiv(h, r), r, pool.FloorDiv(w, r), r});
    for (int64_t i : {0, 2, 4, 1, 3}) order.push_back(lead + i);
  } else {
    apart.insert(apart.end(), {pool.FloorDiv(c, pool.Mul(r, r)), r, r, h, w});
    for (int64_t i : {0, 3, 1, 4, 2}) order.push_back(lead + i);
  }
  return m.Return(View(Permute(View(x, apart), order), m.Type().sizes));
}

// ---- gradients of views: the gradient written into zeros

Value Zeros(DecomposeContext& m, const Value& like) {
  return m.b().Full(m.Syms("input_sizes"), 0, like.dtype());
}

Value SliceScatter(DecomposeContext& m, const Value& into, const Value& part, int64_t dim,
                   const SliceBounds& bounds) {
  if (!into.ok() || !part.ok()) return Value();
  GraphBuilder& b = m.b();
  return b.Node(Op::kSliceScatter,
                {{"self", TensorArg{into.id()}},
                 {"src", TensorArg{part.id()}},
                 {"dim", IntArg{b.Int(dim)}},
                 {"start", IntArg{bounds.start}},
                 {"end", IntArg{bounds.end}},
                 {"step", IntArg{b.Int(bounds.step)}}},
                b.Dense(into.dtype(), into.sizes()));
}

Value SelectScatter(DecomposeContext& m, const Value& into, const Value& part, int64_t dim, ExprId index) {
  if (!into.ok() || !part.ok()) return Value();
  GraphBuilder& b = m.b();
  return b.Node(Op::kSelectScatter,
                {{"self", TensorArg{into.id()}},
                 {"src", TensorArg{part.id()}},
                 {"dim", IntArg{b.Int(dim)}},
                 {"index", IntArg{index}}},
                b.Dense(into.dtype(), into.sizes()));
}

bool AsStridedCopy(DecomposeContext& m) {
  return m.Return(Clone(m.b().Node(Op::kAsStrided, m.node().args, m.Type()), m.Type()));
}

bool SliceBackward(DecomposeContext& m) {
  Value g = m.Tensor("grad_output");
  if (!g.ok() || g.rank() == 0) return false;
  Value zeros = Zeros(m, g);
  if (!zeros.ok() || zeros.rank() != g.rank()) return false;
  const int64_t dim = m.Dim("dim", g);
  const SliceBounds bounds = BoundsOf(m, zeros.size(dim), g.size(dim));
  if (bounds.step == 1 && m.exprs().AsConst(bounds.start) == 0 && bounds.end == zeros.size(dim))
    return m.Return(g);
  return m.Return(SliceScatter(m, zeros, g, dim, bounds));
}

bool SelectBackward(DecomposeContext& m) {
  Value g = m.Tensor("grad_output");
  if (!g.ok()) return false;
  Value zeros = Zeros(m, g);
  if (!zeros.ok() || zeros.rank() == 0) return false;
  const int64_t dim = m.Dim("dim", zeros);
  return m.Return(SelectScatter(m, zeros, g, dim, IndexIn(m, m.Sym("index"), zeros.size(dim))));
}

bool SliceScatterNode(DecomposeContext& m) {
  Value x = m.Tensor("self"), part = m.Tensor("src");
  if (!x.ok() || !part.ok() || x.rank() == 0 || part.rank() != x.rank()) return false;
  const int64_t dim = m.Dim("dim", x, 0);
  const SliceBounds bounds = BoundsOf(m, x.size(dim), part.size(dim));
  if (m.node().args.size() == 6 && m.Int("dim") == dim && m.Sym("start") == bounds.start &&
      m.Sym("end") == bounds.end && part.dtype() == x.dtype()) {
    return false;  // core
  }
  return m.Return(SliceScatter(m, x, Cast(part, x.dtype()), dim, bounds));
}

bool SelectScatterNode(DecomposeContext& m) {
  Value x = m.Tensor("self"), part = m.Tensor("src");
  if (!x.ok() || !part.ok() || x.rank() == 0) return false;
  const int64_t dim = m.Dim("dim", x);
  const ExprId index = IndexIn(m, m.Sym("index"), x.size(dim));
  if (m.Int("dim") == dim && m.Sym("index") == index && part.dtype() == x.dtype()) return false;  // core
  return m.Return(SelectScatter(m, x, Cast(part, x.dtype()), dim, index));
}

// ---- windows: position i of window k along `dim` is k * step + i

Value WindowPositions(DecomposeContext& m, ExprId windows) {
  return Unsqueeze(m.b().Iota(windows) * m.Int("step"), 1) + m.b().Iota(m.b().Int(m.Int("size")));
}

// Moves dimension `from` to the place `to`.
Value MoveTo(const Value& x, int64_t from, int64_t to) {
  if (!x.ok()) return x;
  Dims order;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (i != from) order.push_back(i);
  }
  order.insert(order.begin() + to, from);
  return Permute(x, order);
}

bool UnfoldBackward(DecomposeContext& m) {
  Value g = m.Tensor("grad_in");
  if (!g.ok() || g.rank() < 2 || m.Int("size") < 1 || m.Int("step") < 1) return false;
  Value compute = ToCompute(g);
  Value zeros = Zeros(m, compute);
  if (!zeros.ok() || zeros.rank() + 1 != g.rank()) return false;
  const int64_t dim = m.Dim("dim", zeros);
  std::vector<Value> indices(dim);
  indices.push_back(WindowPositions(m, g.size(dim)));
  return m.Return(UnsafeIndexPut(zeros, indices, MoveTo(compute, g.rank() - 1, dim + 1), true));
}

// ---- diagonals: the last dimension of `x` along a diagonal of a matrix of these sizes, zero elsewhere

Value OnDiagonal(DecomposeContext& m, const Value& x, ExprId rows, ExprId columns, int64_t offset) {
  ExprPool& pool = m.exprs();
  // Entry i stands at row i and column i + offset, or at column i and row i - offset.
  const bool by_row = offset >= 0;
  const ExprId behind = pool.Sub(by_row ? rows : columns, x.size(-1));
  Value padded = pool.AsConst(behind) == 0 ? x : ConstantPad(x, {m.b().Int(0), behind}, 0);
  padded = Unsqueeze(padded, by_row ? x.rank() : x.rank() - 1);
  Value place = Unsqueeze(m.b().Iota(columns), 0) - Unsqueeze(m.b().Iota(rows), 1);
  return Where(Eq(place, offset), padded, x.dtype() == v1::BOOL ? Operand(false) : Operand(0));
}

// Moves the last two dimensions, rows and columns, to the places `dim1` and `dim2`.
Value PlaceMatrix(const Value& x, int64_t dim1, int64_t dim2) {
  if (!x.ok() || dim1 == dim2) return Value();
  Dims order(x.rank(), -1);
  order[dim1] = x.rank() - 2;
  order[dim2] = x.rank() - 1;
  int64_t next = 0;
  for (int64_t& dim : order) {
    if (dim < 0) dim = next++;
  }
  return Permute(x, order);
}

bool DiagEmbed(DecomposeContext& m) {
  Value x = m.Tensor("self");
  if (!x.ok() || x.rank() == 0) return false;
  const int64_t offset = m.Int("offset", 0), rank = x.rank() + 1;
  const ExprId size = m.exprs().Add(x.size(-1), m.b().Int(offset < 0 ? -offset : offset));
  Value matrix = OnDiagonal(m, x, size, size, offset);
  return m.Return(
      PlaceMatrix(matrix, m.b().Dim(m.Int("dim1", -2), rank), m.b().Dim(m.Int("dim2", -1), rank)));
}

bool DiagonalBackward(DecomposeContext& m) {
  Value g = m.Tensor("grad_output");
  const std::vector<ExprId> sizes = m.Syms("input_sizes");
  const int64_t rank = static_cast<int64_t>(sizes.size());
  if (!g.ok() || rank < 2 || g.rank() != rank - 1) return false;
  const int64_t dim1 = m.b().Dim(m.Int("dim1"), rank), dim2 = m.b().Dim(m.Int("dim2"), rank);
  return m.Return(PlaceMatrix(OnDiagonal(m, g, sizes[dim1], sizes[dim2], m.Int("offset")), dim1, dim2));
}

constexpr DecompositionRow kRows[] = {
    {"detach", Alias},
    {"alias", Alias},
    {"lift", Alias},
    {"lift_fresh", Alias},
    {"view", ViewDeclared},
    {"reshape", ViewDeclared},
    {"_unsafe_view", ViewDeclared},
    {"_reshape_alias", ViewDeclared},
    {"unflatten.int", ViewDeclared},
    {"flatten.using_ints", ViewDeclared},
    {"expand", ExpandDeclared},
    {"permute", PermuteDims},
    {"t", TransposeMatrix},
    {"numpy_T", TransposeMatrix},
    {"transpose.int", TransposeDims},
    {"swapaxes", TransposeDims},
    {"movedim.int", MoveDim},
    {"movedim.intlist", MoveDim},
    {"unsqueeze", UnsqueezeDim},
    {"squeeze", SqueezeDims},
    {"squeeze.dim", SqueezeDims},
    {"squeeze.dims", SqueezeDims},
    {"slice.Tensor", SliceTensor},
    {"narrow", Narrow},
    {"select.int", SelectInt},
    {"split.Tensor", Split},
    {"split.sizes", Split},
    {"split_with_sizes", Split},
    {"unsafe_split.Tensor", Split},
    {"unsafe_split_with_sizes", Split},
    {"chunk", Split},
    {"tensor_split.sections", Split},
    {"unbind.int", Unbind},
    {"cat", CatTensors},
    {"stack", Stack},
    {"repeat", Repeat},
    {"tile", Repeat},
    {"repeat_interleave.self_int", RepeatInterleave},
    {"roll", Roll},
    {"flip", Flip},
    {"rot90", Rot90},
    {"unfold_backward", UnfoldBackward},
    {"diag_embed", DiagEmbed},
    {"diagonal_backward", DiagonalBackward},
    {"pixel_shuffle", PixelShuffle},
    {"pixel_unshuffle", PixelShuffle},
    {"slice_backward", SliceBackward},
    {"select_backward", SelectBackward},
    {"as_strided_copy", AsStridedCopy},
    {"slice_scatter", SliceScatterNode},
    {"select_scatter", SelectScatterNode},
};

}  // namespace

absl::Span<const DecompositionRow> ShapeRows() { return kRows; }

}  // namespace kiln
