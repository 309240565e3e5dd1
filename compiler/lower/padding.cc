// constant_pad_nd. What a GPU's library call reads is stored in two parts, the tensor and what is added
// behind its rows and columns, so that no load has a mask. A tensor of zeros added behind its rows is put
// there by the loops that compute it, in rows that end in padding, and nothing is copied
// (pad_gemm_rows pads so).
#include "compiler/lower/padding.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "compiler/lower/lowering_context.h"
#include "compiler/lower/node_arguments.h"
#include "compiler/lower/operands.h"
#include "compiler/lower/strides.h"
#include "compiler/target/cost_model.h"
#include "compiler/target/device.h"

namespace kiln {
namespace {

// How much is added at the end of each dimension, where nothing is added in front and parts pay.
std::optional<std::vector<int64_t>> EndPadding(const Graph& graph, const GraphNode& node,
                                               absl::Span<const ExprId> pad) {
  const Argument* self = node.Find("self");
  const auto* tensor = self == nullptr ? nullptr : std::get_if<TensorArg>(self);
  if (tensor == nullptr || node.results.size() != 1) return std::nullopt;
  const TensorType& type = graph.type(tensor->value);
  if (!cost::PaysPaddingInParts(IsGpu(type.device)) || type.rank() == 0 ||
      graph.type(node.results[0]).rank() != type.rank() || pad.size() % 2 != 0 ||
      pad.size() > 2 * type.rank()) {
    return std::nullopt;
  }
  std::vector<int64_t> added(type.rank(), 0);
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    const auto before = graph.exprs.AsConst(pad[2 * i]), after = graph.exprs.AsConst(pad[2 * i + 1]);
    if (before != 0 || !after || *after < 0) return std::nullopt;
    added[type.rank() - 1 - i] = *after;
  }
  return added;
}

// All that share the padding of rows have to agree on its elements.
bool FillsWithZeros(const Graph& graph, const GraphNode& node) {
  const Argument* value = node.Find("value");
  if (value == nullptr) return true;
  if (const auto* number = std::get_if<FloatArg>(value)) return number->value == 0;
  const auto* integer = std::get_if<IntArg>(value);
  return integer != nullptr && graph.exprs.AsConst(integer->value) == 0;
}

// The tensor, and then for each dimension the padding behind it.
absl::Status StorePadded(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const TensorType& type = context.ResultType(node);
  const Argument* value = node.Find("value");
  // An image channels-last stays one: the loops on both sides of it are.
  BufferView whole{0, type.dtype, type.sizes, PreferredStrides(context.exprs(), type), context.Const(0)};
  if (FillsWithZeros(context.graph(), node) && context.memory().HasRowPadding(self, whole)) {
    whole.buffer = self.view->buffer;
  } else {
    whole.buffer = context.out().AddBuffer(type.dtype, type.device, whole.sizes, whole.strides);
    BufferView inside = whole;
    inside.sizes = self.sizes;
    context.loops().EmitStores(
        inside, [&](LoopRecorder& ops, Index index) { return context.loops().Load(ops, self, index); });
  }
  for (size_t dim = 0; dim < type.rank(); ++dim) {
    BufferView behind = whole;
    for (size_t before = 0; before < dim; ++before) behind.sizes[before] = self.sizes[before];
    behind.sizes[dim] = context.exprs().Sub(type.sizes[dim], self.sizes[dim]);
    if (behind.sizes[dim] == context.Const(0)) continue;
    behind.offset = context.exprs().Mul(self.sizes[dim], whole.strides[dim]);
    context.loops().EmitStores(behind, [&](LoopRecorder& ops, Index index) {
      return value == nullptr ? ops.ConstantInt(0, type.dtype)
                              : Operand(context, ops, *value, index, behind.sizes, type.dtype);
    });
  }
  context.SetResult(node, WithView(type, whole));
  return context.status();
}

absl::Status LowerPad(LoweringContext& context, const GraphNode& node) {
  const NodeArguments args(context, node);
  const LoweredTensor self = args.Tensor("self");
  const std::vector<ExprId> pad = args.ExprList("pad");
  const Argument* value = node.Find("value");
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (const auto added = EndPadding(context.graph(), node, pad);
      added && !context.facts().UsedByLoopsOnly(node.results[0])) {
    return StorePadded(context, node);
  }
  if (type.rank() != self.rank() || pad.size() % 2 != 0 || pad.size() / 2 > self.rank()) {
    return absl::InvalidArgumentError("pad does not fit the rank");
  }
  std::vector<ExprId> before(self.rank(), context.Const(0));
  for (size_t i = 0; i < pad.size() / 2; ++i) before[self.rank() - 1 - i] = pad[2 * i];
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    LoopOpId inside = ops.True();
    std::vector<ExprId> from;
    for (size_t dim = 0; dim < index.size(); ++dim) {
      from.push_back(context.exprs().Sub(index[dim], before[dim]));
      inside = ops.And(inside, ops.Not(IndexLess(ops, from[dim], context.Const(0))));
      inside = ops.And(inside, IndexLess(ops, from[dim], self.sizes[dim]));
    }
    ops.OpenMask(inside);
    const LoopOpId element = context.loops().Load(ops, self, from);
    ops.CloseMask();
    const LoopOpId fill = value == nullptr ? ops.ConstantInt(0, type.dtype)
                                           : Operand(context, ops, *value, index, type.sizes, type.dtype);
    return ops.Where(inside, element, fill);
  }));
  return context.status();
}

}  // namespace

// Backwards, so that what holds for a view holds for what it views.
std::vector<int64_t> FindRowPadding(const Graph& graph, const ValueFacts& facts) {
  std::vector<int64_t> lengths(graph.values.size(), 0);
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const GraphNode& node = graph.nodes[i];
    const Argument* self = node.Find("self");
    const auto* tensor = self == nullptr ? nullptr : std::get_if<TensorArg>(self);
    if (tensor == nullptr || node.results.size() != 1 || !facts.UsedByLoopsOnly(tensor->value) ||
        facts.pinned[tensor->value]) {
      continue;
    }
    const TensorType &from = graph.type(tensor->value), &to = graph.type(node.results[0]);
    if (node.target == Op::kConstantPadNd) {
      if (facts.UsedByLoopsOnly(node.results[0]) || from.dtype != to.dtype) continue;
      const Argument* pad = node.Find("pad");
      const auto* list = pad == nullptr ? nullptr : std::get_if<IntListArg>(pad);
      if (list == nullptr) continue;
      const auto added = EndPadding(graph, node, list->values);
      const bool rows = added && std::count(added->begin(), added->end(), 0) + 1 == added->size();
      const auto length = graph.exprs.AsConst(to.sizes.back());
      if (rows && added->back() > 0 && length && FillsWithZeros(graph, node))
        lengths[tensor->value] = *length;
    } else if (lengths[node.results[0]] != 0 && from.rank() > 0 && from.sizes.back() == to.sizes.back() &&
               (node.target == Op::kView || node.target == Op::kUnsafeView)) {
      lengths[tensor->value] = lengths[node.results[0]];
    }
  }
  return lengths;
}

void RegisterPadding(LoweringTable& table) { table[Op::kConstantPadNd] = LowerPad; }

}  // namespace kiln
