"""The decompositions that must happen in Python, and what the partitioner may recompute (joint_graph.py: rewrites).

Decomposition proper is the compiler's: in Python it costs start time. The table here holds only what
functionalisation, autograd or recomputation need; its digest is in every key.
"""
from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch.partitioners import NodeInfo, OpTypes

from . import declarations, fallback, graph_cut, joint_graph, pinned_layouts

aten = torch.ops.aten

# What torch decomposes in Python before autograd sees it, table or no table: bilinear upsampling into a gradient of
# sums at computed positions, the others into other numbers or sizes than their operators give.
_KEPT_WHOLE = (aten.upsample_bilinear2d.default, aten.upsample_bilinear2d.vec,
               aten.upsample_bilinear2d_backward.default, aten.softshrink.default, aten.softshrink_backward.default,
               aten.multilabel_margin_loss_forward.default, aten.multilabel_margin_loss_backward.default,
               aten.multi_margin_loss.default)


def table() -> dict[Any, Any]:
    return {}


@functools.lru_cache(None)
def digest() -> bytes:
    names = sorted(f"{op}={fn.__module__}.{fn.__qualname__}" for op, fn in table().items())
    names += sorted(str(op) for op in recomputable())
    names += sorted(f"fusible {op}" for op in fusible())
    names += sorted(f"view {op}" for op in views())
    names += [f"whole {op}" for op in _KEPT_WHOLE] + ["copied where sizes stay"]
    names += [f"rewritten {op}" for op in joint_graph.names()] + ["saved before it is written"]
    names += [f"pins {op}" for op in pinned_layouts.READERS]
    names += [f"declared {name}" for name in declarations.names()]
    return hashlib.sha256("\n".join(names).encode()).digest()


def _packets(names: str) -> tuple[Any, ...]:
    return tuple(getattr(aten, name) for name in names.split() if hasattr(aten, name))


@functools.lru_cache(None)
def recomputable() -> tuple[Any, ...]:
    """Operators that are cheap to compute again in the backward, though torch's list, which knows
    only their decomposed forms, lacks them."""
    return _packets(
        "hardtanh hardtanh_backward hardswish hardswish_backward hardsigmoid leaky_relu leaky_relu_backward "
        "elu elu_backward mish log_sigmoid_forward softplus_backward "
        "clamp_min clamp_max masked_fill logical_not logical_and logical_or bitwise_and bitwise_or "
        "constant_pad_nd stack cat repeat flip roll tril embedding index_select "
        "addcdiv square sign floor_divide true_divide div mul "
        "slice_scatter select_scatter minimum detach"
    ) + views()


@functools.lru_cache(None)
def fusible() -> tuple[Any, ...]:
    """Operators whose operands need not be in memory for them. They reduce: their results are saved."""
    return _packets(
        "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data logsumexp "
        "native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward "
        "rms_norm _fused_rms_norm _fused_rms_norm_backward native_batch_norm_backward "
        "nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward upsample_bilinear2d"
    )


@functools.lru_cache(None)
def views() -> tuple[Any, ...]:
    return _packets("unbind split_with_sizes transpose unflatten _reshape_alias diagonal")


@contextlib.contextmanager
def kept_whole() -> Iterator[None]:
    """Those operators stay one each while a graph is traced, so that autograd records their backward operators; linear
    upsampling in one and three dimensions is decomposed as its operators sample, a margin loss into its sizes."""
    from torch._decomp import decompositions

    linear = decompositions._upsample_linear
    keys = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
    saved = [dict(op.py_kernels) for op in _KEPT_WHOLE]
    for op in _KEPT_WHOLE:
        for key in keys:
            op.py_kernels.pop(key, None)
        op._dispatch_cache.clear()
    # torch's own C++ functions know no symbolic sizes.
    for key in keys:
        aten.upsample_bilinear2d.vec.py_kernels[key] = _upsample_with_sizes
    aten.multi_margin_loss.default.py_kernels[torch._C.DispatchKey.Autograd] = _multi_margin_loss
    for op, gradient_like in _GRADIENTS.items():
        op.py_kernels[torch._C.DispatchKey.Meta] = gradient_like
    decompositions._upsample_linear = functools.partial(_copied_where_sizes_stay, linear)
    try:
        yield
    finally:
        decompositions._upsample_linear = linear
        for op, kernels in zip(_KEPT_WHOLE, saved):
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()


def _upsample_with_sizes(input: torch.Tensor, output_size: Sequence[int] | None, align_corners: bool,
                         scale_factors: Sequence[float] | None) -> torch.Tensor:
    from torch._decomp.decompositions import upsample_compute_output_size

    size = upsample_compute_output_size(input.size(), output_size, scale_factors)
    result: torch.Tensor = aten.upsample_bilinear2d.default(input, size, align_corners, *(scale_factors or ()))
    return result


