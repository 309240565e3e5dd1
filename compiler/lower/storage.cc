// Operators that write to memory by strides and storage offset.
#include <utility>

#include "compiler/lower/lowering_context.h"
#include "compiler/lower/node_arguments.h"
#include "compiler/lower/strides.h"
#include "compiler/support/status_macros.h"

namespace kiln {
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
  KILN_ASSIGN_OR_RETURN(BufferView window, context.storage().Window(args, self));
  context.checks().CheckSizes(source.sizes, window.sizes);
  context.checks().CheckSizes(self.sizes, type.sizes);
  KILN_RETURN_IF_ERROR(context.status());
  BufferView result = *self.view;
  window.buffer = result.buffer = context.storage().Copy(result.buffer).buffer;
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
