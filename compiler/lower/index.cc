// Data-dependent addresses: gathers are values like any other, scatters are ordered stores into a copy.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compiler/lower/library_call.h"
#include "compiler/lower/lowering_context.h"
#include "compiler/lower/node_arguments.h"
#include "compiler/lower/operands.h"
#include "compiler/lower/reduction_loops.h"
#include "compiler/lower/strides.h"
#include "compiler/target/cost_model.h"
#include "compiler/target/device.h"

namespace kiln {
namespace {

using Sizes = std::vector<ExprId>;

bool IsIndexType(v1::DType dtype) { return ClassOf(dtype) == DTypeClass::kSigned; }

// As eager asks: a tensor without elements may be of any dtype.
bool IsIndex(LoweringContext& context, const LoweredTensor& indices) {
  return IsIndexType(indices.dtype) || context.exprs().Product(indices.sizes) == context.Const(0);
}

// The value of an index tensor at `index` as a checked position in a dimension of `size`.
ExprId Position(LoweringContext& context, LoopRecorder& ops, const LoweredTensor& indices, Index index,
                ExprId size, v1::IndexMode mode = v1::INDEX_FROM_START) {
  return ops.CheckedIndex(context.loops().Load(ops, indices, index), size, mode);
}

absl::Status LowerEmbedding(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor weight = args.Tensor("weight");
  const LoweredTensor indices = args.Tensor("indices");
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (weight.rank() != 2 || type.rank() != indices.rank() + 1 || !IsIndex(context, indices)) {
    return absl::InvalidArgumentError("embedding needs a matrix and integer indices");
  }
  context.checks().CheckSize(weight.sizes[1], type.sizes.back());
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    const ExprId row = Position(context, ops, indices, index.first(index.size() - 1), weight.sizes[0]);
    return context.loops().Load(ops, weight, {row, index.back()});
  }));
  return context.status();
}

absl::Status LowerGather(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const LoweredTensor indices = args.Tensor("index");
  const size_t dim = args.Dim("dim", self.rank(), 0);
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (!IsIndex(context, indices)) return absl::InvalidArgumentError("gather needs integer indices");
  if (self.rank() == 0 || indices.rank() != self.rank())
    return CallLibrary(context, node, "no lowering", false);
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    std::vector<ExprId> from(index.begin(), index.end());
    if (from.size() != self.rank())
      return ops.Cast(ops.Fail("gather of another rank"), ComputeType(type.dtype));
    from[dim] = Position(context, ops, indices, index, self.sizes[dim]);
    return context.loops().Load(ops, self, from);
  }));
  return context.status();
}

absl::Status LowerIndexSelect(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const LoweredTensor indices = args.Tensor("index");
  const size_t dim = args.Dim("dim", self.rank(), 0);
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (!IsIndex(context, indices)) return absl::InvalidArgumentError("index_select needs integer indices");
  if (self.rank() == 0 || indices.rank() > 1) return CallLibrary(context, node, "no lowering", false);
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    std::vector<ExprId> from(index.begin(), index.end()), at;
    if (from.size() != self.rank())
      return ops.Cast(ops.Fail("index_select of another rank"), ComputeType(type.dtype));
    if (indices.rank() == 1) at.push_back(index[dim]);
    from[dim] = Position(context, ops, indices, at, self.sizes[dim]);
    return context.loops().Load(ops, self, from);
  }));
  return context.status();
}

// ---- advanced indexing: index.Tensor and index_put

struct Advanced {
  std::vector<ValueId> by_dim;  // kNoValue: a whole dimension
  Sizes broadcast;              // shape of the index tensors together
  size_t front = 0;             // where that shape stands in the result
  std::vector<size_t> whole;    // dimensions that are not indexed, in order
};

enum class AdvancedKind { kIntegers, kMask, kUnsupported };

