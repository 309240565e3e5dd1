// Memory: buffers, layouts, and the loops that fill them. Methods of LoweringContext.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "compiler/graph/dtype_range.h"
#include "compiler/ir/reduce_kinds.h"
#include "compiler/lower/live_ops.h"
#include "compiler/lower/lowering_context.h"
#include "compiler/lower/strides.h"
#include "compiler/support/divisor.h"
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
  Domain domain = NewDomain(target.sizes);
  SortByStride(target.strides, domain.index, domain.loops);
  LoopRecorder ops(exprs());
  ops.AddOrigin(node_index_);
  const LoopOpId value = fn(ops, domain.index);
  ops.Store(target.buffer, target.dtype, FlatIndex(exprs(), target, domain.index), value);
  EmitLoops(ops, std::move(domain.loops), {}, false);
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

// ---- reductions

struct LoweringContext::Split {
  size_t dim = 0;    // of inner_sizes; the dimensions before it become outer ones
  ExprId chunk = 0;  // elements of `dim` in a chunk
  ExprId chunks = 0;
};

// Chunks of one length, at most `most`, so that threads get equal shares and hardly an element lies past the
// end. A known size is cut without a rest where a few more chunks than are needed, at most twice as many, do
// that.
void LoweringContext::CutEvenly(ExprId size, int64_t most, Split* split) {
  split->chunks = exprs().Max(exprs().CeilDiv(size, Const(most)), Const(1));
  split->chunk = exprs().CeilDiv(size, split->chunks);
  const auto known = exprs().AsConst(size);
  if (!known || *known < 1) return;
  const int64_t chunk = DivisorUpTo(*known, most);
  const int64_t least = (*known - 1) / most + 1;
  if (*known / chunk - least > least) return;
  split->chunk = Const(chunk);
  split->chunks = Const(*known / chunk);
}

// A reduction to few elements over a large domain runs in fixed chunks and a second pass: it is
// parallel, and its bits do not depend on the number of threads.
bool LoweringContext::PlanSplit(const TensorType& type, const Reduction& reduction, Split* split) {
  constexpr int64_t kFewResults = 16, kLargeDomain = 32768, kChunk = 8192;
  if (!reduction.may_split) return false;
  const auto results = exprs().AsConst(exprs().Product(type.sizes));
  if (!results.has_value() || *results > kFewResults) return false;
  if (exprs().Range(exprs().Product(reduction.inner_sizes)).max <= kLargeDomain) return false;
  int64_t inner = 1;
  for (size_t dim = reduction.inner_sizes.size(); dim-- > 0;) {
    const auto size = exprs().AsConst(reduction.inner_sizes[dim]);
    if (size.has_value() && *size > 0 && *size <= kChunk / inner) {
      inner *= *size;
      continue;
    }
    split->dim = dim;
    CutEvenly(reduction.inner_sizes[dim], std::max<int64_t>(kChunk / inner, 1), split);
    return true;
  }
  return false;
}

namespace {

LoopOpId Identity(LoopRecorder& ops, v1::ReduceKind kind, v1::DType dtype) {
  const bool real = IsFloat(dtype);
  switch (kind) {
    case v1::REDUCE_PROD: return ops.ConstantInt(1, dtype);
    case v1::REDUCE_ALL: return ops.True();
    case v1::REDUCE_MAX:
    case v1::REDUCE_MIN: {
      const bool max = kind == v1::REDUCE_MAX;
      if (real) return ops.Constant(max ? -HUGE_VAL : HUGE_VAL, dtype);
      const auto top = static_cast<int64_t>(IntegersEnd(dtype) - 1);
      const bool starts_at_zero = dtype == v1::BOOL || IsUnsignedInteger(dtype);
      return ops.ConstantInt(!max ? top : starts_at_zero ? 0 : -top - 1, dtype);
    }
    default: return ops.ConstantInt(0, dtype);
  }
}

}  // namespace

