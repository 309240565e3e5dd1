// Operators that write to memory by strides and storage offset.
#include <utility>

#include "compiler/lower/lowering_context.h"
#include "compiler/lower/node_arguments.h"
#include "compiler/lower/strides.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

// A copy of all memory that the argument views, of which the result sees as much as the argument did; what
// the window shows is replaced. Of an expanded argument, whose elements share places, the copy is dense.
absl::Status LowerAsStridedScatter(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  LoweredTensor self = args.Tensor("self");
  const LoweredTensor source = args.Tensor("src");
  const TensorType& type = context.ResultType(node);
  KILN_RETURN_IF_ERROR(context.status());
  const bool dense = !SameLayout(context.exprs(), type.sizes, self.strides, type.strides);
  if (dense) {
    self.view = context.memory().CopyTo(self, type.strides);
    self.body = nullptr;
    context.storage().SetStart(self.view->buffer, context.Const(0));
  }
  if (self.is_strided() && context.out().Reinterprets(*self.view)) {
    return absl::UnimplementedError("unsupported: as_strided_scatter into memory of another dtype");
  }
  KILN_ASSIGN_OR_RETURN(BufferView window, context.storage().Window(args, self));
  context.checks().CheckSizes(source.sizes, window.sizes);
  context.checks().CheckSizes(self.sizes, type.sizes);
  KILN_RETURN_IF_ERROR(context.status());
  BufferView result = *self.view;
  if (!dense) window.buffer = result.buffer = context.storage().Copy(result.buffer).buffer;
  if (OverlapsItself(context.exprs(), window.sizes, window.strides)) {
    return absl::InvalidArgumentError("as_strided_scatter: some elements refer to one place in memory");
  }
  context.loops().EmitStores(window, [&](LoopRecorder& ops, Index index) {
    return ops.Cast(context.loops().Load(ops, source, index), ComputeType(window.dtype));
  });
  context.SetResult(node, WithView(type, std::move(result)));
  return context.status();
}

}  // namespace

void RegisterStorage(LoweringTable& table) { table[Op::kAsStridedScatter] = LowerAsStridedScatter; }

}  // namespace kiln
