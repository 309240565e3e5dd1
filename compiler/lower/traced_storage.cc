#include "compiler/lower/traced_storage.h"

#include "compiler/lower/strides.h"
#include "compiler/support/status_macros.h"

namespace kiln {

void TracedStorage::Pin(LoweredTensor& tensor, const TensorType& type) {
  ExprPool& exprs = out_.exprs;
  if (!tensor.is_strided() && IsDense(exprs, type.sizes, type.strides)) memory_.Materialize(tensor);
  const bool as_declared = tensor.is_strided() && !out_.Reinterprets(*tensor.view) &&
                           SameLayout(exprs, type.sizes, tensor.view->strides, type.strides);
  if (!as_declared || (tensor.view->offset != exprs.Const(0) && !starts_.contains(tensor.view->buffer))) {
    tensor.view = memory_.CopyTo(tensor, type.strides);
    tensor.body = nullptr;
  }
  starts_.try_emplace(tensor.view->buffer, exprs.Const(0));
}

ExprId TracedStorage::OffsetOf(const BufferView& view) const {
  const auto start = starts_.find(view.buffer);
  return start == starts_.end() ? view.offset : out_.exprs.Add(start->second, view.offset);
}

absl::StatusOr<BufferView> TracedStorage::Window(const NodeArguments& args, const LoweredTensor& self) {
  ExprPool& exprs = out_.exprs;
  const ExprId one = exprs.Const(1);
  const auto start = self.is_strided() ? starts_.find(self.view->buffer) : starts_.end();
  if (start == starts_.end()) {
    return absl::UnimplementedError("unsupported: as_strided of a view that could not be one here");
  }
  BufferView window{self.view->buffer, self.dtype, args.ExprList("size"), args.ExprList("stride"),
                    self.view->offset};
  if (args.Has("storage_offset")) {
    window.offset = exprs.Sub(args.Expr("storage_offset", window.offset), start->second);
  }
  KILN_RETURN_IF_ERROR(checks_.status());
  if (window.sizes.size() != window.strides.size()) {
    return absl::InvalidArgumentError("as_strided with sizes and strides of different ranks");
  }
  if (IsEmpty(exprs, window.sizes)) return window;
  // All of it must be inside the buffer.
  ExprId last = window.offset;
  for (size_t dim = 0; dim < window.sizes.size(); ++dim) {
    const ExprId reach = exprs.Sub(window.sizes[dim], one);
    last = exprs.Add(last, exprs.Mul(reach, window.strides[dim]));
  }
  const ExprId span = out_.buffers[window.buffer].span;
  if (!out_.Require(exprs.Lt(last, span)) || !out_.Require(exprs.Le(exprs.Const(0), window.offset))) {
    return absl::InvalidArgumentError("as_strided reaches past its argument");
  }
  return window;
}

void TracedStorage::Share(BufferId made, const BufferView& argument, bool is_only_result) {
  ExprPool& exprs = out_.exprs;
  out_.buffers[made].shares = argument.buffer;
  const auto start = starts_.find(argument.buffer);
  if (start == starts_.end() || !is_only_result) return;
  // Of the same byte, in the result's elements.
  const ExprId bytes =
      exprs.Mul(exprs.Add(start->second, argument.offset), exprs.Const(ByteSize(argument.dtype)));
  starts_[made] = exprs.FloorDiv(bytes, exprs.Const(ByteSize(out_.buffers[made].dtype)));
}

BufferView TracedStorage::Copy(BufferId buffer) {
  ExprPool& exprs = out_.exprs;
  const LoopBuffer from = out_.buffers[buffer];
  const BufferView all{buffer, from.dtype, {from.span}, {exprs.Const(1)}, exprs.Const(0)};
  const LoweredTensor memory = WithView({from.dtype, from.device, all.sizes, all.strides, 0}, all);
  BufferView copy = memory_.CopyTo(memory, all.strides);
  starts_[copy.buffer] = starts_.at(buffer);
  return copy;
}

}  // namespace kiln
