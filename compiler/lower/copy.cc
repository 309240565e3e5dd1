// Operators that move elements without computing: clone, cat, flip, roll, *_scatter.
#include <algorithm>

#include "compiler/graph/expr_proofs.h"
#include "compiler/lower/library_call.h"
#include "compiler/lower/lowering_context.h"
#include "compiler/lower/node_arguments.h"
#include "compiler/lower/operands.h"
#include "compiler/lower/slicing.h"
#include "compiler/lower/strides.h"
#include "compiler/lower/view_maps.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

// A value of its own: it shares no memory with the argument.
absl::Status LowerClone(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    return context.loops().LoadBroadcast(ops, self, index, type.sizes);
  }));
  return context.status();
}

// copy(self, src): src in self's shape and type.
absl::Status LowerCopy(LoweringContext& context, const GraphNode& node) {
  const Argument* source = node.Find("src");
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (source == nullptr) return absl::InvalidArgumentError("argument 'src' is missing");
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    return Operand(context, ops, *source, index, type.sizes, type.dtype);
  }));
  return context.status();
}

// ---- cat and stack

struct Piece {
  LoweredTensor tensor;
  ExprId begin;  // along the dimension
  ExprId length;
};

// The index of a piece's element: along `dim` counted from its begin, or without it (stack).
std::vector<ExprId> PieceIndex(ExprPool& exprs, const Piece& piece, Index index, size_t dim, bool stacked) {
  std::vector<ExprId> from(index.begin(), index.end());
  if (stacked) {
    from.erase(from.begin() + dim);
  } else {
    from[dim] = exprs.Sub(from[dim], piece.begin);
  }
  return from;
}

LoopOpId ChoosePiece(LoweringContext& context, LoopRecorder& ops, const std::vector<Piece>& pieces,
                     Index index, size_t dim, bool stacked, v1::DType dtype) {
  LoopOpId chosen = 0;
  for (size_t i = pieces.size(); i-- > 0;) {
    const Piece& piece = pieces[i];
    const ExprId end = context.exprs().Add(piece.begin, piece.length);
    const LoopOpId before_end = IndexLess(ops, index[dim], end);
    LoopOpId here = i + 1 < pieces.size() ? before_end : ops.True();
    if (i > 0) here = ops.And(here, ops.Not(IndexLess(ops, index[dim], piece.begin)));
    ops.OpenMask(here);
    const LoopOpId element = ops.Cast(
        context.loops().Load(ops, piece.tensor, PieceIndex(context.exprs(), piece, index, dim, stacked)),
        ComputeType(dtype));
    ops.CloseMask();
    chosen = i + 1 == pieces.size() ? element : ops.Where(before_end, element, chosen);
  }
  return chosen;
}

absl::Status LowerCat(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const bool stacked = node.target == Op::kStack;
  const TensorType& type = context.ResultType(node);
  const size_t dim = args.Dim("dim", type.rank(), 0);
  if (!context.status().ok()) return context.status();
  if (type.rank() == 0) return absl::InvalidArgumentError("cat of scalars");
  std::vector<Piece> pieces;
  ExprId begin = context.Const(0);
  cost::BodyCost longest;
  for (ValueId id : args.TensorList("tensors")) {
    if (!context.IsDefined(id)) return absl::InvalidArgumentError("cat of an undefined tensor");
    const LoweredTensor& tensor = context.value(id);
    // cat skips one-dimensional empty tensors whatever the others' rank.
    if (!stacked && tensor.rank() == 1 && tensor.sizes[0] == context.Const(0) && type.rank() != 1) continue;
    if (tensor.rank() + stacked != type.rank()) return absl::InvalidArgumentError("cat of different ranks");
    const ExprId length = stacked ? context.Const(1) : tensor.sizes[dim];
    if (length == context.Const(0)) continue;
    pieces.push_back({tensor, begin, length});
    begin = context.exprs().Add(begin, length);
    if (tensor.body == nullptr) continue;
    longest.ops = std::max(longest.ops, tensor.body->ops.size());
    longest.heavy = longest.heavy || tensor.body->heavy;
  }
  context.checks().CheckSize(begin, type.sizes[dim]);
  if (pieces.empty()) {
    context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index) {
      return ops.ConstantInt(0, type.dtype);
    }));
    return context.status();
  }
  const uint32_t uses = node.results.empty() ? 0 : context.facts().uses[node.results[0]];
  if (cost::PaysChoosingPieces(pieces.size(), longest, uses) &&
      context.facts().UsedByLoopsOnly(node.results[0])) {
    context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
      return ChoosePiece(context, ops, pieces, index, dim, stacked, type.dtype);
    }));
    return context.status();
  }
  // Each piece is stored into its slice of one buffer.
  const std::vector<ExprId> strides = PreferredStrides(context.exprs(), type);
  const BufferId buffer = context.out().AddBuffer(type.dtype, type.device, type.sizes, strides);
  for (const Piece& piece : pieces) {
    BufferView slice{buffer, type.dtype, type.sizes, strides, context.exprs().Mul(piece.begin, strides[dim])};
    slice.sizes[dim] = piece.length;
    context.loops().EmitStores(slice, [&](LoopRecorder& ops, Index index) {
      std::vector<ExprId> from(index.begin(), index.end());
      if (stacked) from.erase(from.begin() + dim);
      return ops.Cast(context.loops().Load(ops, piece.tensor, from), ComputeType(type.dtype));
    });
  }
  context.SetResult(node, WithView(type, {buffer, type.dtype, type.sizes, strides, context.Const(0)}));
  return context.status();
}

