// Operators that move no element: index maps, strided where the argument is.
#include "compiler/lower/view.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compiler/graph/expr_proofs.h"
#include "compiler/lower/library_call.h"
#include "compiler/lower/lowering_context.h"
#include "compiler/lower/node_arguments.h"
#include "compiler/lower/slicing.h"
#include "compiler/lower/view_maps.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

// Every base dimension as itself.
AffineMap IdentityMap(LoweringContext& context, size_t rank) {
  AffineMap map;
  map.start.assign(rank, context.Const(0));
  for (size_t dim = 0; dim < rank; ++dim) map.dims.push_back({{dim, context.Const(1)}});
  return map;
}

absl::Status LowerReshape(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const ValueId self = args.TensorValue("self");
  context.SetResult(node, Reshape(context, self, context.ResultType(node)));
  return context.status();
}

absl::Status LowerAlias(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  LoweredTensor self = args.Tensor(node.Find("self") != nullptr ? "self" : "input");
  context.checks().CheckSizes(self.sizes, context.ResultType(node).sizes);
  self.strides = context.ResultType(node).strides;
  context.SetResult(node, std::move(self));
  return context.status();
}

absl::Status Permute(LoweringContext& context, const GraphNode& node, const LoweredTensor& self,
                     const std::vector<size_t>& order) {
  AffineMap map;
  map.start.assign(self.rank(), context.Const(0));
  for (size_t dim : order) map.dims.push_back({{dim, context.Const(1)}});
  context.SetResult(node, Affine(context, self, context.ResultType(node), map));
  return context.status();
}

absl::Status LowerPermute(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  std::vector<size_t> order;
  for (int64_t dim : args.IntList("dims")) order.push_back(args.WrapDim(dim, self.rank()));
  std::vector<size_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (size_t dim = 0; dim < sorted.size(); ++dim) {
    if (sorted[dim] != dim) return absl::InvalidArgumentError("dims is not a permutation");
  }
  if (order.size() != self.rank()) return absl::InvalidArgumentError("dims is not a permutation");
  return Permute(context, node, self, order);
}

absl::Status LowerTranspose(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  std::vector<size_t> order(self.rank());
  for (size_t dim = 0; dim < order.size(); ++dim) order[dim] = dim;
  if (node.target == Op::kT) {
    std::reverse(order.begin(), order.end());
  } else if (!order.empty()) {
    const size_t a = args.Dim("dim0", self.rank(), 0), b = args.Dim("dim1", self.rank(), 0);
    if (!context.status().ok()) return context.status();
    std::swap(order[a], order[b]);
  }
  return Permute(context, node, self, order);
}

absl::Status LowerExpand(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const TensorType& type = context.ResultType(node);
  if (self.rank() > type.rank()) return absl::InvalidArgumentError("expand to fewer dimensions");
  const size_t added = type.rank() - self.rank();
  AffineMap map;
  map.start.assign(self.rank(), context.Const(0));
  map.dims.resize(type.rank());
  for (size_t dim = 0; dim < self.rank(); ++dim) {
    const ExprId have = self.sizes[dim], want = type.sizes[added + dim];
    const auto known = context.exprs().AsConst(have);
    if (known == 1 && have != want) continue;
    if (known.has_value() && have != want && context.exprs().AsConst(want).has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("expand of a dimension of size ", *known));
    }
    map.dims[added + dim] = {{dim, context.Const(1)}};
  }
  context.SetResult(node, Affine(context, self, type, map));
  return context.status();
}

absl::Status LowerUnsqueeze(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const size_t at = args.Dim("dim", self.rank() + 1, 0);
  AffineMap map = IdentityMap(context, self.rank());
  map.dims.insert(map.dims.begin() + at, absl::InlinedVector<AffineMap::From, 2>{});
  context.SetResult(node, Affine(context, self, context.ResultType(node), map));
  return context.status();
}

