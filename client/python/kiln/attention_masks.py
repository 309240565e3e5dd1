"""Attention masks that hide nothing, taken out of a graph before autograd sees it.

Models of `transformers` build a mask from sizes alone while they are traced (`arange(n) >= 0`, expanded), which they
leave out when they run eagerly. A mask of that kind keeps attention from being one fused call: torch then writes it
out as gemms and a softmax in fp32. What is shown here holds for every size, so that dynamic sizes are no obstacle.
"""
import operator
from typing import TypeGuard

import torch
from torch import fx

_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_MASK = 3  # its place among the positional arguments
# Their result has no element that is not one of their first argument.
_VIEWS = {operator.getitem, torch.unsqueeze, torch.reshape, torch.broadcast_to,
          "expand", "expand_as", "unsqueeze", "view", "reshape", "contiguous", "__getitem__"}
_AND = {operator.and_, torch.logical_and, torch.bitwise_and, "logical_and", "bitwise_and", "__and__"}


def drop(module: fx.GraphModule) -> None:
    """Takes them out of a module of Dynamo's, in place."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule) and any([_drop(node) for node in part.graph.nodes]):
            part.graph.eliminate_dead_code()
            part.recompile()


def _drop(node: fx.Node) -> bool:
    if node.op != "call_function" or node.target is not _ATTENTION:
        return False
    if len(node.args) > _MASK:
        if not _hides_nothing(node.args[_MASK]):
            return False
        node.args = (*node.args[:_MASK], None, *node.args[_MASK + 1:])
    elif _hides_nothing(node.kwargs.get("attn_mask")):
        node.kwargs = {**node.kwargs, "attn_mask": None}
    else:
        return False
    return True


def _hides_nothing(mask: object) -> bool:
    """Whether every element of a boolean tensor is true, as far as its graph shows."""
    if not _is_call(mask):
        return False
    if mask.target in _VIEWS:
        return _hides_nothing(mask.args[0])
    if mask.target in _AND:
        return all(map(_hides_nothing, mask.args))
    if mask.target in (operator.ge, torch.ge, "ge"):
        least, bound = _least(mask.args[0]), mask.args[1]
        return least is not None and type(bound) is int and least >= bound
    return False


def _least(positions: object) -> int | None:
    """A number that no element of an int64 tensor lies below; None where the graph shows none."""
    if not _is_call(positions):
        return None
    if positions.target in _VIEWS:
        return _least(positions.args[0])
    if positions.target is operator.add and type(positions.args[1]) is int:
        least = _least(positions.args[0])
        return None if least is None else least + positions.args[1]
    if positions.target is torch.arange and positions.kwargs.get("dtype") in (None, torch.int64):
        start, *more = positions.args
        if not more:
            return 0 if _is_integer(start) else None
        if len(more) == 1 and type(start) is int and _is_integer(more[0]):
            return start
    return None


def _is_call(value: object) -> TypeGuard[fx.Node]:
    """A call whose result nothing wrote into, be it through a view of it."""
    if not isinstance(value, fx.Node) or value.op not in ("call_function", "call_method") or not value.args:
        return False
    result = value.meta.get("example_value")
    return isinstance(result, torch.Tensor) and result._version == 0  # of the fake tensor that tracing wrote into


def _is_integer(value: object) -> bool:
    if isinstance(value, fx.Node):
        value = value.meta.get("example_value")
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)
