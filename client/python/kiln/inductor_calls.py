"""Calls of Python that torch's own compiler makes fast: flex_attention, whose eager form holds all scores at once.

TorchInductor compiles such a call's graph for each tuple of sizes it meets; where it fails, or meets too many, the
eager form runs.
"""
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import fx

from . import fallback
from .fx_nodes import args_of

_OPERATORS = ("flex_attention", "flex_attention_backward")

# On the CPU TorchInductor takes longer to compile than small scores take to compute.
_SCORE_BYTES_MIN = 1 << 30
_KINDS_MAX = 8


def wanted(nodes: Iterable[fx.Node]) -> bool:
    """Whether the graph of a call, of these nodes, is for TorchInductor."""
    return any(_name(node) in _OPERATORS and _is_large(node) for node in nodes)


def _name(node: fx.Node) -> str:
    return node.target.name() if isinstance(node.target, torch._ops.HigherOrderOperator) else ""


def _is_large(node: fx.Node) -> bool:
    query, key = (operand.meta["val"] for operand in args_of(node)[:2])
    if query.device.type != "cpu":
        return True
    count = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2] * query.element_size()
    if isinstance(count, torch.SymInt):
        count = count.node.hint or 0
    return bool(count >= _SCORE_BYTES_MIN)


class InductorCall:
    """`module` by TorchInductor; takes its operands in a list, which it empties."""

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        self._eager = fallback.boxed(module)
        self._compiled: dict[object, Callable[..., Any] | None] = {}  # by kinds of operands

    def __call__(self, operands: list[Any]) -> Any:
        kind = tuple(map(_kind, operands))
        if kind not in self._compiled:
            self._compiled[kind] = self._compile(operands) if len(self._compiled) < _KINDS_MAX else None
        compiled = self._compiled[kind]
        if compiled is None:
            return self._eager(operands)
        given = [value.detach() if isinstance(value, torch.Tensor) else value for value in operands]
        operands.clear()
        return compiled(*given)

    def _compile(self, operands: list[Any]) -> Callable[..., Any] | None:
        examples = [value.detach() if isinstance(value, torch.Tensor) else value for value in operands]
        with fallback.left_out("TorchInductor's form of flex_attention"), ThreadPoolExecutor(1) as executor:
            # On a thread of its own: a compiled graph runs with modes that tracing does not expect.
            return executor.submit(_compile, self._module, examples).result()


def _compile(module: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx

    with torch.no_grad():
        compiled: Callable[..., Any] = compile_fx(module, examples)  # type: ignore[assignment]  # of a graph: a function
        return compiled


def _kind(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.device, tuple(value.shape), tuple(value.stride())
    return value