// Decomposition has left the dimensions that go, and no others. Torch may know by a guard that one has
// size 1.
absl::Status LowerSqueeze(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const std::vector<size_t> dims = args.Dims("dim", self.rank());
  AffineMap map;
  map.start.assign(self.rank(), context.Const(0));
  for (size_t dim = 0; dim < self.rank(); ++dim) {
    if (std::find(dims.begin(), dims.end(), dim) == dims.end()) {
      map.dims.push_back({{dim, context.Const(1)}});
    } else if (!context.out().Require(context.exprs().Eq(self.sizes[dim], context.Const(1)))) {
      return absl::InvalidArgumentError(
          absl::StrCat("squeeze of a dimension of size ", context.exprs().ToString(self.sizes[dim])));
    }
  }
  context.SetResult(node, Affine(context, self, context.ResultType(node), map));
  return context.status();
}

absl::Status LowerSlice(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  if (self.rank() == 0) return absl::InvalidArgumentError("slice of a scalar");
  const size_t dim = args.Dim("dim", self.rank(), 0);
  const int64_t step = args.Int("step", 1);
  if (step <= 0) return absl::InvalidArgumentError("slice with a step that is not positive");
  AffineMap map = IdentityMap(context, self.rank());
  map.start[dim] = ClampedIndex(context.exprs(), args.Expr("start", context.Const(0)), self.sizes[dim]);
  map.dims[dim][0].step = context.Const(step);
  context.SetResult(node, Affine(context, self, context.ResultType(node), map));
  return context.status();
}

absl::Status LowerSelect(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  if (self.rank() == 0) return absl::InvalidArgumentError("select from a scalar");
  const size_t dim = args.Dim("dim", self.rank(), 0);
  AffineMap map = IdentityMap(context, self.rank());
  map.start[dim] = WrappedIndex(context.exprs(), args.Expr("index", context.Const(0)), self.sizes[dim]);
  if (ProvablyLessEqual(context.exprs(), self.sizes[dim], map.start[dim])) {
    return absl::InvalidArgumentError("select past the end");
  }
  map.dims.erase(map.dims.begin() + dim);
  context.SetResult(node, Affine(context, self, context.ResultType(node), map));
  return context.status();
}

// split, split_with_sizes, chunk, unbind: the results' sizes say where each begins.
absl::Status LowerSplit(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  if (self.rank() == 0) return absl::InvalidArgumentError("split of a scalar");
  const size_t dim = args.Dim("dim", self.rank(), 0);
  const bool unbind = node.target == Op::kUnbindInt;
  AffineMap map = IdentityMap(context, self.rank());
  if (unbind) map.dims.erase(map.dims.begin() + dim);
  for (size_t i = 0; i < node.results.size(); ++i) {
    const TensorType& type = context.ResultType(node, i);
    if (!unbind && type.rank() != self.rank()) return absl::InvalidArgumentError("a piece of another rank");
    context.SetResult(node, Affine(context, self, type, map), i);
    const ExprId length = unbind ? context.Const(1) : type.sizes[dim];
    map.start[dim] = context.exprs().Add(map.start[dim], length);
  }
  return context.status();
}

absl::Status LowerDiagonal(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  if (self.rank() < 2) return absl::InvalidArgumentError("diagonal of fewer than two dimensions");
  const int64_t offset = args.Int("offset", 0);
  const size_t dim1 = args.Dim("dim1", self.rank(), 0), dim2 = args.Dim("dim2", self.rank(), 1);
  if (dim1 == dim2) return absl::InvalidArgumentError("diagonal of one dimension");
  AffineMap map;
  map.start.assign(self.rank(), context.Const(0));
  map.start[offset >= 0 ? dim2 : dim1] = context.Const(offset >= 0 ? offset : -offset);
  for (size_t dim = 0; dim < self.rank(); ++dim) {
    if (dim != dim1 && dim != dim2) map.dims.push_back({{dim, context.Const(1)}});
  }
  map.dims.push_back({{dim1, context.Const(1)}, {dim2, context.Const(1)}});
  context.SetResult(node, Affine(context, self, context.ResultType(node), map));
  return context.status();
}

absl::Status LowerAsStrided(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const TensorType& type = context.ResultType(node);
  KILN_RETURN_IF_ERROR(context.status());
  KILN_ASSIGN_OR_RETURN(BufferView window, context.storage().Window(args, self));
  context.checks().CheckSizes(window.sizes, type.sizes);
  context.SetResult(node, WithView(type, std::move(window)));
  return context.status();
}