// ---- flip, roll

absl::Status LowerFlip(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  std::vector<bool> flipped(self.rank(), false);
  for (int64_t dim : args.IntList("dims")) {
    if (self.rank() > 0) flipped[args.WrapDim(dim, self.rank())] = true;
  }
  if (!context.status().ok()) return context.status();
  context.SetResult(node, MapIndex(context, self, context.ResultType(node), [&](Index index) {
                      std::vector<ExprId> from(index.begin(), index.end());
                      for (size_t dim = 0; dim < from.size() && dim < flipped.size(); ++dim) {
                        if (!flipped[dim]) continue;
                        const ExprId last = context.exprs().Sub(self.sizes[dim], context.Const(1));
                        from[dim] = context.exprs().Sub(last, index[dim]);
                      }
                      return from;
                    }));
  return context.status();
}

absl::Status LowerRoll(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const std::vector<ExprId> shifts = args.ExprList("shifts");
  std::vector<int64_t> dims = args.IntList("dims");
  if (!context.status().ok()) return context.status();
  if (dims.empty() && self.rank() > 1) return CallLibrary(context, node, "no lowering", false);
  if (dims.empty()) dims.push_back(0);
  if (dims.size() != shifts.size()) return absl::InvalidArgumentError("shifts and dims differ in length");
  std::vector<ExprId> shift(self.rank(), context.Const(0));
  for (size_t i = 0; i < dims.size() && self.rank() > 0; ++i) {
    ExprId& sum = shift[args.WrapDim(dims[i], self.rank())];
    sum = context.exprs().Add(sum, shifts[i]);
  }
  context.SetResult(node, MapIndex(context, self, context.ResultType(node), [&](Index index) {
                      std::vector<ExprId> from(index.begin(), index.end());
                      for (size_t dim = 0; dim < from.size() && dim < shift.size(); ++dim) {
                        if (shift[dim] == context.Const(0)) continue;
                        from[dim] =
                            context.exprs().Mod(context.exprs().Sub(index[dim], shift[dim]), self.sizes[dim]);
                      }
                      return from;
                    }));
  return context.status();
}

// Channels [groups, width] become [width, groups]: stored through a window with both.
absl::Status LowerChannelShuffle(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const int64_t groups = args.Int("groups", 1);
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (self.rank() < 3 || type.rank() != self.rank() || groups <= 0 ||
      !ProvablyDivides(context.exprs(), context.Const(groups), self.sizes[1])) {
    return absl::InvalidArgumentError("groups do not divide the channels");
  }
  for (size_t dim = 0; dim < self.rank(); ++dim) context.checks().CheckSize(self.sizes[dim], type.sizes[dim]);
  const ExprId width = context.exprs().FloorDiv(self.sizes[1], context.Const(groups));
  const std::vector<ExprId> strides = ContiguousStrides(context.exprs(), type.sizes);
  const BufferId buffer = context.out().AddBuffer(type.dtype, type.device, type.sizes, strides);
  BufferView window{buffer, type.dtype, type.sizes, strides, context.Const(0)};
  window.sizes[1] = context.Const(groups);
  window.sizes.insert(window.sizes.begin() + 1, width);
  window.strides.insert(window.strides.begin() + 1, context.exprs().Mul(strides[1], context.Const(groups)));
  context.loops().EmitStores(window, [&](LoopRecorder& ops, Index index) {
    std::vector<ExprId> from(index.begin(), index.end());
    from.erase(from.begin() + 1);
    from[1] = context.exprs().Add(context.exprs().Mul(index[2], width), index[1]);
    return context.loops().Load(ops, self, from);
  });
  context.SetResult(node, WithView(type, {buffer, type.dtype, type.sizes, strides, context.Const(0)}));
  return context.status();
}