// Reads `indices`. The shape of several index tensors is their broadcast.
AdvancedKind ReadAdvanced(LoweringContext& context, const GraphNode& node, const LoweredTensor& self,
                          Advanced* out) {
  const NodeArguments args(context, node);
  out->by_dim = args.TensorList("indices");
  if (out->by_dim.size() > self.rank()) {
    context.checks().Invalid("more indices than dimensions");
    return AdvancedKind::kUnsupported;
  }
  out->by_dim.resize(self.rank(), kNoValue);
  std::vector<size_t> indexed;
  ExprPool& exprs = context.exprs();
  for (size_t dim = 0; dim < self.rank(); ++dim) {
    const ValueId id = out->by_dim[dim];
    if (id == kNoValue) {
      out->whole.push_back(dim);
      continue;
    }
    if (!context.IsDefined(id)) return AdvancedKind::kUnsupported;
    const LoweredTensor& index = context.value(id);
    if (!IsIndexType(index.dtype)) return AdvancedKind::kMask;
    indexed.push_back(dim);
    if (index.rank() > out->broadcast.size()) {
      out->broadcast.insert(out->broadcast.begin(), index.rank() - out->broadcast.size(), context.Const(1));
    }
    const size_t skip = out->broadcast.size() - index.rank();
    for (size_t i = 0; i < index.rank(); ++i) {
      ExprId& size = out->broadcast[skip + i];
      if (exprs.AsConst(size) == 1) size = index.sizes[i];
    }
  }
  if (indexed.empty()) return AdvancedKind::kUnsupported;
  const bool adjacent = indexed.back() - indexed.front() + 1 == indexed.size();
  out->front = adjacent ? indexed.front() : 0;
  return AdvancedKind::kIntegers;
}

// The index in `self`, from the index among the index tensors' elements and among whole dimensions.
std::vector<ExprId> AdvancedIndex(LoweringContext& context, LoopRecorder& ops, const Advanced& advanced,
                                  const LoweredTensor& self, Index among, Index whole) {
  std::vector<ExprId> from;
  size_t next = 0;
  for (size_t dim = 0; dim < self.rank(); ++dim) {
    const ValueId id = advanced.by_dim[dim];
    if (id == kNoValue) {
      from.push_back(next < whole.size() ? whole[next] : context.Const(0));
      ++next;
      continue;
    }
    const LoweredTensor& index = context.value(id);
    const std::vector<ExprId> at = BroadcastIndex(ops, index.sizes, among, advanced.broadcast);
    from.push_back(Position(context, ops, index, at, self.sizes[dim], v1::INDEX_FROM_EITHER_END));
  }
  return from;
}

absl::Status LowerIndex(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  Advanced advanced;
  const AdvancedKind kind = ReadAdvanced(context, node, self, &advanced);
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (kind == AdvancedKind::kMask) return CallLibrary(context, node, "closed list: nonzero", false);
  if (kind == AdvancedKind::kUnsupported) return CallLibrary(context, node, "no lowering", false);
  const size_t count = advanced.broadcast.size();
  if (type.rank() != count + advanced.whole.size())
    return absl::InvalidArgumentError("the result's rank does not fit");
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    std::vector<ExprId> whole(index.begin(), index.begin() + advanced.front);
    whole.insert(whole.end(), index.begin() + advanced.front + count, index.end());
    return context.loops().Load(
        ops, self, AdvancedIndex(context, ops, advanced, self, index.subspan(advanced.front, count), whole));
  }));
  return context.status();
}

// ---- scatters

// A result that starts as a copy of `self` and is then stored to; where `self` is of no other use, its memory
// is. Sums of 16-bit floats are kept in F32 until all are in.
class Scatter {
 public:
  Scatter(LoweringContext& context, const TensorType& type, bool accumulate)
      : context_(context),
        type_(type),
        wide_(accumulate ? ComputeType(type.dtype) : type.dtype),
        accumulate_(accumulate) {}

