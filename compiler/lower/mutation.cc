// The trailing copy_ nodes: what the graph writes back to its inputs.
#include <vector>

#include "compiler/lower/lowering_context.h"
#include "compiler/lower/node_arguments.h"
#include "compiler/lower/strides.h"

namespace kiln {
namespace {

// As far as the tensor is known: its view, or what its body loads.
bool ReadsBuffer(const LoopGraph& loops, const LoweredTensor& tensor, BufferId buffer) {
  const BufferId storage = loops.StorageOf(buffer);
  if (tensor.is_strided()) return loops.StorageOf(tensor.view->buffer) == storage;
  if (tensor.body == nullptr) return false;
  for (const LoopOpData& op : tensor.body->ops) {
    if (op.op == LoopOpcode::kLoad && loops.StorageOf(op.buffer) == storage) return true;
  }
  return false;
}

// Values that later nodes or outputs still need and that read `buffer` must not see the new contents:
// they get memory of their own first.
void SaveReaders(LoweringContext& context, const GraphNode& node, BufferId buffer, ValueId target) {
  auto save = [&](ValueId id) {
    if (id == kNoValue || id == target || !context.IsDefined(id)) return;
    LoweredTensor tensor = context.value(id);
    if (!ReadsBuffer(context.out(), tensor, buffer)) return;
    if (tensor.is_strided()) {
      tensor.view = context.memory().CopyTo(tensor, ContiguousStrides(context.exprs(), tensor.sizes));
    } else {
      context.memory().Materialize(tensor);
    }
    context.MutableValue(id) = std::move(tensor);
  };
  for (const GraphOutput& output : context.graph().outputs) save(output.value);
  const std::vector<GraphNode>& nodes = context.graph().nodes;
  for (size_t i = &node - nodes.data() + 1; i < nodes.size(); ++i) {
    for (const auto& [name, argument] : nodes[i].args) {
      if (const auto* tensor = std::get_if<TensorArg>(&argument)) save(tensor->value);
      if (const auto* list = std::get_if<TensorListArg>(&argument)) {
        for (ValueId value : list->values) save(value);
      }
    }
  }
}

// `value`'s body reads `view`'s buffer only at the element that the same point stores.
bool ReadsInPlace(const LoweredTensor& value, const BufferView& view, LoweringContext& context) {
  if (value.is_strided()) return value.view->buffer != view.buffer;
  std::vector<ExprId> index;
  for (ExprId var : value.body->vars) index.push_back(var == 0 ? context.Const(0) : var);
  const ExprId stored = FlatIndex(context.exprs(), view, index);
  for (const LoopOpData& op : value.body->ops) {
    if (op.op == LoopOpcode::kLoad && op.buffer == view.buffer && op.index != stored) return false;
  }
  return true;
}

absl::Status LowerCopyTo(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const ValueId target = args.TensorValue("self");
  const LoweredTensor self = args.Tensor("self");
  if (!context.status().ok()) return context.status();
  if (!self.is_strided() || context.out().buffers[self.view->buffer].kind != LoopBuffer::Kind::kInput) {
    return absl::UnimplementedError("unsupported: copy_ to a tensor that is not an input");
  }
  if (IsComplex(self.dtype))
    return absl::UnimplementedError("unsupported: complex numbers written to an input");
  const BufferView view = *self.view;
  SaveReaders(context, node, view.buffer, target);
  LoweredTensor source = args.Tensor("src");
  if (IsComplex(source.dtype))
    return absl::UnimplementedError("unsupported: complex numbers written to an input");
  const bool same_place = source.is_strided() && source.view->buffer == view.buffer &&
                          source.view->offset == view.offset && source.view->strides == view.strides &&
                          source.sizes == self.sizes;
  if (!same_place) {
    if (ReadsBuffer(context.out(), source, view.buffer) &&
        (source.sizes != self.sizes || !ReadsInPlace(source, view, context))) {
      if (source.is_strided()) {
        source.view = context.memory().CopyTo(source, ContiguousStrides(context.exprs(), source.sizes));
      } else {
        context.memory().Materialize(source);
      }
    }
    context.loops().EmitStores(view, [&](LoopRecorder& ops, Index index) {
      return ops.Cast(context.loops().LoadBroadcast(ops, source, index, view.sizes), ComputeType(view.dtype));
    });
  }
  LoweredTensor result = self;
  context.SetResult(node, std::move(result));
  return context.status();
}

}  // namespace

void RegisterMutation(LoweringTable& table) { table[Op::kCopyInPlace] = LowerCopyTo; }

}  // namespace kiln
