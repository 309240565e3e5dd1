"""Operators that write into their arguments, and need no copy of them.

AOTAutograd makes such an operator, and a user's Triton kernel, a function (auto_functionalized,
triton_kernel_wrapper_functional): it copies its bases, writes into the copies and returns them; a `copy_` brings
what became of an input back to it. Where nothing reads an input but a row of such operators, each what the one before
has written, they write into the input itself, as eager does, and nothing is copied. Nor is a base that is made for such
an operator alone: it is made in Python, too.
"""
import dataclasses
import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import fx
from torch._higher_order_ops import auto_functionalize, triton_kernel_wrap

from .fx_nodes import args_of, kwargs_of

aten = torch.ops.aten

_TRITON = triton_kernel_wrap.triton_kernel_wrapper_functional
_FACTORIES = (aten.empty.memory_format, aten.empty_strided.default, aten.empty_permuted.default, aten.full.default,
              aten.zeros.default, aten.ones.default, aten.empty_like.default, aten.full_like.default,
              aten.zeros_like.default, aten.ones_like.default, aten.new_empty.default, aten.new_empty_strided.default,
              aten.new_full.default, aten.new_zeros.default, aten.new_ones.default)
_V1, _V2 = auto_functionalize.auto_functionalized, auto_functionalize.auto_functionalized_v2


Key: TypeAlias = int | str  # which base of an operator: its position, or its parameter's name


@dataclasses.dataclass
class InPlace:
    inputs: set[fx.Node]  # placeholders that are written into directly
    copies: set[fx.Node]  # copies back to them, which are not needed
    bases: dict[fx.Node, set[Key]]  # node -> its bases that are not copied

    def apply(self, node: fx.Node, copied: fx.Node) -> None:
        """Makes `copied`, of `node`, the call that copies no base that it need not."""
        kept = self.bases.get(node)
        if not kept:
            return
        cloned = [name for name in _bases(node) if name not in kept]
        if node.target is _TRITON:
            copied.target, copied.kwargs = _run_triton_kernel, {**copied.kwargs, "cloned": tuple(cloned)}
            return
        v2 = node.target is _V2
        copied.target = (auto_functionalize.auto_functionalized_v2_dense if v2
                         else auto_functionalize.auto_functionalized_dense)
        copied.args = (*copied.args, tuple(cloned))


def _run_triton_kernel(*, cloned: Sequence[str], tensors_to_clone: list[str], kwargs: dict[str, Any],
                       **launch: Any) -> dict[str, Any]:
    """triton_kernel_wrapper_functional, which copies of what the kernel writes into only `cloned`."""
    kwargs = {name: torch._prims_common.clone_preserve_strides(value) if name in cloned else value
              for name, value in kwargs.items()}
    triton_kernel_wrap.triton_kernel_wrapper_mutation_dense(kwargs=kwargs, **launch)
    return {name: kwargs[name] for name in tensors_to_clone}


def find(nodes: Sequence[fx.Node]) -> InPlace:
    """What can be written in place among the nodes that run in Python."""
    found = InPlace(set(), set(), {})
    for node in nodes:
        for name, base in _bases(node).items():
            if not isinstance(base, fx.Node):
                continue
            if base.op == "placeholder":
                _follow(node, name, base, found)
            elif base in nodes and _is_made_for(base, node):
                found.bases.setdefault(node, set()).add(name)
    return found


def made_for(node: fx.Node) -> list[fx.Node]:
    """The nodes that only make memory for `node`, an operator that writes into its arguments."""
    return [base for base in _bases(node).values() if isinstance(base, fx.Node) and _is_made_for(base, node)]


def _is_made_for(base: fx.Node, node: fx.Node) -> bool:
    return base.target in _FACTORIES and set(base.users) == {node} and not _read_otherwise(node, [], base)


def _follow(node: fx.Node, name: Key, source: fx.Node, found: InPlace) -> None:
    """From the first operator that is given `source` to the copy back to it."""
    backs = [user for user in source.users if user.target is torch.ops.aten.copy_.default and user.args[0] is source]
    if len(backs) != 1 or backs[0].users or set(source.users) != {node, backs[0]}:
        return
    row: list[tuple[fx.Node, Key]] = []
    written: fx.Node | None = source
    while True:
        if list(_bases(node).values()).count(written) != 1 or _read_otherwise(node, row, source):
            return
        row.append((node, name))
        written = _result(node, name)
        if written is None:
            return
        if backs[0].args[1] is written:
            break
        users = list(written.users)
        if len(users) != 1 or not _bases(users[0]):
            return
        node = users[0]
        name = next((key for key, base in _bases(node).items() if base is written), "")
    if any(user.op == "output" for user in written.users):
        return
    found.inputs.add(source)
    found.copies.add(backs[0])
    for node, name in row:
        found.bases.setdefault(node, set()).add(name)


def _read_otherwise(node: fx.Node, row: list[tuple[fx.Node, Key]], source: fx.Node) -> bool:
    """Whether the operator also reads what it writes into through another argument."""
    written = source if not row else _result(*row[-1])
    values = torch.utils._pytree.tree_leaves((node.args, node.kwargs))
    return values.count(written) != 1


def _bases(node: fx.Node) -> dict[Key, Any]:
    """{position or name: base} of what the operator writes into."""
    if node.target is _TRITON:
        kwargs = kwargs_of(node)
        return {name: kwargs["kwargs"].get(name) for name in kwargs["tensors_to_clone"]}
    if node.op != "call_function" or not isinstance(node.args[0] if node.args else None, torch._ops.OpOverload):
        return {}
    if node.target is _V2:
        return dict(enumerate(kwargs_of(node).get("_all_bases", ())))
    if node.target is not _V1:
        return {}
    names, _ = auto_functionalize.get_mutable_args(args_of(node)[0])
    return {name: node.kwargs[name] for name in names}


def _result(node: fx.Node, name: Key) -> fx.Node | None:
    """The node of what became of a base; None where nothing reads it."""
    position = name
    if node.target is not _TRITON:
        position = max(len(args_of(node)[0]._schema.returns), 1) + list(_bases(node)).index(name)
    return next((user for user in node.users if user.target is operator.getitem and user.args[1] == position), None)