  // `id`: of `self`.
  void Start(const LoweredTensor* self, ValueId id = kNoValue) {
    if (self != nullptr) context_.checks().CheckSizes(self->sizes, type_.sizes);
    const Sizes strides = PreferredStrides(context_.exprs(), type_);
    if (id != kNoValue && context_.MayOverwrite(id) && self->is_strided() && self->dtype == wide_ &&
        self->sizes == type_.sizes && self->view->sizes == type_.sizes && self->view->strides == strides) {
      view_ = *self->view;
      return;
    }
    view_ = BufferView{context_.out().AddBuffer(wide_, type_.device, type_.sizes, strides), wide_,
                       type_.sizes, strides, context_.Const(0)};
    context_.loops().EmitStores(view_, [&](LoopRecorder& ops, Index index) {
      if (self == nullptr) return ops.ConstantInt(0, wide_);
      return ops.Cast(context_.loops().LoadBroadcast(ops, *self, index, type_.sizes), ComputeType(wide_));
    });
  }

  // `body` stores what belongs to a point. In order along `ordered`, for points may meet in an element; but a
  // GPU adds in memory, so that sums need no order there and every point has a thread, unless one order is
  // asked for.
  void Emit(const Sizes& others, const Sizes& ordered,
            absl::FunctionRef<void(LoopRecorder&, Index other, Index in_order)> body) {
    // An index that is the same for all would be checked before a loop over none.
    for (const Sizes* sizes : {&others, &ordered}) {
      for (const ExprId size : *sizes) {
        if (context_.exprs().AsConst(size) == 0) return;
      }
    }
    if (!accumulate_ || !IsGpu(type_.device) || context_.options().deterministic) {
      context_.loops().EmitOrdered(others, ordered, body);
      return;
    }
    Sizes all = ordered;
    all.insert(all.end(), others.begin(), others.end());
    context_.loops().EmitOrdered(all, {}, [&](LoopRecorder& ops, Index index, Index) {
      body(ops, index.subspan(ordered.size()), index.first(ordered.size()));
    });
  }

  void Store(LoopRecorder& ops, Index index, LoopOpId value) {
    context_.checks().CheckIndex(ops, index, type_.sizes);
    ops.Store(view_.buffer, wide_, FlatIndex(context_.exprs(), view_, index), value,
              accumulate_ ? v1::STORE_ACCUMULATE : v1::STORE_PLAIN);
  }

  void Finish(const GraphNode& node) {
    if (wide_ == type_.dtype) {
      context_.SetResult(node, WithView(type_, view_));
      if (!node.results.empty()) context_.SetOwnsMemory(node.results[0], true);
      return;
    }
    TensorType wide_type = type_;
    wide_type.dtype = wide_;
    const LoweredTensor sum = WithView(wide_type, view_);
    context_.SetResult(node, context_.loops().Pointwise(type_, [&](LoopRecorder& ops, Index index) {
      return context_.loops().Load(ops, sum, index);
    }));
  }

 private:
  LoweringContext& context_;
  const TensorType type_;
  const v1::DType wide_;
  const bool accumulate_;
  BufferView view_;
};

