// Reductions over dimensions, and scans along one.
#include "compiler/ir/reduce_kinds.h"
#include "compiler/lower/lowering_context.h"
#include "compiler/lower/node_arguments.h"
#include "compiler/lower/reduction_loops.h"
#include "compiler/lower/strides.h"

namespace kiln {
namespace {

// How the index of a reduced tensor comes from the result's index and the reduced dimensions'.
class ReducedDims {
 public:
  ReducedDims(const LoweredTensor& self, const std::vector<size_t>& dims, bool keepdim) : keepdim_(keepdim) {
    reduced_.resize(self.rank(), false);
    for (size_t dim : dims) reduced_[dim] = true;
    for (size_t dim : dims) inner_sizes_.push_back(self.sizes[dim]);
  }

  const std::vector<ExprId>& inner_sizes() const { return inner_sizes_; }

  size_t ResultRank() const { return keepdim_ ? reduced_.size() : reduced_.size() - inner_sizes_.size(); }

  std::vector<ExprId> Full(Index outer, Index inner) const {
    std::vector<ExprId> index;
    size_t next_outer = 0, next_inner = 0;
    for (bool reduced : reduced_) {
      if (reduced) {
        index.push_back(inner[next_inner++]);
        next_outer += keepdim_;
      } else {
        index.push_back(outer[next_outer++]);
      }
    }
    return index;
  }

