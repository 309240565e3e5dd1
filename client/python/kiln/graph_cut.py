"""Takes the nodes that the exporter refused out of a graph, and makes calls of Python of them.

Refused nodes that feed each other become one call, unless a native node lies between them.
"""
from __future__ import annotations

import dataclasses
import heapq
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx

from . import in_place, inductor_calls, pinned_layouts, written_graph
from .errors import Unsupported
from .fx_nodes import args_of
from .python_calls import GIVEN, HELD, SIZE, TENSOR, TOKEN, Operand, PythonCall, PythonPart

ORIGIN = "kiln_origin"  # in a copied node's meta: the node of the graph that was cut

_REASONS_MAX = 3
_RESIZE_STORAGE = torch.ops.inductor.resize_storage_bytes_.default  # its schema does not tell what it does


@dataclasses.dataclass
class Cut:
    module: fx.GraphModule  # with a node for each call, whose target is the PythonCall
    part: PythonPart


def cut(module: fx.GraphModule, refused: dict[fx.Node, str], expressible: Callable[[Any], bool],
        gpu: torch.device | None, binders: Mapping[sympy.Symbol, fx.Node]) -> Cut:
    """The graph without what was refused. Raises Unsupported where a refused node writes into memory of the program.

    refused: {node: reason}; inputs and attributes among them are held in Python.
    expressible: tells of a number whether the program can evaluate it.
    binders: {symbol: node} of the numbers that the program knows only behind a node: an element of a tensor, whose node
    is no expression, or a size."""
    _split_copies(module.graph, refused)
    return _Cutter(module, refused, expressible, gpu, binders).run()


def is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def is_placeholder_of_number(target: object) -> bool:
    return target is _number


def written_arguments(node: fx.Node) -> list[fx.Node]:
    """The nodes whose memory an operator writes into, or takes away."""
    if node.target is _RESIZE_STORAGE:
        return [args_of(node)[0]]
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or not isinstance(schema, torch.FunctionSchema) or not schema.is_mutable:
        return []
    given = [*zip(schema.arguments, node.args),
             *((argument, node.kwargs[argument.name]) for argument in schema.arguments if argument.name in node.kwargs)]
    written = [value for argument, value in given if argument.alias_info is not None and argument.alias_info.is_write]
    return [value for value in torch.utils._pytree.tree_leaves(written) if isinstance(value, fx.Node)]


def is_pure_view(node: fx.Node) -> bool:
    """Whether it only says how its argument's memory is read."""
    return pinned_layouts.is_view(node.target) and not written_arguments(node)


def _split_copies(graph: fx.Graph, refused: dict[fx.Node, str]) -> None:
    """What is refused as the source of a copy to an input is converted in Python; the copy itself is the program's."""
    for node in [node for node in refused if node.target is torch.ops.aten.copy_.default]:
        to, source = args_of(node)[:2]
        if to.op != "placeholder" or to in refused:
            continue
        options = {"dtype": to.meta["val"].dtype, "device": to.meta["val"].device}
        with graph.inserting_before(node):
            converted = graph.call_function(torch.ops.aten._to_copy.default, (source,), options)
        converted.meta["val"] = torch.ops.aten._to_copy.default(source.meta["val"], **options)
        node.args = (to, converted, *node.args[2:])
        refused[converted] = refused.pop(node)


