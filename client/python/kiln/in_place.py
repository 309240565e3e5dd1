"""Operators that write into their arguments, and need no copy of them.

AOTAutograd makes such an operator, and a user's Triton kernel, a function (auto_functionalized,
triton_kernel_wrapper_functional): it copies its bases, writes into the copies and gives them back; a `copy_` brings
what became of an input back to it. Where nothing reads an input but a row of such operators, each what the one before
has written, they write into the input itself, as eager does, and nothing is copied. Nor is a base that is made for such
an operator alone: it is made in Python, too.
"""
import dataclasses
import operator

import torch
from torch._higher_order_ops import auto_functionalize, triton_kernel_wrap

aten = torch.ops.aten

_TRITON = triton_kernel_wrap.triton_kernel_wrapper_functional
_FACTORIES = (aten.empty.memory_format, aten.empty_strided.default, aten.empty_permuted.default, aten.full.default,
              aten.zeros.default, aten.ones.default, aten.empty_like.default, aten.full_like.default,
              aten.zeros_like.default, aten.ones_like.default, aten.new_empty.default, aten.new_empty_strided.default,
              aten.new_full.default, aten.new_zeros.default, aten.new_ones.default)
_V1, _V2 = auto_functionalize.auto_functionalized, auto_functionalize.auto_functionalized_v2


@dataclasses.dataclass
class InPlace:
    inputs: set  # placeholders that are written into directly
    copies: set  # copies back to them, which are not needed
    bases: dict  # node -> positions (or names) of its bases that are not copied

    def apply(self, node, copied):
        """Makes `copied`, of `node`, the call that copies no base that it need not."""
        kept = self.bases.get(node)
        if not kept:
            return
        dense = auto_functionalize.auto_functionalized_dense
        cloned = [name for name in _bases(node) if name not in kept]
        if node.target is _TRITON:
            copied.target, copied.kwargs = _run_triton_kernel, {**copied.kwargs, "cloned": tuple(cloned)}
            return
        if node.target is _V2:
            dense = auto_functionalize.auto_functionalized_v2_dense
        copied.target, copied.args = dense, (*copied.args, tuple(cloned))


def _run_triton_kernel(*, cloned, tensors_to_clone, kwargs, **launch):
    """triton_kernel_wrapper_functional, which copies of what the kernel writes into only `cloned`."""
    kwargs = {name: torch._prims_common.clone_preserve_strides(value) if name in cloned else value
              for name, value in kwargs.items()}
    triton_kernel_wrap.triton_kernel_wrapper_mutation_dense(kwargs=kwargs, **launch)
    return {name: kwargs[name] for name in tensors_to_clone}


def find(nodes):
    """What can be written in place among the nodes that run in Python."""
    found = InPlace(set(), set(), {})
    for node in nodes:
        for name, base in _bases(node).items():
            if not isinstance(base, torch.fx.Node):
                continue
            if base.op == "placeholder":
                _follow(node, name, base, found)
            elif base in nodes and _is_made_for(base, node):
                found.bases.setdefault(node, set()).add(name)
    return found


def made_for(node):
    """The nodes that only make memory for `node`, an operator that writes into its arguments."""
    return [base for base in _bases(node).values() if isinstance(base, torch.fx.Node) and _is_made_for(base, node)]


def _is_made_for(base, node):
    return base.target in _FACTORIES and set(base.users) == {node} and not _read_otherwise(node, [], base)


def _follow(node, name, source, found):
    """From the first operator that is given `source` to the copy back to it."""
    backs = [user for user in source.users if user.target is torch.ops.aten.copy_.default and user.args[0] is source]
    if len(backs) != 1 or backs[0].users or set(source.users) != {node, backs[0]}:
        return
    row, result = [], source
    while node is not None:
        if list(_bases(node).values()).count(result) != 1 or _read_otherwise(node, row, source):
            return
        row.append((node, name))
        result = _result(node, name)
        if result is None:
            return
        if backs[0].args[1] is result:
            break
        users = list(result.users)
        node = users[0] if len(users) == 1 and _bases(users[0]) else None
        name = next((key for key, base in _bases(node).items() if base is result), None) if node is not None else None
    if node is None or any(user.op == "output" for user in result.users):
        return
    found.inputs.add(source)
    found.copies.add(backs[0])
    for node, name in row:
        found.bases.setdefault(node, set()).add(name)


def _read_otherwise(node, row, source):
    """Whether the operator also reads what it writes into through another argument."""
    written = source if not row else _result(*row[-1])
    values = torch.utils._pytree.tree_leaves((node.args, node.kwargs))
    return values.count(written) != 1


def _bases(node):
    """{position or name: base} of what the operator writes into."""
    if node.target is _TRITON:
        return {name: node.kwargs["kwargs"].get(name) for name in node.kwargs["tensors_to_clone"]}
    if node.op != "call_function" or not isinstance(node.args[0] if node.args else None, torch._ops.OpOverload):
        return {}
    if node.target is _V2:
        return dict(enumerate(node.kwargs.get("_all_bases", ())))
    if node.target is not _V1:
        return {}
    names, _ = auto_functionalize.get_mutable_args(node.args[0])
    return {name: node.kwargs[name] for name in names}


def _result(node, name):
    """The node of what became of a base; None where nothing reads it."""
    position = name
    if node.target is not _TRITON:
        position = max(len(node.args[0]._schema.returns), 1) + list(_bases(node)).index(name)
    return next((user for user in node.users if user.target is operator.getitem and user.args[1] == position), None)
