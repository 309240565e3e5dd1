"""Which values of a traced graph have to keep the traced layout: compiler/passes/pinned_layouts.h, of fx graphs.

Operators that read memory by strides and storage offset mean the traced layout, of what they read and of whatever that
is a view of. Operators that are not torch's may.
"""
import operator

import torch
from torch import fx

aten = torch.ops.aten

READERS = (aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default, aten.view.dtype,
            aten.view_copy.dtype)
_TORCHS = ("aten", "prims")
# Views that their schemas do not call so.
_VIEWS = (aten._unsafe_view.default, aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default)


def pinned(graph: fx.Graph) -> set[fx.Node]:
    """The nodes of `graph` whose layout has to stay."""
    found = set()
    for node in reversed(graph.nodes):
        if node.op == "call_function" and (_reads_by_storage(node.target) or (node in found and is_view(node.target))):
            found.update(node.all_input_nodes)
    return found


def _reads_by_storage(target: object) -> bool:
    return target in READERS or (isinstance(target, torch._ops.OpOverload) and target.namespace not in _TORCHS)


def is_view(target: object) -> bool:
    """Whether the operator's results may alias its arguments."""
    if target is operator.getitem or target in _VIEWS:
        return True
    return isinstance(target, torch._ops.OpOverload) and any(
        result.alias_info is not None for result in target._schema.returns)