// index_put with one mask over the leading dimensions and one value: a choice at each point.
absl::Status LowerMaskedPut(LoweringContext& context, const GraphNode& node, const LoweredTensor& self,
                            const Advanced& advanced) {
  const NodeArguments args(context, node);
  const LoweredTensor values = args.Tensor("values");
  const TensorType& type = context.ResultType(node);
  const ValueId mask_id = advanced.by_dim.empty() ? kNoValue : advanced.by_dim[0];
  size_t masks = 0;
  for (ValueId id : advanced.by_dim) masks += id != kNoValue;
  if (!context.status().ok()) return context.status();
  const bool one_value = context.exprs().Product(values.sizes) == context.Const(1);
  if (masks != 1 || !context.IsDefined(mask_id) || !one_value || args.Bool("accumulate", false) ||
      context.value(mask_id).rank() > self.rank()) {
    return CallLibrary(context, node, "closed list: nonzero", false);
  }
  const LoweredTensor mask = context.value(mask_id);
  context.checks().CheckSizes(mask.sizes, Sizes(self.sizes.begin(), self.sizes.begin() + mask.rank()));
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    const LoopOpId chosen = context.loops().Load(ops, mask, index.first(std::min(mask.rank(), index.size())));
    const std::vector<ExprId> zero(values.rank(), context.Const(0));
    const LoopOpId value = ops.Cast(context.loops().Load(ops, values, zero), ComputeType(type.dtype));
    return ops.Where(chosen, value, context.loops().LoadBroadcast(ops, self, index, type.sizes));
  }));
  return context.status();
}

// torch's meta function of index_put does not ask whether the values broadcast: a load of them would leave
// them.
void CheckBroadcasts(LoweringContext& context, const Sizes& values, const Sizes& points) {
  for (size_t i = 0; i < values.size(); ++i) {  // from the last one
    const ExprId size = values[values.size() - 1 - i];
    if (size == context.Const(1)) continue;
    context.checks().CheckSize(size, i < points.size() ? points[points.size() - 1 - i] : context.Const(1));
  }
}

absl::Status LowerIndexPut(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const LoweredTensor values = args.Tensor("values");
  const bool accumulate = args.Bool("accumulate", false);
  Advanced advanced;
  const AdvancedKind kind = ReadAdvanced(context, node, self, &advanced);
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (kind == AdvancedKind::kMask) return LowerMaskedPut(context, node, self, advanced);
  if (kind == AdvancedKind::kUnsupported || (accumulate && type.dtype == v1::BOOL)) {
    return CallLibrary(context, node, "no lowering", false);
  }
  if (type.rank() != self.rank()) return absl::InvalidArgumentError("the result's rank does not fit");
  Sizes whole_sizes;
  for (size_t dim : advanced.whole) whole_sizes.push_back(self.sizes[dim]);
  Sizes value_sizes(whole_sizes.begin(), whole_sizes.begin() + advanced.front);
  value_sizes.insert(value_sizes.end(), advanced.broadcast.begin(), advanced.broadcast.end());
  value_sizes.insert(value_sizes.end(), whole_sizes.begin() + advanced.front, whole_sizes.end());
  CheckBroadcasts(context, values.sizes, value_sizes);
  Scatter scatter(context, type, accumulate);
  scatter.Start(&self, std::get<TensorArg>(*node.Find("self")).value);
  scatter.Emit(whole_sizes, advanced.broadcast, [&](LoopRecorder& ops, Index whole, Index among) {
    const std::vector<ExprId> to = AdvancedIndex(context, ops, advanced, self, among, whole);
    std::vector<ExprId> from(whole.begin(), whole.begin() + advanced.front);
    from.insert(from.end(), among.begin(), among.end());
    from.insert(from.end(), whole.begin() + advanced.front, whole.end());
    const LoopOpId value =
        ops.Cast(context.loops().LoadBroadcast(ops, values, from, value_sizes), ComputeType(type.dtype));
    scatter.Store(ops, to, value);
  });
  scatter.Finish(node);
  return context.status();
}

