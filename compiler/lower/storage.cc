// What reads memory by strides and storage offset, and what gives values the memory that others look at:
// values with a pinned layout, and those that several results share, lie as declared as soon as they are
// computed, so that views of them are windows on one buffer. Methods of LoweringContext, and
// as_strided_scatter.
#include "absl/strings/str_cat.h"
#include "compiler/lower/lowering_context.h"
#include "compiler/lower/node_arguments.h"
#include "compiler/lower/strides.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/support/status_macros.h"

namespace kiln {

void LoweringContext::PinResults(const GraphNode& node) {
  if (IsViewNode(node)) return;
  for (ValueId result : node.results) {
    if (result == kNoValue || !IsDefined(result) || !(facts_.pinned[result] || facts_.shared[result]))
      continue;
    LoweredTensor& tensor = values_[result];
    const TensorType& type = graph_.type(result);
    if (type.strides.size() != type.rank()) continue;
    if (!tensor.is_strided() && IsDense(exprs(), type.sizes, type.strides)) Realise(tensor);
    const bool as_declared = tensor.is_strided() && !out_.Reinterprets(*tensor.view) &&
                             SameLayout(exprs(), type.sizes, tensor.view->strides, type.strides);
    if (!as_declared || (tensor.view->offset != Const(0) && !starts_.contains(tensor.view->buffer))) {
      tensor.view = CopyTo(tensor, type.strides);
      tensor.body = nullptr;
    }
    starts_.try_emplace(tensor.view->buffer, Const(0));
  }
}

absl::StatusOr<BufferView> LoweringContext::StorageWindow(const GraphNode& node, const LoweredTensor& self) {
  const auto start = self.is_strided() ? starts_.find(self.view->buffer) : starts_.end();
  if (start == starts_.end()) {
    return absl::UnimplementedError("unsupported: as_strided of a view that could not be one here");
  }
  const NodeArguments args(*this, node);
  BufferView window{self.view->buffer, self.dtype, args.ExprList("size"), args.ExprList("stride"),
                    self.view->offset};
  if (args.Has("storage_offset")) {
    window.offset = exprs().Sub(args.Expr("storage_offset", window.offset), start->second);
  }
  KILN_RETURN_IF_ERROR(status_);
  if (window.sizes.size() != window.strides.size()) {
    return absl::InvalidArgumentError("as_strided with sizes and strides of different ranks");
  }
  if (IsEmpty(exprs(), window.sizes)) return window;
  // Everything it reaches must lie in the buffer.
  ExprId last = window.offset;
  for (size_t dim = 0; dim < window.sizes.size(); ++dim) {
    const ExprId reach = exprs().Sub(window.sizes[dim], one_);
    last = exprs().Add(last, exprs().Mul(reach, window.strides[dim]));
  }
  const ExprId span = out_.buffers[window.buffer].span;
  if (!Require(exprs().Lt(last, span)) || !Require(exprs().Le(Const(0), window.offset))) {
    return absl::InvalidArgumentError("as_strided reaches past its argument");
  }
  return window;
}

void LoweringContext::ShareStorage(const GraphNode& node, const BufferView& argument, BufferId made) {
  out_.buffers[made].shares = argument.buffer;
  const auto start = starts_.find(argument.buffer);
  if (start == starts_.end() || node.results.size() != 1) return;
  // Of the same byte, in the result's elements.
  const ExprId bytes =
      exprs().Mul(exprs().Add(start->second, argument.offset), Const(ByteSize(argument.dtype)));
  starts_[made] = exprs().FloorDiv(bytes, Const(ByteSize(out_.buffers[made].dtype)));
}

BufferView LoweringContext::CopyStorage(BufferId buffer) {
  const LoopBuffer from = out_.buffers[buffer];
  const BufferView all{buffer, from.dtype, {from.span}, {one_}, Const(0)};
  const LoweredTensor memory = WithView({from.dtype, from.device, all.sizes, all.strides, 0}, all);
  BufferView copy = CopyTo(memory, all.strides);
  starts_[copy.buffer] = starts_.at(buffer);
  return copy;
}

namespace {

// A copy of all memory that the argument views, of which the result sees as much as the argument did; what
// the window shows is replaced.
absl::Status LowerAsStridedScatter(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self"), source = args.Tensor("src");
  const TensorType& type = context.ResultType(node);
  KILN_RETURN_IF_ERROR(context.status());
  if (self.is_strided() && context.out().Reinterprets(*self.view)) {
    return absl::UnimplementedError("unsupported: as_strided_scatter into memory of another dtype");
  }
  KILN_ASSIGN_OR_RETURN(BufferView window, context.StorageWindow(node, self));
  context.CheckSizes(source.sizes, window.sizes);
  context.CheckSizes(self.sizes, type.sizes);
  KILN_RETURN_IF_ERROR(context.status());
  BufferView result = *self.view;
  window.buffer = result.buffer = context.CopyStorage(result.buffer).buffer;
  if (OverlapsItself(context.exprs(), window.sizes, window.strides)) {
    return absl::InvalidArgumentError("as_strided_scatter: some elements refer to one place in memory");
  }
  context.EmitStores(window, [&](LoopRecorder& ops, Index index) {
    return ops.Cast(context.Load(ops, source, index), ComputeType(window.dtype));
  });
  context.SetResult(node, WithView(type, std::move(result)));
  return context.status();
}

}  // namespace

void RegisterStorage(LoweringTable& table) { table[Op::kAsStridedScatter] = LowerAsStridedScatter; }

}  // namespace kiln