// ---- one tensor with a part replaced

absl::Status LowerSliceScatter(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const LoweredTensor source = args.Tensor("src");
  const TensorType& type = context.ResultType(node);
  const size_t dim = args.Dim("dim", self.rank(), 0);
  const int64_t step = args.Int("step", 1);
  if (!context.status().ok()) return context.status();
  if (self.rank() == 0 || source.rank() != self.rank() || type.rank() != self.rank() || step <= 0) {
    return absl::InvalidArgumentError("the slice does not fit");
  }
  ExprPool& exprs = context.exprs();
  const ExprId start = ClampedIndex(exprs, args.Expr("start", context.Const(0)), self.sizes[dim]);
  const ExprId end = exprs.Add(start, exprs.Mul(source.sizes[dim], context.Const(step)));
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    const ExprId distance = exprs.Sub(index[dim], start);
    LoopOpId inside = ops.And(ops.Not(IndexLess(ops, index[dim], start)), IndexLess(ops, index[dim], end));
    if (step != 1)
      inside = ops.And(inside, IndexEqual(ops, exprs.Mod(distance, context.Const(step)), context.Const(0)));
    std::vector<ExprId> from(index.begin(), index.end());
    from[dim] = exprs.FloorDiv(distance, context.Const(step));
    ops.OpenMask(inside);
    const LoopOpId replaced = ops.Cast(context.loops().Load(ops, source, from), ComputeType(type.dtype));
    ops.CloseMask();
    return ops.Where(inside, replaced, context.loops().Load(ops, self, index));
  }));
  return context.status();
}

absl::Status LowerSelectScatter(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const LoweredTensor source = args.Tensor("src");
  const TensorType& type = context.ResultType(node);
  const size_t dim = args.Dim("dim", self.rank(), 0);
  if (!context.status().ok()) return context.status();
  if (self.rank() == 0 || source.rank() + 1 != self.rank() || type.rank() != self.rank()) {
    return absl::InvalidArgumentError("the slice does not fit");
  }
  const ExprId at = WrappedIndex(context.exprs(), args.Expr("index", context.Const(0)), self.sizes[dim]);
  ExprPool& exprs = context.exprs();
  if (!context.out().Require(exprs.Le(context.Const(0), at)) ||
      !context.out().Require(exprs.Lt(at, self.sizes[dim])))
    return absl::InvalidArgumentError("the selected index is out of range");
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    std::vector<ExprId> from(index.begin(), index.end());
    from.erase(from.begin() + dim);
    const LoopOpId replaced = ops.Cast(context.loops().Load(ops, source, from), ComputeType(type.dtype));
    return ops.Where(IndexEqual(ops, index[dim], at), replaced, context.loops().Load(ops, self, index));
  }));
  return context.status();
}

// The triangle on and below (above) the diagonal, zero elsewhere.
absl::Status LowerTriangle(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const bool lower = node.target == Op::kTril;
  const LoweredTensor self = args.Tensor("self");
  const ExprId diagonal = args.Expr("diagonal", context.Const(0));
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (type.rank() < 2 || type.rank() != self.rank())
    return absl::InvalidArgumentError("a triangle of fewer than two dimensions");
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    ExprPool& exprs = context.exprs();
    const ExprId row = exprs.Add(index[index.size() - 2], diagonal), column = index.back();
    const LoopOpId kept = lower ? IndexLess(ops, column, exprs.Add(row, context.Const(1)))
                                : ops.Not(IndexLess(ops, column, row));
    return ops.Where(kept, context.loops().Load(ops, self, index), ops.ConstantInt(0, type.dtype));
  }));
  return context.status();
}

}  // namespace

void RegisterCopies(LoweringTable& table) {
  table[Op::kClone] = LowerClone;
  table[Op::kLiftFreshCopy] = LowerClone;
  table[Op::kContiguous] = LowerClone;
  table[Op::kCopy] = LowerCopy;
  table[Op::kCat] = LowerCat;
  table[Op::kStack] = LowerCat;
  table[Op::kFlip] = LowerFlip;
  table[Op::kRoll] = LowerRoll;
  table[Op::kChannelShuffle] = LowerChannelShuffle;
  table[Op::kSliceScatter] = LowerSliceScatter;
  table[Op::kSelectScatter] = LowerSelectScatter;
  table[Op::kTril] = LowerTriangle;
  table[Op::kTriu] = LowerTriangle;
}

}  // namespace kiln