// scatter, scatter_add, scatter_reduce: over the index tensor, in order along the scattered dimension.
absl::Status LowerScatter(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const LoweredTensor indices = args.Tensor("index");
  const TensorType& type = context.ResultType(node);
  const size_t dim = args.Dim("dim", self.rank(), 0);
  if (!context.status().ok()) return context.status();
  const bool reduce = node.target == Op::kScatterReduceTwo;
  const std::string how = args.String("reduce", "sum");
  const bool accumulate = reduce || node.target == Op::kScatterAdd;
  if ((reduce && (how != "sum" || !args.Bool("include_self", true))) || self.rank() == 0 ||
      indices.rank() != self.rank() || (accumulate && type.dtype == v1::BOOL)) {
    return CallLibrary(context, node, reduce ? absl::StrCat("scatter_reduce ", how) : "no lowering", false);
  }
  if (!IsIndex(context, indices)) return absl::InvalidArgumentError("scatter needs integer indices");
  if (type.rank() != self.rank()) return absl::InvalidArgumentError("the result's rank does not fit");
  const Argument* source = node.Find("src") != nullptr ? node.Find("src") : node.Find("value");
  const auto* source_tensor = source == nullptr ? nullptr : std::get_if<TensorArg>(source);
  if (source == nullptr || (source_tensor != nullptr && !context.IsDefined(source_tensor->value))) {
    return absl::InvalidArgumentError("argument 'src' is missing");
  }
  Sizes outer_sizes = indices.sizes;
  outer_sizes.erase(outer_sizes.begin() + dim);
  Scatter scatter(context, type, accumulate);
  scatter.Start(&self);
  scatter.Emit(outer_sizes, {indices.sizes[dim]}, [&](LoopRecorder& ops, Index outer, Index inner) {
    std::vector<ExprId> from(outer.begin(), outer.end());
    from.insert(from.begin() + dim, inner[0]);
    std::vector<ExprId> to = from;
    to[dim] = Position(context, ops, indices, from, self.sizes[dim]);
    const LoopOpId value =
        source_tensor == nullptr
            ? Operand(context, ops, *source, from, indices.sizes, type.dtype)
            : ops.Cast(context.loops().Load(ops, context.value(source_tensor->value), from),
                       ComputeType(type.dtype));
    scatter.Store(ops, to, value);
  });
  scatter.Finish(node);
  return context.status();
}

// index_add, index_copy: one index for each slice along a dimension.
absl::Status LowerIndexAdd(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const bool accumulate = node.target == Op::kIndexAdd;
  const LoweredTensor self = args.Tensor("self");
  const LoweredTensor indices = args.Tensor("index");
  const LoweredTensor source = args.Tensor("source");
  const Argument* alpha = node.Find("alpha");
  const TensorType& type = context.ResultType(node);
  const size_t dim = args.Dim("dim", self.rank(), 0);
  if (!context.status().ok()) return context.status();
  if (self.rank() == 0 || source.rank() != self.rank() || indices.rank() != 1 ||
      (accumulate && type.dtype == v1::BOOL)) {
    return CallLibrary(context, node, "no lowering", false);
  }
  if (!IsIndex(context, indices)) return absl::InvalidArgumentError("index_add needs integer indices");
  if (type.rank() != self.rank()) return absl::InvalidArgumentError("the result's rank does not fit");
  Sizes outer_sizes = source.sizes;
  outer_sizes.erase(outer_sizes.begin() + dim);
  Scatter scatter(context, type, accumulate);
  scatter.Start(&self, std::get<TensorArg>(*node.Find("self")).value);
  scatter.Emit(outer_sizes, {source.sizes[dim]}, [&](LoopRecorder& ops, Index outer, Index inner) {
    std::vector<ExprId> from(outer.begin(), outer.end());
    from.insert(from.begin() + dim, inner[0]);
    std::vector<ExprId> to = from;
    to[dim] = Position(context, ops, indices, inner, self.sizes[dim]);
    LoopOpId value = ops.Cast(context.loops().Load(ops, source, from), ComputeType(type.dtype));
    if (alpha != nullptr)
      value = ops.Mul(value, Operand(context, ops, *alpha, from, source.sizes, type.dtype));
    scatter.Store(ops, to, value);
  });
  scatter.Finish(node);
  return context.status();
}