def _multi_margin_loss(source: torch.Tensor, target: torch.Tensor, *others: Any) -> torch.Tensor:
    """Of one label, which is no batch of one, the loss is a number."""
    from torch._decomp import decompositions

    loss: torch.Tensor = decompositions.multi_margin_loss(source, target, *others)
    return loss.reshape(()) if target.dim() == 0 else loss


def _copied_where_sizes_stay(linear: Callable[..., torch.Tensor], source: torch.Tensor, sizes: Sequence[int],
                             align_corners: bool, scales: Sequence[float | None]) -> torch.Tensor:
    """The CPU copies along a dimension whose size stays, whatever its scale; a GPU where all sizes do."""
    stay = [before == after for before, after in zip(source.shape[2:], sizes)]
    if source.device.type == "cpu" or all(stay):
        scales = [None if same else scale for same, scale in zip(stay, scales)]
    return linear(source, sizes, align_corners, scales)


def _upsample_gradient_like(grad_output: torch.Tensor, output_size: Sequence[int], input_size: Sequence[int],
                            align_corners: bool, scales_h: float | None = None,
                            scales_w: float | None = None) -> torch.Tensor:
    return grad_output.new_empty(input_size).to(memory_format=torch._prims_common.suggest_memory_format(grad_output))


def _softshrink_gradient_like(grad_output: torch.Tensor, source: torch.Tensor, lambd: float) -> torch.Tensor:
    return grad_output * source


def _margin_loss_gradient_like(grad_output: torch.Tensor, source: torch.Tensor, *others: Any) -> torch.Tensor:
    return source.new_empty(source.shape)


_GRADIENTS: dict[torch._ops.OpOverload, Callable[..., torch.Tensor]] = {
    aten.upsample_bilinear2d_backward.default: _upsample_gradient_like,
    aten.softshrink_backward.default: _softshrink_gradient_like,
    aten.multilabel_margin_loss_backward.default: _margin_loss_gradient_like,
}


@contextlib.contextmanager
def recompute_more() -> Iterator[None]:
    """Widens the partitioner's list of recomputable operators while one graph is cut."""
    from torch._functorch import partitioners

    original = partitioners.get_default_op_list

    def widened() -> OpTypes:
        types = original()
        types.recomputable_ops.update(recomputable())
        types.fusible_ops.update(recomputable(), fusible())
        types.view_ops.update(views())
        return types

    partitioners.get_default_op_list = widened
    try:
        yield
    finally:
        partitioners.get_default_op_list = original


def partition(joint_module: fx.GraphModule, joint_inputs: Sequence[Any], *, num_fwd_outputs: int,
              **kwargs: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    with fallback.left_out("a rewrite of the joint graph"):
        joint_graph.rewrite(joint_module)
    with recompute_more(), _saved_draws():
        forward, backward = min_cut_rematerialization_partition(
            joint_module, joint_inputs, compiler="inductor", num_fwd_outputs=num_fwd_outputs, **kwargs
        )
    pinned = {node.name for node in pinned_layouts.pinned(backward.graph) if node.op == "placeholder"}
    joint_graph.copy_written_inputs(forward, num_fwd_outputs, pinned)
    if not pinned:  # everything that means no memory as it was traced reads what is saved by its strides
        forward.meta[_RESULT_COUNT] = num_fwd_outputs
    return forward, backward


def _draws(graph: fx.Graph, info: NodeInfo) -> Iterator[fx.Node]:
    """What operators of the forward draw, but for what checkpointing draws again by the generator's state."""
    for node in graph.nodes:
        if graph_cut.draws(node) and info.is_required_fw(node):
            results = node.users if isinstance(node.meta.get("val"), (list, tuple)) else (node,)
            yield from (result for result in results if "recompute" not in result.meta)


@contextlib.contextmanager
def _saved_draws() -> Iterator[None]:
    """While one graph is cut: drawn again, random numbers are others. Under a memory budget torch would draw again."""
    from torch._functorch import partitioners

    original = partitioners.choose_saved_values_set

    def choose(joint_graph: fx.Graph, node_info: NodeInfo, memory_budget: float = 1) -> list[fx.Node]:
        saved = original(joint_graph, node_info, memory_budget)
        if memory_budget < 1:
            saved = list(dict.fromkeys([*saved, *_draws(joint_graph, node_info)]))
        return saved

    partitioners.choose_saved_values_set = choose
    try:
        yield
    finally:
        partitioners.choose_saved_values_set = original


_RESULT_COUNT = "kiln_result_count"


def results_of_forward(module: fx.GraphModule) -> range | None:
    """Positions of the results that the caller of a forward graph gets, whose strides it knows; the others are for
    the backward alone, and may have another layout than was traced. None: all are as traced."""
    count = module.meta.get(_RESULT_COUNT)
    return None if count is None else range(count)
