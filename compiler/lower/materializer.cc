#include "compiler/lower/materializer.h"

#include "compiler/lower/strides.h"
#include "compiler/target/cost_model.h"

namespace kiln {

void Materializer::Fill(const BufferView& view, const LoweredTensor& tensor) {
  loops_.EmitStores(view, [&](LoopRecorder& ops, Index index) { return loops_.Load(ops, tensor, index); });
}

const BufferView& Materializer::Materialize(LoweredTensor& tensor, Layout layout) {
  if (tensor.is_strided()) return *tensor.view;
  const TensorType type{tensor.dtype, tensor.device, tensor.sizes, tensor.strides, 0};
  const BufferView view =
      out_.Whole(out_.AddBuffer(type.dtype, type.device, type.sizes,
                                layout == Layout::kPreferred ? PreferredStrides(out_.exprs, type)
                                                             : ContiguousStrides(out_.exprs, type.sizes)));
  Fill(view, tensor);
  tensor.view = view;
  tensor.body = nullptr;
  return *tensor.view;
}

void Materializer::MaterializeIfExpensive(LoweredTensor& tensor) {
  if (tensor.body == nullptr) return;
  const VirtualBody& body = *tensor.body;
  if (cost::PaysStoringBeforeLoop({body.ops.size(), body.loads, body.heavy})) Materialize(tensor);
}

void Materializer::MaterializeWithRowPadding(LoweredTensor& tensor, int64_t row_length) {
  if (tensor.is_strided() || tensor.sizes.empty()) return;
  std::vector<ExprId> sizes = tensor.sizes;
  sizes.back() = out_.exprs.Const(row_length);
  const BufferId buffer =
      out_.AddBuffer(tensor.dtype, tensor.device, sizes, ContiguousStrides(out_.exprs, sizes));
  const BufferView view{buffer, tensor.dtype, tensor.sizes, out_.buffers[buffer].strides,
                        out_.exprs.Const(0)};
  Fill(view, tensor);
  tensor.view = view;
  tensor.body = nullptr;
  row_padded_.insert(buffer);
}

bool Materializer::HasRowPadding(const LoweredTensor& tensor, const BufferView& whole) const {
  return tensor.is_strided() && row_padded_.contains(tensor.view->buffer) && tensor.dtype == whole.dtype &&
         tensor.view->strides == whole.strides && tensor.view->offset == whole.offset &&
         out_.buffers[tensor.view->buffer].span == out_.exprs.Product(whole.sizes);
}

BufferView Materializer::CopyTo(const LoweredTensor& tensor, const std::vector<ExprId>& strides) {
  const std::vector<ExprId> sizes = StoredSizes(tensor.sizes, strides);
  if (OverlapsItself(out_.exprs, sizes, strides)) {
    checks_.Invalid("the declared strides put two elements in one place");
  }
  const BufferId buffer = out_.AddBuffer(tensor.dtype, tensor.device, sizes, strides);
  return Filled({buffer, tensor.dtype, sizes, strides, out_.exprs.Const(0)}, tensor);
}

BufferView Materializer::CopyTo(const LoweredTensor& tensor, const std::vector<ExprId>& strides,
                                ExprId offset) {
  const ExprId all = out_.exprs.Add(offset, SpanOfElements(out_.exprs, tensor.sizes, strides));
  const BufferId buffer = out_.AddBuffer(tensor.dtype, tensor.device, {all}, {out_.exprs.Const(1)});
  return Filled({buffer, tensor.dtype, StoredSizes(tensor.sizes, strides), strides, offset}, tensor);
}

std::vector<ExprId> Materializer::StoredSizes(std::vector<ExprId> sizes,
                                              const std::vector<ExprId>& strides) const {
  for (size_t dim = 0; dim < strides.size(); ++dim) {
    if (strides[dim] == out_.exprs.Const(0)) sizes[dim] = out_.exprs.Const(1);
  }
  return sizes;
}

BufferView Materializer::Filled(BufferView stored, const LoweredTensor& tensor) {
  Fill(stored, tensor);
  stored.sizes = tensor.sizes;
  return stored;
}

BufferView Materializer::InLayout(LoweredTensor& tensor, const std::vector<ExprId>& strides) {
  if (!tensor.is_strided() && SameLayout(out_.exprs, tensor.sizes, tensor.strides, strides))
    Materialize(tensor);
  if (!tensor.is_strided() || out_.Reinterprets(*tensor.view) ||
      !SameLayout(out_.exprs, tensor.sizes, tensor.view->strides, strides)) {
    return CopyTo(tensor, strides);
  }
  // A library looks at the strides of dimensions of size 1 too.
  BufferView view = *tensor.view;
  view.strides = strides;
  return view;
}

}  // namespace kiln