// Sums the gradients of each row over the tokens that used it.
absl::Status LowerEmbeddingBackward(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor grad = args.Tensor("grad_output");
  const LoweredTensor indices = args.Tensor("indices");
  const TensorType& type = context.ResultType(node);
  const int64_t padding = args.Int("padding_idx", -1);
  const bool by_frequency = args.Bool("scale_grad_by_freq", false);
  if (!context.status().ok()) return context.status();
  if (by_frequency) return CallLibrary(context, node, "no lowering", false);
  if (type.rank() != 2 || grad.rank() != indices.rank() + 1 || !IsIndex(context, indices)) {
    return absl::InvalidArgumentError("embedding_dense_backward needs a gradient for each index");
  }
  Scatter scatter(context, type, true);
  scatter.Start(nullptr);
  scatter.Emit({type.sizes[1]}, indices.sizes, [&](LoopRecorder& ops, Index column, Index token) {
    const LoopOpId row = ops.Cast(context.loops().Load(ops, indices, token), v1::I64);
    if (padding >= 0) ops.OpenMask(ops.Compare(LoopOpcode::kNe, row, ops.ConstantInt(padding)));
    std::vector<ExprId> from(token.begin(), token.end());
    from.push_back(column[0]);
    const ExprId at = ops.CheckedIndex(row, type.sizes[0]);
    scatter.Store(ops, {at, column[0]}, context.loops().Load(ops, grad, from));
    if (padding >= 0) ops.CloseMask();
  });
  scatter.Finish(node);
  return context.status();
}

// The number of boundaries before a value; NaN comes after all.
absl::Status LowerBucketize(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const LoweredTensor boundaries = args.Tensor("boundaries");
  const bool right = args.Bool("right", false);
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  const auto count = boundaries.rank() == 1 ? context.exprs().AsConst(boundaries.sizes[0]) : std::nullopt;
  if (!cost::PaysComparingAll(count)) return CallLibrary(context, node, "no lowering", false);
  const Argument self_arg = *node.Find("self"), boundary_arg = *node.Find("boundaries");
  const v1::DType common = ComputeType(PromotedType(context, {&self_arg, &boundary_arg}));
  Reduction reduction;
  reduction.compute = v1::I64;
  reduction.inner_sizes = {boundaries.sizes[0]};
  context.SetResult(
      node, Reduce(
                context, type, reduction,
                [&](LoopRecorder& ops, Index outer, Index inner) {
                  const LoopOpId boundary = ops.Cast(context.loops().Load(ops, boundaries, inner), common);
                  const LoopOpId x =
                      ops.Cast(context.loops().LoadBroadcast(ops, self, outer, type.sizes), common);
                  const LoopOpId after = ops.Compare(right ? LoopOpcode::kGt : LoopOpcode::kGe, boundary, x);
                  return ops.Cast(ops.Not(after), v1::I64);
                },
                [](LoopRecorder&, LoopOpId sum) { return sum; }));
  return context.status();
}

}  // namespace

void RegisterIndexing(LoweringTable& table) {
  table[Op::kEmbedding] = LowerEmbedding;
  table[Op::kGather] = LowerGather;
  table[Op::kIndexSelect] = LowerIndexSelect;
  table[Op::kIndexTensor] = LowerIndex;
  table[Op::kUnsafeIndexTensor] = LowerIndex;
  table[Op::kIndexPut] = LowerIndexPut;
  table[Op::kUnsafeIndexPut] = LowerIndexPut;
  table[Op::kScatterSrc] = LowerScatter;
  table[Op::kScatterValue] = LowerScatter;
  table[Op::kScatterAdd] = LowerScatter;
  table[Op::kScatterReduceTwo] = LowerScatter;
  table[Op::kIndexAdd] = LowerIndexAdd;
  table[Op::kIndexCopy] = LowerIndexAdd;
  table[Op::kEmbeddingDenseBackward] = LowerEmbeddingBackward;
  table[Op::kBucketizeTensor] = LowerBucketize;
}

}  // namespace kiln