class _Cutter:
    def __init__(self, module: fx.GraphModule, refused: dict[fx.Node, str], expressible: Callable[[Any], bool],
                 gpu: torch.device | None, binders: Mapping[sympy.Symbol, fx.Node]) -> None:
        self.module = module
        self.refused = refused
        self.expressible = expressible
        self.gpu = gpu
        self.binders = binders
        self.binding = set(binders.values())
        self.list_nodes()
        self.python: dict[fx.Node, str | None] = {}  # node -> reason, or None where a neighbour's holds
        self.before: dict[fx.Node, list[fx.Node]] = {}  # node -> nodes whose effects it has to follow
        self.viewed_inputs: set[fx.Node] = set()  # of which an output is a view that Python makes
        self.slots: dict[fx.Node, int] = {}
        self.readers: list[int] = []  # by slot: how often it is read
        self.calls: list[PythonCall] = []
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}  # node -> its node in the new graph
        self.tokens: dict[fx.Node, fx.Node] = {}  # node of Python -> its call's last result

    def run(self) -> Cut:
        self.choose()
        self.in_place = in_place.find(self.python_in_order())
        self.order_effects()
        for unit in self.sorted_units(self.group()):
            if isinstance(unit, list):
                self.add_call(unit)
            elif unit not in self.in_place.copies and (unit.op == "placeholder" or unit not in self.refused):
                self.copy(unit)
        outputs = self.add_outputs()
        # By the place among the inputs: other nodes may come before them, as tokens of effects do.
        inputs = [(position, self.slots[node], node not in self.refused)
                  for position, node in enumerate(self.module.graph.find_nodes(op="placeholder")) if node in self.slots]
        part = PythonPart(tuple(self.calls), tuple(self.readers), tuple(inputs), tuple(outputs),
                          len(args_of(self.nodes[-1])[0]))
        return Cut(fx.GraphModule(self.module, self.graph), part)

    # ---- which nodes

    def list_nodes(self) -> None:
        self.nodes = list(self.module.graph.nodes)
        self.position = {node: i for i, node in enumerate(self.nodes)}

    def choose(self) -> None:
        for node in self.nodes:
            if node.op == "placeholder" and node in self.refused:
                self.slot(node)
            if node.op != "call_function":
                continue
            if node in self.refused:
                self.python[node] = self.refused[node]
                self.check_writes(node)
            elif node.target is operator.getitem and node.args[0] in self.python:
                self.python[node] = None
        for node in list(self.python):
            self.python.update(dict.fromkeys(in_place.made_for(node)))
        # Numbers that the program can't evaluate are computed where they are needed.
        for node in reversed(self.nodes):
            if node in self.python:
                for source in node.all_input_nodes:
                    if source.op == "call_function" and is_number(source) and not self.expressible(source.meta["val"]):
                        self.python.setdefault(source, None)
        self.find_viewed_inputs()

    def find_viewed_inputs(self) -> None:
        """Whoever gets such a view reads its memory from the input, by the view's strides and offset: it has to be one.
        Native nodes read a copy, since the program can't have what lies in the frame."""
        viewed: dict[fx.Node, fx.Node] = {}
        found: list[fx.Node] = []
        for node in self.nodes:
            is_view = node in self.python and is_pure_view(node)
            if is_view and node.args and isinstance(node.args[0], fx.Node):
                source = viewed.get(node.args[0], node.args[0])
                if source.op == "placeholder":
                    viewed[node] = source
        for node, source in viewed.items():
            users = [user for user in node.users if user not in self.python]
            if any(user.op == "output" for user in users):
                self.viewed_inputs.add(source)
                found += [node] if len(users) > 1 else []
        for node in found:
            self.copy_for_native_nodes(node)

    def copy_for_native_nodes(self, node: fx.Node) -> None:
        with self.module.graph.inserting_after(node):
            copy = self.module.graph.call_function(torch.ops.aten.clone.default, (node,))
        copy.meta["val"] = torch.ops.aten.clone.default(node.meta["val"])
        node.replace_all_uses_with(
            copy, lambda user: user not in self.python and user.op != "output" and user is not copy)
        self.python[copy] = None
        self.list_nodes()

    def check_writes(self, node: fx.Node) -> None:
        for value in written_arguments(node):
            if value not in self.python and value not in self.refused:
                raise Unsupported(f"{node.target} writes into memory of the program ({self.refused[node]})")

    def is_expression(self, node: fx.Node) -> bool:
        """Whether it is a number that its users write out."""
        return node not in self.python and node.op == "call_function" and is_number(node) and node not in self.binding

    def in_frame(self, node: fx.Node) -> bool:
        """Whether the value lies in the frame, not in the program."""
        if node in self.python:
            return not self.is_read_natively(node)
        return node in self.refused

    def is_read_natively(self, node: fx.Node) -> bool:
        return isinstance(node.meta.get("val"), torch.Tensor) and any(
            (user not in self.python and user.op != "output" and not self.is_expression(user)) or self.is_item(user)
            for user in node.users)

    def is_item(self, node: fx.Node) -> bool:
        """Whether it is an element of a tensor that the program has. Where Python needs it as well, both take it."""
        return node in self.binding and is_number(node)

    # ---- in which order

    def order_effects(self) -> None:
        """What has effects or draws random numbers keeps its order, native draws too; what Python writes into comes
        after all that may read."""
        earlier: list[fx.Node] = []
        last: fx.Node | None = None
        for node in self.nodes:
            if node in self.python:
                if written_arguments(node):
                    self.before[node] = list(earlier)
                earlier.append(node)
            elif not draws(node):
                continue
            if node not in self.python or node in self.before or written_graph.has_effects(node, self.module):
                if last is not None:
                    self.before.setdefault(node, []).append(last)
                last = node

    def python_in_order(self) -> list[fx.Node]:
        return [node for node in self.nodes if node in self.python]

    def sources(self, node: fx.Node) -> list[fx.Node]:
        """The nodes that have to come before `node`."""
        found: list[fx.Node] = []
        for source in node.all_input_nodes:
            found += self.binders_of(source) if self.is_expression(source) else [source]
        return found + self.before.get(node, [])

    def binders_of(self, number: fx.Node) -> list[fx.Node]:
        """Behind which nodes the program knows what an expression takes."""
        expr = getattr(getattr(number.meta["val"], "node", None), "expr", sympy.true)
        return [self.binders[symbol] for symbol in expr.free_symbols if symbol in self.binders]

    def readers_before(self, node: fx.Node) -> list[fx.Node]:
        """A native node that writes into an input comes after whoever reads it."""
        if node in self.python:
            return []
        return [user for value in written_arguments(node) for user in value.users
                if self.position[user] < self.position[node]]

    # ---- groups

    def group(self) -> dict[fx.Node, fx.Node]:
        """{node of Python: its group's first node}. Between two nodes of a group no native one lies: a node's level
        counts the steps from native nodes to Python's on the way to it, and a group has one level."""
        level: dict[fx.Node, int] = {}
        group: dict[fx.Node, fx.Node] = {}

        def find(node: fx.Node) -> fx.Node:
            while group[node] is not node:
                group[node] = group[group[node]]
                node = group[node]
            return node

        for node in self.nodes:
            here = node in self.python
            sources = self.sources(node)
            level[node] = max((level[source] + (here and source not in self.python) for source in sources),
                              default=int(here))
            if not here:
                continue
            group[node] = node
            for source in sources:
                if source in self.python and level[source] == level[node] and find(source) is not find(node):
                    group[find(node)] = find(source)
        return {node: find(node) for node in group}

    def sorted_units(self, groups: Mapping[fx.Node, fx.Node]) -> Iterator[fx.Node | list[fx.Node]]:
        """Native nodes, and lists of a group's nodes: each after its sources, else in the graph's order."""
        members: dict[fx.Node, list[fx.Node]] = {}
        for node in self.python_in_order():
            members.setdefault(groups[node], []).append(node)
        waits: dict[fx.Node, set[fx.Node]] = {groups.get(node, node): set() for node in self.nodes}
        users: dict[fx.Node, list[fx.Node]] = {unit: [] for unit in waits}
        for node in self.nodes:
            unit = groups.get(node, node)
            for source in self.sources(node) + self.readers_before(node):
                source = groups.get(source, source)
                if source is not unit and source not in waits[unit]:
                    waits[unit].add(source)
                    users[source].append(unit)
        ready = [self.position[unit] for unit, sources in waits.items() if not sources]
        heapq.heapify(ready)
        while ready:
            unit = self.nodes[heapq.heappop(ready)]
            if unit.op != "output":
                yield members.get(unit, unit)
            for user in users[unit]:
                waits[user].discard(unit)
                if not waits[user]:
                    heapq.heappush(ready, self.position[user])

    # ---- the new graph

    def copied(self, node: fx.Node) -> fx.Node:
        """The node's node in the new graph. Numbers that are written out come where they are first asked for."""
        if node not in self.copies and self.is_expression(node):
            self.copy_number(node)
        return self.copies[node]

    def copy(self, node: fx.Node) -> None:
        if not self.is_expression(node):
            self.copies[node] = copied = self.graph.node_copy(node, self.copied)
            copied.meta[ORIGIN] = node

    def copy_number(self, node: fx.Node) -> None:
        self.copies[node] = copied = self.graph.call_function(_number)
        copied.meta = dict(node.meta)

    def slot(self, node: fx.Node, readers: int = 0) -> int:
        number = self.slots.get(node)
        if number is None:
            number = self.slots[node] = len(self.readers)
            self.readers.append(0)
        self.readers[number] += readers
        return number

    def add_call(self, nodes: Sequence[fx.Node]) -> None:
        inside = set(nodes)
        inner = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        operands = _Operands()
        outside = dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source not in inside)
        for source in outside:
            if source.op == "get_attr" and source in self.refused:
                copies[source] = inner.node_copy(source)
                continue
            copies[source] = inner.placeholder(f"operand_{len(operands.places)}")
            self.add_operand(source, operands)
        for node in nodes:
            operands.follow(self.tokens[source] for source in self.before.get(node, ())
                            if source in self.tokens and source not in inside)
            copies[node] = inner.node_copy(node, copies.__getitem__)
            self.in_place.apply(node, copies[node])
        leaving = [node for node in nodes if any(user not in inside or self.is_item(user) for user in node.users)]
        # Of these the program reads no more than sizes.
        told = [node for node in nodes if node in self.binding and not is_number(node) and self.in_frame(node)]
        inner.output(tuple(copies[node] for node in leaving + told))
        reasons = dict.fromkeys(reason for node in nodes if (reason := self.python[node]))
        call = PythonCall(len(self.calls), fx.GraphModule(self.module, inner), "; ".join([*reasons][:_REASONS_MAX]),
                          tuple(_name(node) for node in nodes if node.target is not operator.getitem),
                          tuple(operands.places), gpu=self.gpu, by_inductor=inductor_calls.wanted(nodes))
        self.calls.append(call)
        self.add_call_node(call, nodes, leaving, told, operands)

    def add_operand(self, source: fx.Node, operands: _Operands) -> None:
        value = source.meta.get("val")
        # A float that is an input is one in the frame; the program has a tensor of it. What is written into is the
        # caller's own tensor, which the program may have copied.
        if (self.in_frame(source) or isinstance(value, (torch.SymFloat, float)) or source in self.in_place.inputs
                or source in self.viewed_inputs):
            operands.places.append((HELD, self.slot(source, readers=1), False))
            if source in self.python:
                operands.follow([self.tokens[source]])
        elif is_number(source):
            operands.places.append((SIZE, len(operands.sizes), False))
            operands.sizes.append(self.copied(source))
        else:
            on_cpu = self.gpu is not None and source.meta["val"].device.type == "cpu"
            operands.places.append((TENSOR, len(operands.tensors), on_cpu))
            operands.tensors.append(self.copies[source])

    def add_call_node(self, call: PythonCall, nodes: Sequence[fx.Node], leaving: Sequence[fx.Node],
                      told: Sequence[fx.Node], operands: _Operands) -> None:
        tensors = operands.tensors + operands.tokens
        made = self.graph.call_function(call, (tensors, operands.sizes))
        made.meta = {key: nodes[0].meta[key] for key in ("stack_trace", "nn_module_stack") if key in nodes[0].meta}
        declared: list[torch.Tensor] = []
        results: list[int] = []
        for node in leaving:
            if self.in_frame(node):
                results.append(self.slot(node))
                continue
            self.copies[node] = result = self.graph.call_function(operator.getitem, (made, len(declared)))
            result.meta = dict(node.meta)
            declared.append(node.meta["val"])
            results.append(GIVEN)
        declared += [node.meta["val"] for node in told]
        results += [GIVEN] * len(told)
        made.meta["val"] = [*declared, TOKEN]
        token = self.graph.call_function(operator.getitem, (made, len(declared)))
        token.meta["val"] = TOKEN
        call.results = tuple(results)
        for node in nodes:
            self.tokens[node] = token
            if is_number(node):  # native users write the expression out
                self.copy_number(node)
            if self.is_item(node):
                self.copies[node] = self.graph.node_copy(node, self.copied)

    def add_outputs(self) -> list[tuple[int, int]]:
        held: list[tuple[int, int]] = []
        values: list[Any] = []
        for position, value in enumerate(args_of(self.nodes[-1])[0]):
            if isinstance(value, fx.Node) and self.in_frame(value):
                held.append((position, self.slot(value, readers=1)))
                value = None
            values.append(fx.node.map_arg(value, self.copied))
        self.graph.output((*values, *dict.fromkeys(self.tokens.values())))
        return held


class _Operands:
    """What a call is given: places by the inner graph's inputs, and nodes of the new graph."""

    def __init__(self) -> None:
        self.places: list[Operand] = []
        self.tensors: list[fx.Node] = []
        self.sizes: list[fx.Node] = []
        self.tokens: list[fx.Node] = []  # of calls that come before

    def follow(self, tokens: Iterable[fx.Node]) -> None:
        self.tokens += [token for token in tokens if token not in self.tokens]


def _number() -> None:
    """Stands in a graph for a number that its users write out as an expression."""


def draws(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _name(node: fx.Node) -> str:
    name = getattr(node.target, "name", None)
    return str(node.target) if isinstance(node.target, torch._ops.OpOverload) else \
        name() if callable(name) else getattr(node.target, "__name__", str(node.target))
