"""The decompositions that must happen in Python, and what the partitioner may recompute.

Decomposition proper is the compiler's: in Python it costs start time. The table here holds only what
functionalisation, autograd or recomputation need; its digest is in every key.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from typing import Any

import torch

aten = torch.ops.aten


def table() -> dict[Any, Any]:
    return {}


@functools.lru_cache(None)
def digest() -> bytes:
    names = sorted(f"{op}={fn.__module__}.{fn.__qualname__}" for op, fn in table().items())
    names += sorted(str(op) for op in recomputable())
    return hashlib.sha256("\n".join(names).encode()).digest()


@functools.lru_cache(None)
def recomputable() -> tuple[Any, ...]:
    """Operators that are cheap to compute again in the backward, though torch's list, which knows
    only their decomposed forms, lacks them."""
    names = (
        "_softmax _log_softmax native_layer_norm native_group_norm rms_norm _fused_rms_norm "
        "hardtanh hardswish hardsigmoid leaky_relu elu mish log_sigmoid_forward "
        "clamp_min clamp_max masked_fill logical_not logical_and logical_or bitwise_and bitwise_or "
        "constant_pad_nd stack cat repeat flip roll tril embedding index_select "
        "addcdiv square sign floor_divide true_divide div mul "
        "unbind split_with_sizes transpose unflatten _reshape_alias diagonal "
        "slice_scatter select_scatter logsumexp minimum native_dropout"
    )
    return tuple(getattr(aten, name) for name in names.split() if hasattr(aten, name))


@contextlib.contextmanager
def recompute_more():
    """Widens the partitioner's list of recomputable operators while one graph is cut."""
    from torch._functorch import partitioners

    original = partitioners.get_default_op_list

    def widened():
        types = original()
        types.fusible_ops.update(op for op in recomputable() if op is not aten.native_dropout)
        return types

    partitioners.get_default_op_list = widened
    try:
        yield
    finally:
        partitioners.get_default_op_list = original


def partition(joint_module, joint_inputs, *, num_fwd_outputs, **kwargs):
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    with recompute_more():
        return min_cut_rematerialization_partition(
            joint_module, joint_inputs, compiler="inductor", num_fwd_outputs=num_fwd_outputs, **kwargs
        )