LoweredTensor LoweringContext::ReduceOnce(const TensorType& type, const Reduction& reduction, InnerFn value,
                                          ValueFn finish) {
  Domain inner = NewDomain(reduction.inner_sizes);
  if (inner.loops.empty()) {
    return Pointwise(type, [&](LoopRecorder& ops, Index index) {
      const LoopOpId element = ops.Cast(value(ops, index, inner.index), reduction.compute);
      return finish(ops, IsArgReduce(reduction.kind) ? ops.ConstantInt(0) : element);
    });
  }
  Domain outer = NewDomain(type.sizes);
  const BufferId buffer =
      out_.AddBuffer(type.dtype, type.device, type.sizes, PreferredStrides(exprs(), type));
  LoweredTensor result = WithView(type, out_.Whole(buffer));
  SortByStride(result.view->strides, outer.index, outer.loops);
  LoopRecorder ops(exprs());
  ops.AddOrigin(node_index_);
  const LoopOpId element = ops.Cast(value(ops, outer.index, inner.index), reduction.compute);
  const LoopOpId reduced = finish(ops, ops.Reduce(reduction.kind, element));
  ops.Store(buffer, type.dtype, FlatIndex(exprs(), *result.view, outer.index), reduced);
  EmitLoops(ops, std::move(outer.loops), std::move(inner.loops), false);
  return result;
}

LoweredTensor LoweringContext::Reduce(const TensorType& type, const Reduction& reduction, InnerFn value,
                                      ValueFn finish) {
  Split split;
  if (!PlanSplit(type, reduction, &split)) return ReduceOnce(type, reduction, value, finish);

  // First pass: one partial result for each point of the leading inner dimensions and each chunk.
  const size_t rank = type.rank();
  const std::vector<ExprId>& inner_sizes = reduction.inner_sizes;
  const ExprId length = inner_sizes[split.dim], chunk = split.chunk;
  TensorType partial;
  partial.dtype = reduction.compute;
  partial.device = type.device;
  partial.sizes = type.sizes;
  partial.sizes.insert(partial.sizes.end(), inner_sizes.begin(), inner_sizes.begin() + split.dim);
  partial.sizes.push_back(split.chunks);
  partial.strides = ContiguousStrides(exprs(), partial.sizes);
  Reduction first = reduction;
  first.inner_sizes.assign(inner_sizes.begin() + split.dim, inner_sizes.end());
  first.inner_sizes[0] = chunk;
  const bool ragged = !exprs().ProvablyDivides(chunk, length);
  LoweredTensor partials = ReduceOnce(
      partial, first,
      [&](LoopRecorder& ops, Index outer, Index inner) {
        std::vector<ExprId> index(outer.begin() + rank, outer.end() - 1);
        const ExprId position = exprs().Add(exprs().Mul(outer.back(), chunk), inner[0]);
        index.push_back(position);
        index.insert(index.end(), inner.begin() + 1, inner.end());
        if (!ragged) return ops.Cast(value(ops, outer.first(rank), index), reduction.compute);
        const LoopOpId mask = ops.IndexLess(position, length);
        ops.OpenMask(mask);
        const LoopOpId element = ops.Cast(value(ops, outer.first(rank), index), reduction.compute);
        ops.CloseMask();
        return ops.Where(mask, element, Identity(ops, reduction.kind, reduction.compute));
      },
      [](LoopRecorder&, LoopOpId reduced) { return reduced; });

  // Second pass over the partial results, in order.
  Reduction second = reduction;
  second.inner_sizes.assign(partial.sizes.begin() + rank, partial.sizes.end());
  return ReduceOnce(
      type, second,
      [&](LoopRecorder& ops, Index outer, Index inner) {
        std::vector<ExprId> index(outer.begin(), outer.end());
        index.insert(index.end(), inner.begin(), inner.end());
        return Load(ops, partials, index);
      },
      finish);
}

}  // namespace kiln
