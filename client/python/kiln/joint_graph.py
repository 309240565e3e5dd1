"""Rewrites of a joint graph before it is cut into forward and backward.

The partitioner sees operators, not what they are made of. Where an operator hides that its backward needs less than
its operands, it is said in smaller operators here, so that the cut can save the smaller thing:

- batch normalisation's result is a function of its input, which its own backward needs, and of its statistics
- the gradients of relu and threshold need one bit an element; that of relu behind a batch normalisation no more than
  the normalisation's own gradient does
- log-softmax is a function of its input, often a result of the model, and of two numbers a row
- max pooling's gradient needs positions, which fit into few bits, and of its input only the shape
- what a gemm on the CPU reads, a GELU, a gate, a normalised row times its weight, dropped attention, is
  rematerialised from operands that gradients need anyway: the partitioner would save both

Everything else is left to the compiler. The graph's results are the same up to rounding; an operator whose facts do
not allow a rewrite stays as it is, and so does one whose layout others read (pinned_layouts.py).
"""
import operator
from collections.abc import Callable, Set
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq
from torch.utils.checkpoint import CheckpointPolicy

from . import pinned_layouts
from .fx_nodes import args_of, name_of

aten = torch.ops.aten
prims = torch.ops.prims


def rewrite(module: fx.GraphModule) -> None:
    """Rewrites `module`, in place; what becomes of no use stays for the partitioner to remove. The graph is right after
    each rewrite, and where one fails."""
    graph = module.graph
    pinned = pinned_layouts.pinned(graph)
    with torch.no_grad():
        for op, function in _REWRITES.items():
            for node in graph.find_nodes(op="call_function", target=op):
                if node in pinned:
                    continue  # what takes its place may have another layout
                with graph.inserting_before(node.next):
                    function(_Emitter(graph, node), node)
        _rematerialise_operands(graph, pinned)
    module.recompile()


def names() -> tuple[str, ...]:
    return tuple(str(op) for op in (*_REWRITES, *_GEMMS))


def copy_written_inputs(forward: fx.GraphModule, result_count: int, pinned: Set[str]) -> None:
    """What `forward` saves of an input that it writes into becomes a copy of what the input was, in place: the backward
    runs later, and torch's partitioner takes an input for a value that stays.

    result_count: so many of the forward's results come first, and are not saved.
    pinned: names of what the backward reads by storage, of which a copy has to have the place, too. RuntimeError where
    it has not: the graph runs as in eager."""
    graph = forward.graph
    written = {args_of(node)[0] for node in graph.find_nodes(op="call_function", target=aten.copy_.default)}
    output = graph.output_node()
    values = list(args_of(output)[0])
    first = next(node for node in graph.nodes if node.op != "placeholder")
    copies: dict[fx.Node, fx.Node] = {}

    def copied(node: fx.Node) -> fx.Node:
        """Of an input the copy, of a view of one the view of that; another node itself."""
        if node not in copies and node in written:
            if node.name in pinned and not _begins_its_memory(node.meta["val"]):
                raise RuntimeError("a backward that reads by storage what its forward has written into")
            with graph.inserting_before(first):
                copies[node] = _Emitter(graph, node)(aten.clone.default, node)
        elif node not in copies and pinned_layouts.is_view(node.target) and _memory_of(node) in written:
            with graph.inserting_before(node.next):
                copies[node] = graph.node_copy(node, copied)
        return copies.get(node, node)

    saved = [copied(value) if isinstance(value, fx.Node) else value for value in values[result_count:]]
    if copies:
        output.args = (type(args_of(output)[0])((*values[:result_count], *saved)),)
        forward.recompile()


def _memory_of(node: fx.Node) -> fx.Node:
    """The node whose memory a view's is."""
    while pinned_layouts.is_view(node.target):
        node = node.all_input_nodes[0]
    return node


def _begins_its_memory(value: torch.Tensor) -> bool:
    """Whether a clone has its elements where it has them."""
    return statically_known_true(sym_eq((0, *value.clone().stride()), (value.storage_offset(), *value.stride())))


class _Emitter:
    """Adds calls at the graph's insertion point, in the name of `node`."""

    def __init__(self, graph: fx.Graph, node: fx.Node) -> None:
        self._graph = graph
        self._node = node

    def __call__(self, op: Callable[..., Any], *args: Any) -> fx.Node:
        added = self._graph.call_function(op, args)
        added.meta = {key: value for key, value in self._node.meta.items() if key not in ("val", "tensor_meta")}
        added.meta["val"] = op(*fx.map_arg(args, _value))
        return added

    def replace(self, before: fx.Node, value: fx.Node) -> fx.Node:
        """Puts `value` in the place of the node `before`, in the same dtype; what then stands there."""
        dtype = _value(before).dtype
        if _value(value).dtype != dtype:
            value = self(prims.convert_element_type.default, value, dtype)
        before.replace_all_uses_with(value)
        return value