// Window k of a dimension begins at k steps. A copy can't have the strides of windows that overlap: where not
// only loops read them, they alias what they are windows of.
absl::Status LowerUnfold(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const TensorType& type = context.ResultType(node);
  const ValueId id = args.TensorValue("self");
  const int64_t size = args.Int("size", 1), step = args.Int("step", 1);
  KILN_RETURN_IF_ERROR(context.status());
  if (step < size && !context.facts().UsedByLoopsOnly(node.results[0]))
    context.memory().Materialize(context.MutableValue(id));
  const LoweredTensor self = args.Tensor("self");
  const size_t dim = args.Dim("dimension", self.rank(), 0);
  KILN_RETURN_IF_ERROR(context.status());
  if (self.rank() == 0 || size < 1 || step < 1) return CallLibrary(context, node, "no lowering", false);
  AffineMap map = IdentityMap(context, self.rank());
  map.dims[dim][0].step = context.Const(step);
  map.dims.push_back({{dim, context.Const(1)}});
  if (type.rank() == map.dims.size()) context.checks().CheckSize(context.Const(size), type.sizes.back());
  context.SetResult(node, Affine(context, self, type, map));
  return context.status();
}

absl::Status LowerViewDtype(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const ValueId id = args.TensorValue("self");
  const LoweredTensor self = args.Tensor("self");
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (self.dtype == type.dtype) return LowerAlias(context, node);
  if (ByteSize(self.dtype) != ByteSize(type.dtype)) return CallLibrary(context, node, "no lowering", false);
  // A tensor has one dtype: another one of the same memory is the library's to make.
  if (context.facts().IsShared(id) && !context.facts().UsedByLoopsOnly(node.results[0])) {
    return CallLibrary(context, node, "no lowering", false);
  }
  // F16 and BF16 have their bits in memory only.
  BufferView view = context.memory().Materialize(context.MutableValue(id));
  if (ComputeType(self.dtype) != self.dtype || ComputeType(type.dtype) != type.dtype) {
    return CallLibrary(context, node, "no lowering", false);
  }
  view.dtype = type.dtype;
  context.SetResult(node, WithView(type, std::move(view)));
  return context.status();
}

struct ViewRow {
  Op target;
  LowerFn lower;
};

constexpr ViewRow kViews[] = {
    {Op::kView, LowerReshape},
    {Op::kUnsafeView, LowerReshape},
    {Op::kReshape, LowerReshape},
    {Op::kReshapeAlias, LowerReshape},
    {Op::kFlattenUsingInts, LowerReshape},
    {Op::kAlias, LowerAlias},
    {Op::kDetach, LowerAlias},
    {Op::kLiftFresh, LowerAlias},
    {Op::kPermute, LowerPermute},
    {Op::kTransposeInt, LowerTranspose},
    {Op::kT, LowerTranspose},
    {Op::kExpand, LowerExpand},
    {Op::kUnsqueeze, LowerUnsqueeze},
    {Op::kSqueeze, LowerSqueeze},
    {Op::kSqueezeDim, LowerSqueeze},
    {Op::kSqueezeDims, LowerSqueeze},
    {Op::kSliceTensor, LowerSlice},
    {Op::kNarrow, LowerSlice},
    {Op::kSelectInt, LowerSelect},
    {Op::kSplitTensor, LowerSplit},
    {Op::kSplitWithSizes, LowerSplit},
    {Op::kUnsafeSplitTensor, LowerSplit},
    {Op::kUnsafeSplitWithSizes, LowerSplit},
    {Op::kChunk, LowerSplit},
    {Op::kUnbindInt, LowerSplit},
    {Op::kDiagonal, LowerDiagonal},
    {Op::kAsStrided, LowerAsStrided},
    {Op::kViewDtype, LowerViewDtype},
    {Op::kUnfold, LowerUnfold},
};

}  // namespace

bool IsViewOp(const OperatorName& target) {
  for (const ViewRow& row : kViews) {
    if (target == row.target) return true;
  }
  return false;
}

void RegisterViews(LoweringTable& table) {
  for (const ViewRow& row : kViews) table[row.target] = row.lower;
}

}  // namespace kiln