 private:
  bool keepdim_;
  std::vector<bool> reduced_;
  std::vector<ExprId> inner_sizes_;
};

LoopOpId Same(LoopRecorder&, LoopOpId value) { return value; }

// A reduction of `self` (converted to `compute`, through `prepare`) into result `result`.
void ReduceInto(LoweringContext& context, const GraphNode& node, size_t result, const LoweredTensor& self,
                const std::vector<size_t>& dims, v1::ReduceKind kind, v1::DType compute, ValueFn prepare,
                ValueFn finish) {
  const NodeArguments args(context, node);
  if (compute == v1::BOOL) {
    if (kind == v1::REDUCE_MAX) kind = v1::REDUCE_ANY;
    if (kind == v1::REDUCE_MIN || kind == v1::REDUCE_PROD) kind = v1::REDUCE_ALL;
  }
  const bool keepdim = args.Bool("keepdim", false);
  const TensorType& type = context.ResultType(node, result);
  const ReducedDims map(self, dims, keepdim);
  if (!context.status().ok() || type.dtype == v1::DTYPE_UNSPECIFIED) return;
  if (map.ResultRank() != type.rank())
    return context.checks().Invalid("the result's rank does not fit the reduction");
  Reduction reduction;
  reduction.kind = kind;
  reduction.compute = compute;
  reduction.inner_sizes = map.inner_sizes();
  reduction.may_split = !IsArgReduce(kind);
  context.SetResult(node,
                    Reduce(
                        context, type, reduction,
                        [&](LoopRecorder& ops, Index outer, Index inner) {
                          const LoopOpId x = context.loops().Load(ops, self, map.Full(outer, inner));
                          return prepare(ops, ops.Cast(x, compute));
                        },
                        finish),
                    result);
}

template <v1::ReduceKind kind>
absl::Status LowerReduce(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const std::vector<size_t> dims = args.Dims("dim", self.rank());
  ReduceInto(context, node, 0, self, dims, kind, ComputeType(context.ResultType(node).dtype), Same, Same);
  return context.status();
}

LoopOpId CountAs(LoweringContext& context, LoopRecorder& ops, const LoweredTensor& self,
                 const std::vector<size_t>& dims, v1::DType dtype) {
  std::vector<ExprId> sizes;
  for (size_t dim : dims) sizes.push_back(self.sizes[dim]);
  return ops.Cast(ops.IndexExpr(context.exprs().Product(sizes)), dtype);
}

absl::Status LowerMean(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const std::vector<size_t> dims = args.Dims("dim", self.rank());
  const v1::DType compute = ComputeType(context.ResultType(node).dtype);
  ReduceInto(context, node, 0, self, dims, v1::REDUCE_SUM, compute, Same,
             [&](LoopRecorder& ops, LoopOpId sum) {
               return ops.Div(sum, CountAs(context, ops, self, dims, compute));
             });
  return context.status();
}

absl::Status LowerArg(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const bool max = node.target == Op::kArgmax;
  const LoweredTensor self = args.Tensor("self");
  std::vector<size_t> dims;
  if (args.Has("dim")) {
    if (self.rank() > 0) dims.push_back(args.Dim("dim", self.rank(), 0));
  } else {
    for (size_t dim = 0; dim < self.rank(); ++dim) dims.push_back(dim);
  }
  const v1::DType compute = self.dtype == v1::BOOL ? v1::U8 : ComputeType(self.dtype);
  ReduceInto(context, node, 0, self, dims, max ? v1::REDUCE_ARGMAX : v1::REDUCE_ARGMIN, compute, Same, Same);
  return context.status();
}

template <v1::ReduceKind kind>
absl::Status LowerTruth(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const std::vector<size_t> dims = args.Dims("dim", self.rank());
  ReduceInto(context, node, 0, self, dims, kind, v1::BOOL, Same, Same);
  return context.status();
}

// The mean as result `result`, in the dtype that it is declared of.
void SetMean(LoweringContext& context, const GraphNode& node, size_t result, const LoweredTensor& mean) {
  const TensorType& type = context.ResultType(node, result);
  if (type.dtype == mean.dtype) return context.SetResult(node, mean, result);
  context.SetResult(
      node,
      context.loops().Pointwise(
          type, [&](LoopRecorder& ops, Index index) { return context.loops().Load(ops, mean, index); }),
      result);
}

// Variance in two passes: the mean, then the squared distances from it.
absl::Status LowerVariance(LoweringContext& context, const GraphNode& node, size_t mean_result,
                           bool with_mean, bool root) {
  const NodeArguments args(context, node);
  if (const ValueId id = args.TensorValue("self"); context.IsDefined(id)) {
    context.memory().MaterializeIfExpensive(context.MutableValue(id));
  }
  const LoweredTensor self = args.Tensor("self");
  const std::vector<size_t> dims = args.Dims("dim", self.rank());
  double correction = args.Float("correction", 1);
  if (args.Has("unbiased")) correction = args.Bool("unbiased", true) ? 1 : 0;
  const bool keepdim = args.Bool("keepdim", false);
  const TensorType type = context.ResultType(node, 0);
  if (!context.status().ok()) return context.status();
  if (!IsFloat(type.dtype)) return absl::InvalidArgumentError("variance of a tensor that is not floating");
  const ReducedDims map(self, dims, keepdim);
  if (map.ResultRank() != type.rank())
    return absl::InvalidArgumentError("the result's rank does not fit the reduction");
  const v1::DType compute =
      type.device == v1::CPU ? v1::F64 : ComputeType(type.dtype);  // as eager sums them up
  Reduction reduction;
  reduction.compute = compute;
  reduction.inner_sizes = map.inner_sizes();
  // The mean is kept in the compute type: the second pass must not see it rounded.
  TensorType mean_type = type;
  mean_type.dtype = compute;
  const LoweredTensor mean = Reduce(
      context, mean_type, reduction,
      [&](LoopRecorder& ops, Index outer, Index inner) {
        return ops.Cast(context.loops().Load(ops, self, map.Full(outer, inner)), compute);
      },
      [&](LoopRecorder& ops, LoopOpId sum) {
        return ops.Div(sum, CountAs(context, ops, self, dims, compute));
      });
  const LoweredTensor variance = Reduce(
      context, type, reduction,
      [&](LoopRecorder& ops, Index outer, Index inner) {
        const LoopOpId x = ops.Cast(context.loops().Load(ops, self, map.Full(outer, inner)), compute);
        const LoopOpId distance = ops.Sub(x, context.loops().Load(ops, mean, outer));
        return ops.Mul(distance, distance);
      },
      [&](LoopRecorder& ops, LoopOpId sum) {
        const LoopOpId count =
            ops.Sub(CountAs(context, ops, self, dims, compute), ops.Constant(correction, compute));
        const LoopOpId divisor = ops.Binary(LoopOpcode::kMaximum, count, ops.Constant(0, compute));
        const LoopOpId result = ops.Div(sum, divisor);
        return root ? ops.Unary(LoopOpcode::kSqrt, result) : result;
      });
  context.SetResult(node, variance, 0);
  if (with_mean && node.results.size() > mean_result) SetMean(context, node, mean_result, mean);
  return context.status();
}

absl::Status LowerVar(LoweringContext& context, const GraphNode& node) {
  return LowerVariance(context, node, 0, false, false);
}
absl::Status LowerStd(LoweringContext& context, const GraphNode& node) {
  return LowerVariance(context, node, 0, false, true);
}
absl::Status LowerVarMean(LoweringContext& context, const GraphNode& node) {
  return LowerVariance(context, node, 1, true, false);
}

template <v1::ReduceKind kind>
absl::Status LowerScan(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const TensorType type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (self.rank() != type.rank())
    return absl::InvalidArgumentError("the result's rank differs from the argument's");
  // As eager's accumulators: on the CPU F64 for F32.
  const bool wide = type.device == v1::CPU && type.dtype == v1::F32;
  const v1::DType compute = wide ? v1::F64 : ComputeType(type.dtype);
  if (type.rank() == 0) {
    context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
      return ops.Cast(context.loops().Load(ops, self, index), compute);
    }));
    return context.status();
  }
  const size_t dim = args.Dim("dim", self.rank(), 0);
  std::vector<ExprId> outer_sizes = type.sizes;
  outer_sizes.erase(outer_sizes.begin() + dim);
  const std::vector<ExprId> strides = PreferredStrides(context.exprs(), type);
  const BufferId buffer = context.out().AddBuffer(type.dtype, type.device, type.sizes, strides);
  const BufferView view{buffer, type.dtype, type.sizes, strides, context.Const(0)};
  context.loops().EmitOrdered(outer_sizes, {type.sizes[dim]},
                              [&](LoopRecorder& ops, Index outer, Index inner) {
                                std::vector<ExprId> index(outer.begin(), outer.end());
                                index.insert(index.begin() + dim, inner[0]);
                                const LoopOpId x = ops.Cast(context.loops().Load(ops, self, index), compute);
                                const bool single = type.sizes[dim] == context.Const(1);
                                ops.Store(buffer, type.dtype, FlatIndex(context.exprs(), view, index),
                                          single ? x : ops.Scan(kind, x));
                              });
  context.SetResult(node, WithView(type, view));
  return context.status();
}

}  // namespace