def _value(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument


def _wide(value: torch.Tensor) -> bool:
    return value.dtype in (torch.float32, torch.float64)


def _computed(emit: _Emitter, node: fx.Node) -> fx.Node:
    """`node` in the dtype that its operators compute in. An operator of its own compares with a number as it is; a
    comparison of half precision would round the number first."""
    half = _value(node).dtype in (torch.float16, torch.bfloat16)
    return emit(prims.convert_element_type.default, node, torch.float32) if half else node


def _same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(statically_known_true(sym_eq(tuple(a.stride()), tuple(b.stride()))))


def _batch_norm(emit: _Emitter, node: fx.Node, weight: fx.Node | None, bias: fx.Node | None) -> None:
    """The result from the input and the statistics, for which the operator stays."""
    source = args_of(node)[0]
    result, mean, scale = _value(node)[:3]
    used = next((user for user in node.users if user.args[1] == 0), None)
    rank = result.dim()
    if used is None or rank < 2 or not (_wide(mean) and _wide(scale) and _same_layout(result, _value(source))):
        return
    along_channels = [-1] + [1] * (rank - 2)

    def statistic(number: int) -> fx.Node:
        return emit(aten.view.default, emit(operator.getitem, node, number), along_channels)

    value = emit(aten.mul.Tensor, emit(aten.sub.Tensor, source, statistic(1)), statistic(2))
    if weight is not None:
        value = emit(aten.mul.Tensor, value, emit(aten.view.default, weight, along_channels))
    if bias is not None:
        value = emit(aten.add.Tensor, value, emit(aten.view.default, bias, along_channels))
    emit.replace(used, value).meta[_NORMALISED] = True


def _functional_batch_norm(emit: _Emitter, node: fx.Node) -> None:
    _, weight, bias, _, _, training = args_of(node)[:6]
    if training:
        _batch_norm(emit, node, weight, bias)


def _batch_norm_without_running_statistics(emit: _Emitter, node: fx.Node) -> None:
    _, weight, bias, training = args_of(node)[:4]
    if training:
        _batch_norm(emit, node, weight, bias)


def _threshold_gradient(emit: _Emitter, node: fx.Node) -> None:
    gradient, result, threshold = args_of(node)
    relu = result
    while relu.target is aten.detach.default:
        relu = relu.args[0]
    if threshold == 0 and relu.target is aten.relu.default and relu.args[0].meta.get(_NORMALISED):
        result = relu.args[0]  # positive where its relu is, and known from what the normalisation saves
    if threshold != 0:
        result = _computed(emit, result)
    emit.replace(node, emit(aten.masked_fill.Scalar, gradient, emit(aten.le.Scalar, result, threshold), 0))


def _hardtanh_gradient(emit: _Emitter, node: fx.Node) -> None:
    gradient, source, low, high = args_of(node)
    source = _computed(emit, source)
    outside = emit(aten.bitwise_or.Tensor, emit(aten.le.Scalar, source, low), emit(aten.ge.Scalar, source, high))
    emit.replace(node, emit(aten.masked_fill.Scalar, gradient, outside, 0))


def _log_softmax(emit: _Emitter, node: fx.Node) -> None:
    source, dim, _ = args_of(node)
    result = _value(node)
    length = result.shape[dim] if result.dim() else 0
    if not _wide(result) or not isinstance(length, int) or length == 0:
        return
    if not _same_layout(result, _value(source)):
        return
    if _value(source).dtype != result.dtype:
        source = emit(prims.convert_element_type.default, source, result.dtype)
    shifted = emit(aten.sub.Tensor, source, emit(aten.amax.default, source, [dim], True))
    total = emit(aten.sum.dim_IntList, emit(aten.exp.default, shifted), [dim], True)
    emit.replace(node, emit(aten.sub.Tensor, shifted, emit(aten.log.default, total)))


def _max_pool_gradient(emit: _Emitter, node: fx.Node) -> None:
    """Positions are saved in as few bits as an image's pixels need, and of the image only the shape. On the CPU, sums
    into the positions; on a GPU, where such sums have no fixed order, the operator stays."""
    gradient, source, *window, positions = args_of(node)
    result = _value(node)
    sizes = tuple(result.shape)
    on_cpu = result.device.type == "cpu"
    if len(sizes) != 4 or not all(isinstance(size, int) and size > 0 for size in sizes):
        return
    if on_cpu and not (_wide(result) and result.is_contiguous() and _value(gradient).is_contiguous()
                       and _value(positions).is_contiguous()):
        return
    pixels = sizes[2] * sizes[3]
    narrow = next((dtype for dtype in (torch.uint8, torch.int16, torch.int32) if pixels - 1 <= torch.iinfo(dtype).max),
                  None)
    if narrow is None:
        return
    positions = emit(prims.convert_element_type.default, positions, narrow)
    positions = emit(prims.convert_element_type.default, positions, torch.int64)
    if not on_cpu:
        shape = emit(aten.new_empty_strided.default, gradient, list(sizes), list(_value(source).stride()))
        node.replace_all_uses_with(
            emit(aten.max_pool2d_with_indices_backward.default, gradient, shape, *window, positions))
        return
    rows = [sizes[0], sizes[1], -1]
    zeros = emit(aten.new_zeros.default, gradient, [*sizes[:2], pixels])
    value = emit(aten.scatter_add.default, zeros, 2, emit(aten.view.default, positions, rows),
                 emit(aten.view.default, gradient, rows))
    emit.replace(node, emit(aten.view.default, value, list(sizes)))


def _rematerialise_operands(graph: fx.Graph, pinned: Set[fx.Node]) -> None:
    """What a gemm reads and little computes from what gradients need anyway is rematerialised in the backward: the
    partitioner would save it, too, since the gradient of the gemm reads it from memory."""
    backward: set[fx.Node] = set()
    for node in graph.nodes:
        tangent = node.op == "placeholder" and "tangents" in name_of(node)
        if tangent or not backward.isdisjoint(node.all_input_nodes):
            backward.add(node)
    for op in _GEMMS:
        for gemm in graph.find_nodes(op="call_function", target=op):
            for operand in gemm.all_input_nodes:
                while operand.target in _VIEWS:
                    operand = args_of(operand)[0]
                if operand not in pinned:
                    _rematerialise(operand, backward)


def _rematerialise(operand: fx.Node, backward: Set[fx.Node]) -> None:
    result = _value(operand)
    if not isinstance(result, torch.Tensor) or result.device.type != "cpu" or _bytes(result) < _GEMM_BYTES_MIN:
        return
    if operand.target is operator.getitem and args_of(operand)[0].target is aten.native_dropout.default:
        operand = _dropped(operand)
    # The operands of what is marked are saved for it.
    if operand.target in _REMATERIALISED and all(_at_hand(part, backward) for part in operand.all_input_nodes):
        operand.meta.setdefault("recompute", CheckpointPolicy.PREFER_RECOMPUTE)  # the model's own wish goes first


def _dropped(result: fx.Node) -> fx.Node:
    """The result of a dropout from its operand and its mask, where they give the same numbers."""
    dropout = args_of(result)[0]
    source, probability, training = args_of(dropout)
    mask = next((user for user in dropout.users if user.args[1] == 1), None)
    if mask is None or mask is result or not training or not 0 < probability < 1 or not _wide(_value(result)):
        return result
    dropout.append(mask)  # before what reads it here
    with result.graph.inserting_before(result.next):
        emit = _Emitter(result.graph, result)
        kept = emit(aten.mul.Tensor, source, mask)
        return emit.replace(result, emit(aten.mul.Tensor, kept, 1 / (1 - probability)))


def _at_hand(node: fx.Node, backward: Set[fx.Node], depth: int = 3) -> bool:
    """Whether the backward has it in any case: an input, what a gradient is multiplied with, or computed from such."""
    if node.op in ("placeholder", "get_attr"):
        return True
    reached, seen = [node], {node}
    while reached:
        for user in reached.pop().users:
            if user in backward:
                return True
            if user not in seen and (user.target in _VIEWS or user.target is aten.detach.default):
                seen.add(user)
                reached.append(user)
    made = depth > 0 and node.target in _REMATERIALISED + _VIEWS
    return made and all(_at_hand(part, backward, depth - 1) for part in node.all_input_nodes)


def _bytes(value: torch.Tensor) -> int:
    count = value.numel()
    if isinstance(count, torch.SymInt):
        count = count.node.hint or 0
    return count * value.element_size()


_GEMMS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)
_REMATERIALISED = (aten.gelu.default, aten.silu.default, aten.mul.Tensor)
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.permute.default, aten.t.default,
          aten.transpose.int, aten.unsqueeze.default, aten.squeeze.dim)

# The backward writes it once more, beside gradients that read the same operands.
_GEMM_BYTES_MIN = 1 << 20

_NORMALISED = "kiln_normalised"  # in a node's meta: the result of a batch normalisation, rewritten

_REWRITES = {
    aten._native_batch_norm_legit_functional.default: _functional_batch_norm,
    aten._native_batch_norm_legit.no_stats: _batch_norm_without_running_statistics,
    aten.threshold_backward.default: _threshold_gradient,
    aten.hardtanh_backward.default: _hardtanh_gradient,
    aten._log_softmax.default: _log_softmax,
    aten.max_pool2d_with_indices_backward.default: _max_pool_gradient,
}
