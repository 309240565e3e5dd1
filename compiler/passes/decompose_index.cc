// Operators that read or write at computed positions, in terms of index and index_put.
#include "compiler/passes/decomposition.h"

namespace kiln {
namespace {

// Indices that address dimension `dim` alone.
TensorListArg Along(int64_t dim, const Value& index) {
  TensorListArg list;
  list.values.assign(dim, kNoValue);
  list.values.push_back(index.id());
  return list;
}

// `index_put` along one dimension, with bounds checks. -1 is the last, as index_fill has it. To index_select,
// index_add and index_copy it is an error: they are core operators.
Value PutAlong(DecomposeContext& m, const Value& x, int64_t dim, const Value& index, const Value& values,
               bool accumulate) {
  if (!x.ok() || !index.ok() || !values.ok()) return Value();
  return m.b().Node(Op::kIndexPut,
                    {{"self", TensorArg{x.id()}},
                     {"indices", Along(dim, index)},
                     {"values", TensorArg{values.id()}},
                     {"accumulate", BoolArg{accumulate}}},
                    m.b().Dense(x.dtype(), x.sizes()));
}

bool IndexFill(DecomposeContext& m) {
  Value x = m.Tensor("self"), index = m.Tensor("index");
  if (!x.ok() || !index.ok() || x.rank() == 0 || index.rank() != 1) return false;
  const Operand value = m.Scalar("value");
  if (ConvertsAtRunTime(value, x.type())) return false;
  Value fill = value.is_tensor() ? Cast(value.tensor, x.dtype()) : m.b().Full({}, value, x.dtype());
  return m.Return(PutAlong(m, x, m.Dim("dim", x), index, fill, false));
}

bool Take(DecomposeContext& m) {
  Value x = m.Tensor("self"), index = m.Tensor("index");
  if (!x.ok() || !index.ok()) return false;
  Value flat = View(x, {CountOf(x, {})});
  return m.Return(m.b().Node(Op::kIndexTensor, {{"self", TensorArg{flat.id()}}, {"indices", Along(0, index)}},
                             m.b().Dense(x.dtype(), index.sizes())));
}

bool Put(DecomposeContext& m) {
  Value x = m.Tensor("self"), index = m.Tensor("index"), source = m.Tensor("source");
  if (!x.ok() || !index.ok() || !source.ok()) return false;
  const ExprId count = CountOf(index, {});
  Value flat = PutAlong(m, View(x, {CountOf(x, {})}), 0, View(index, {count}), View(source, {count}),
                        m.Bool("accumulate", false));
  return m.Return(View(flat, x.sizes()));
}

// Rows of the gradient are added up at their indices; the padding row gets none.
bool EmbeddingDenseBackward(DecomposeContext& m) {
  Value g = m.Tensor("grad_output"), indices = m.Tensor("indices");
  if (!g.ok() || !indices.ok() || m.Bool("scale_grad_by_freq", false) || g.rank() != indices.rank() + 1)
    return false;
  g = ToCompute(g);
  if (const int64_t padding = m.Int("padding_idx", -1); padding >= 0) {
    g = Where(Unsqueeze(Eq(indices, padding), -1), 0.0, g);
  }
  Value zeros = m.b().Full({m.Sym("num_weights"), g.size(-1)}, 0.0, g.dtype());
  return m.Return(UnsafeIndexPut(zeros, {indices}, g, true));
}

// Whether `mask` has the leading sizes of `x`: a mask that indexes does not broadcast.
bool MasksLeading(const Value& mask, const Value& x) {
  if (mask.rank() > x.rank()) return false;
  for (int64_t dim = 0; dim < mask.rank(); ++dim) {
    if (mask.size(dim) != x.size(dim)) return false;
  }
  return true;
}

// index_put by one boolean mask and a single value is a choice. Other sizes are the lowering's to refuse.
bool IndexPut(DecomposeContext& m) {
  Value x = m.Tensor("self"), values = m.Tensor("values");
  std::vector<Value> indices = m.Tensors("indices");
  if (!x.ok() || !values.ok() || indices.size() != 1 || !indices[0].ok() || indices[0].dtype() != v1::BOOL)
    return false;
  if (m.exprs().AsConst(CountOf(values, {})) != 1 || !MasksLeading(indices[0], x)) return false;
  Value mask = indices[0];
  while (mask.ok() && mask.rank() < x.rank()) mask = Unsqueeze(mask, -1);
  Value value = Cast(View(values, {}), x.dtype());
  if (m.Bool("accumulate", false)) value = x + value;
  return m.Return(Where(mask, value, x));
}

// Reads where the mask holds, gives `fill` elsewhere.
bool UnsafeMaskedIndex(DecomposeContext& m) {
  Value x = m.Tensor("self"), mask = m.Tensor("mask");
  std::vector<Value> indices = m.Tensors("indices");
  if (!x.ok() || !mask.ok()) return false;
  for (Value& index : indices) {
    if (index.ok()) index = Where(mask, index, 0);
  }
  return m.Return(Where(mask, UnsafeIndex(x, indices), m.b().Full({}, m.Scalar("fill"), x.dtype())));
}

bool UnsafeMaskedIndexPut(DecomposeContext& m) {
  Value x = m.Tensor("self"), mask = m.Tensor("mask"), values = m.Tensor("values");
  std::vector<Value> indices = m.Tensors("indices");
  if (!x.ok() || !mask.ok() || !values.ok()) return false;
  for (Value& index : indices) {
    if (index.ok()) index = Where(mask, index, 0);
  }
  Value none = m.b().Full({}, 0, values.dtype());
  return m.Return(UnsafeIndexPut(x, indices, Where(mask, values, none), true));
}

constexpr DecompositionRow kRows[] = {
    {"index_fill.int_Scalar", IndexFill},
    {"index_fill.int_Tensor", IndexFill},
    {"take", Take},
    {"put", Put},
    {"embedding_dense_backward", EmbeddingDenseBackward},
    {"index_put", IndexPut},
    {"_unsafe_index_put", IndexPut},
    {"_unsafe_masked_index", UnsafeMaskedIndex},
    {"_unsafe_masked_index_put_accumulate", UnsafeMaskedIndexPut},
};

}  // namespace

absl::Span<const DecompositionRow> IndexRows() { return kRows; }

}  // namespace kiln