void RegisterReductions(LoweringTable& table) {
  table[Op::kSum] = LowerReduce<v1::REDUCE_SUM>;
  table[Op::kSumDimIntList] = LowerReduce<v1::REDUCE_SUM>;
  table[Op::kProd] = LowerReduce<v1::REDUCE_PROD>;
  table[Op::kProdDimInt] = LowerReduce<v1::REDUCE_PROD>;
  table[Op::kAmax] = LowerReduce<v1::REDUCE_MAX>;
  table[Op::kAmin] = LowerReduce<v1::REDUCE_MIN>;
  table[Op::kMean] = LowerMean;
  table[Op::kMeanDim] = LowerMean;
  table[Op::kArgmax] = LowerArg;
  table[Op::kArgmin] = LowerArg;
  for (const Op op : {Op::kAny, Op::kAnyDim, Op::kAnyDims}) table[op] = LowerTruth<v1::REDUCE_ANY>;
  for (const Op op : {Op::kAll, Op::kAllDim, Op::kAllDims}) table[op] = LowerTruth<v1::REDUCE_ALL>;
  for (const Op op : {Op::kVar, Op::kVarDim, Op::kVarCorrection}) table[op] = LowerVar;
  for (const Op op : {Op::kStd, Op::kStdDim, Op::kStdCorrection}) table[op] = LowerStd;
  for (const Op op : {Op::kVarMean, Op::kVarMeanDim, Op::kVarMeanCorrection}) table[op] = LowerVarMean;
  table[Op::kCumsum] = LowerScan<v1::REDUCE_SUM>;
  table[Op::kCumprod] = LowerScan<v1::REDUCE_PROD>;
}

}  // namespace kiln
