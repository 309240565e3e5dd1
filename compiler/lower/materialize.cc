// Memory: buffers, layouts, and the loops that fill them. Methods of LoweringContext.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compiler/lower/live_ops.h"
#include "compiler/lower/lowering_context.h"
#include "compiler/lower/strides.h"
#include "compiler/target/cost_model.h"

namespace kiln {
void LoweringContext::SortByStride(const std::vector<ExprId>& strides, const std::vector<ExprId>& index,
                                   std::vector<LoopVar>& loops) {
  std::vector<ExprId> sizes;
  for (size_t dim = 0; dim < index.size(); ++dim) {
    auto loop =
        std::find_if(loops.begin(), loops.end(), [&](const LoopVar& var) { return var.leaf == index[dim]; });
    sizes.push_back(loop == loops.end() ? one_ : loop->extent);
  }
  const auto order = DenseOrder(exprs(), sizes, strides);
  if (!order) return;
  std::vector<LoopVar> sorted;
  for (auto dim = order->rbegin(); dim != order->rend(); ++dim) {
    for (const LoopVar& var : loops) {
      if (var.leaf == index[*dim]) sorted.push_back(var);
    }
  }
  if (sorted.size() == loops.size()) loops = std::move(sorted);
}

void LoweringContext::EmitLoops(LoopRecorder& ops, std::vector<LoopVar> outer, std::vector<LoopVar> inner,
                                bool ordered) {
  Fail(ops.status());
  if (!status_.ok()) return;
  LoopGraphNode node;
  node.kind = LoopGraphNode::Kind::kLoops;
  node.loops.outer = std::move(outer);
  node.loops.inner = std::move(inner);
  node.loops.ordered = ordered;
  for (LoopOpData& op : KeepLiveOps(exprs(), ops.body(), {}).ops) node.loops.body.Add(std::move(op));
  for (uint32_t origin : ops.TakeOrigins()) {
    if (origin >= graph_.nodes.size()) continue;
    node.loops.origins.push_back(graph_.nodes[origin].origin);
    node.loops.operators.emplace_back(graph_.nodes[origin].target.text());
  }
  out_.nodes.push_back(std::move(node));
}

void LoweringContext::EmitStores(const BufferView& target, PointFn fn) {
  EmitReduced(target, {}, [&](LoopRecorder& ops, Index index, Index) { return fn(ops, index); });
}

void LoweringContext::EmitReduced(const BufferView& target, const std::vector<ExprId>& inner_sizes,
                                  InnerFn value) {
  Domain inner = NewDomain(inner_sizes);
  Domain outer = NewDomain(target.sizes);
  SortByStride(target.strides, outer.index, outer.loops);
  LoopRecorder ops(exprs());
  ops.AddOrigin(node_index_);
  const LoopOpId result = value(ops, outer.index, inner.index);
  ops.Store(target.buffer, target.dtype, FlatIndex(exprs(), target, outer.index), result);
  EmitLoops(ops, std::move(outer.loops), std::move(inner.loops), false);
}

void LoweringContext::EmitOrdered(const std::vector<ExprId>& outer_sizes,
                                  const std::vector<ExprId>& inner_sizes,
                                  absl::FunctionRef<void(LoopRecorder&, Index, Index)> body) {
  Domain outer = NewDomain(outer_sizes);
  Domain inner = NewDomain(inner_sizes);
  LoopRecorder ops(exprs());
  ops.AddOrigin(node_index_);
  body(ops, outer.index, inner.index);
  const bool ordered = !inner.loops.empty();
  EmitLoops(ops, std::move(outer.loops), std::move(inner.loops), ordered);
}

const BufferView& LoweringContext::Realise(LoweredTensor& tensor, Layout layout) {
  if (tensor.is_strided()) return *tensor.view;
  const TensorType type{tensor.dtype, tensor.device, tensor.sizes, tensor.strides, 0};
  const BufferView view =
      out_.Whole(out_.AddBuffer(type.dtype, type.device, type.sizes,
                                layout == Layout::kPreferred ? PreferredStrides(exprs(), type)
                                                             : ContiguousStrides(exprs(), type.sizes)));
  EmitStores(view, [&](LoopRecorder& ops, Index index) { return Load(ops, tensor, index); });
  tensor.view = view;
  tensor.body = nullptr;
  return *tensor.view;
}

const BufferView& LoweringContext::RealiseValue(ValueId id, Layout layout) {
  return Realise(values_[id], layout);
}

void LoweringContext::MaterializeIfExpensive(ValueId id) {
  if (!IsDefined(id) || values_[id].body == nullptr) return;
  const VirtualBody& body = *values_[id].body;
  if (cost::PaysStoringBeforeLoop({body.ops.size(), body.loads, body.heavy})) Realise(values_[id]);
}

BufferView LoweringContext::CopyTo(const LoweredTensor& tensor, const std::vector<ExprId>& strides) {
  // Zero strides share an element: store it once.
  BufferView stored{0, tensor.dtype, tensor.sizes, strides, Const(0)};
  for (size_t dim = 0; dim < strides.size(); ++dim) {
    if (strides[dim] == Const(0)) stored.sizes[dim] = one_;
  }
  if (OverlapsItself(exprs(), stored.sizes, strides)) {
    Invalid("the declared strides put two elements in one place");
  }
  stored.buffer = out_.AddBuffer(tensor.dtype, tensor.device, stored.sizes, strides);
  EmitStores(stored, [&](LoopRecorder& ops, Index index) { return Load(ops, tensor, index); });
  stored.sizes = tensor.sizes;
  return stored;
}

bool LoweringContext::ReadsBuffer(const LoweredTensor& tensor, BufferId buffer) const {
  const BufferId storage = out_.StorageOf(buffer);
  if (tensor.is_strided()) return out_.StorageOf(tensor.view->buffer) == storage;
  if (tensor.body == nullptr) return false;
  for (const LoopOpData& op : tensor.body->ops) {
    if (op.op == LoopOpcode::kLoad && out_.StorageOf(op.buffer) == storage) return true;
  }
  return false;
}

BufferView LoweringContext::InLayout(LoweredTensor& tensor, const std::vector<ExprId>& strides) {
  if (!tensor.is_strided() && SameLayout(exprs(), tensor.sizes, tensor.strides, strides)) Realise(tensor);
  if (!tensor.is_strided() || out_.Reinterprets(*tensor.view) ||
      !SameLayout(exprs(), tensor.sizes, tensor.view->strides, strides)) {
    return CopyTo(tensor, strides);
  }
  // A library looks at the strides of dimensions of size 1 too.
  BufferView view = *tensor.view;
  view.strides = strides;
  return view;
}

}  // namespace kiln
