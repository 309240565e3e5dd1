"""Cuts a graph into parts that CUDA graphs record and parts that they can't, so that one node costs no whole recording.

A node lies in the lowest level that its sources allow; even levels are recorded, odd ones are not. So there are no more
parts than the graph's dependences ask for. Views and numbers belong to no part: each part recomputes those that it
reads, since a recorded part may be given no view of what another holds.
"""
import dataclasses
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_symbols

from . import graph_cut, written_graph
from .errors import Unsupported
from .fx_nodes import args_of


@dataclasses.dataclass(eq=False)
class Part:
    """A graph of its own. Slots hold the values between parts; the first ones are the whole graph's inputs."""

    module: fx.GraphModule
    recorded: bool
    reasons: str  # why not; "" where it is
    reads: tuple[int, ...]  # slots, one an input
    gives: tuple[int, ...]  # slots, one an output
    frees: tuple[int, ...] = ()  # slots that nobody reads afterwards


@dataclasses.dataclass(frozen=True)
class Slot:
    """An output of the whole graph that lies in a slot; others are what they are."""

    number: int


@dataclasses.dataclass
class Partition:
    parts: list[Part]
    slot_count: int
    outputs: tuple[Any, ...]  # Slot, or a constant


def partition(module: fx.GraphModule, unrecordable: Mapping[fx.Node, str],
              static_inputs: Sequence[int] = ()) -> Partition:
    """The parts of a graph, in the order that they run in. Raises Unsupported where a part lacks a size.

    unrecordable: {node: reason}.
    static_inputs: positions of the inputs whose address stays; others a recording copies at each call."""
    return _Partitioner(module, unrecordable, static_inputs).run()


class _Partitioner:
    def __init__(self, module: fx.GraphModule, unrecordable: Mapping[fx.Node, str],
                 static_inputs: Sequence[int]) -> None:
        self.module = module
        self.unrecordable = unrecordable
        self.nodes = list(module.graph.nodes)
        self.position = {node: i for i, node in enumerate(self.nodes)}
        self.inputs = [node for node in self.nodes if node.op == "placeholder"]
        self.static = {self.inputs[position] for position in static_inputs}
        # value of a part that is not recorded -> the copy of it to an input, in which it lies from then on
        self.back: dict[fx.Node, fx.Node] = {}
        self.floating: set[fx.Node] = set()  # views and numbers
        self.apart: set[fx.Node] = set()  # nodes that are not recorded
        self.level: dict[fx.Node, int] = {}
        self.slots = {node: i for i, node in enumerate(self.inputs)}

    def run(self) -> Partition:
        self.choose()
        self.keep_in_place()
        self.find_levels()
        members = self.members()
        outside = {level: self.outside(level, nodes) for level, nodes in members.items()}
        leaving = set(self.outputs()).union(*outside.values())
        parts = [self.part(level, nodes, outside[level], [node for node in nodes if node in leaving])
                 for level, nodes in members.items()]
        outputs = tuple(Slot(self.slots[value]) if isinstance(value, fx.Node) else value
                        for value in args_of(self.nodes[-1])[0])
        _find_frees(parts, len(self.inputs), {output.number for output in outputs if isinstance(output, Slot)})
        return Partition(parts, len(self.slots), outputs)

    def outputs(self) -> list[fx.Node]:
        return [value for value in args_of(self.nodes[-1])[0] if isinstance(value, fx.Node)]

    # ---- which part

    def choose(self) -> None:
        for node in self.nodes:
            if node.op == "get_attr":
                self.floating.add(node)
            elif node.op != "call_function":
                continue
            elif node.target is operator.getitem and node.args[0] not in self.floating:
                if node.args[0] in self.apart or node in self.unrecordable:
                    self.apart.add(node)
            elif node in self.unrecordable:
                self.apart.add(node)
            elif graph_cut.is_number(node) or graph_cut.is_pure_view(node):
                self.floating.add(node)
            elif node.target is torch.ops.aten.copy_.default and node.args[1] in self.apart:
                self.apart.add(node)  # Python may write into the input itself

    def keep_in_place(self) -> None:
        """What Python has written to an input is read there. Native nodes that read it are not recorded either where a
        recording would copy the input, which may be a large cache."""
        for node in self.nodes:
            if node in self.apart and _is_copy_to_input(node) and _same_layout(*args_of(node)[:2]):
                self.back[args_of(node)[1]] = node
        for value in [value for value, back in self.back.items() if args_of(back)[0] not in self.static]:
            readers = list(value.users)
            for reader in readers:  # grows by those of views
                if reader in self.floating:
                    readers += reader.users
                elif reader.op == "call_function":
                    self.apart.update((reader, *(user for user in reader.users if user.target is operator.getitem)))

    def find_levels(self) -> None:
        last = None
        for node in self.nodes:
            sources = list(node.all_input_nodes)
            if node.op == "call_function" and node not in self.floating:
                sources += self.readers_before(node)
                if written_graph.has_effects(node, self.module) and not _is_copy_to_input(node):
                    sources += [last] if last is not None else []
                    last = node
            level = max((self.level[source] for source in sources), default=0)
            placed = node.op == "call_function" and node not in self.floating
            self.level[node] = level + (level % 2 != (node in self.apart)) if placed else level

    def readers_before(self, node: fx.Node) -> list[fx.Node]:
        """What a node writes into has been read by then, views of it too."""
        found: list[fx.Node] = []
        seen = list(graph_cut.written_arguments(node))
        for value in seen:
            if value in self.apart and node in self.apart:
                found += [other for other in self.apart if self.position[other] < self.position[node]]
            for user in value.users:
                if self.position[user] < self.position[node]:
                    (seen if user in self.floating else found).append(user)
        return found

    def members(self) -> dict[int, list[fx.Node]]:
        """{level: its nodes}, and with them what leaves the graph as a view or a number."""
        members: dict[int, list[fx.Node]] = {}
        for node in self.nodes:
            if node.op == "call_function" and node not in self.floating:
                members.setdefault(self.level[node], []).append(node)
        members = dict(sorted(members.items()))
        for node in self.outputs():
            if node in self.floating:
                level = self.level[node] if self.level[node] in members else next(iter(members))
                if node not in members[level]:
                    members[level].append(node)
        return members

    # ---- what a part reads

    def outside(self, level: int, nodes: Sequence[fx.Node]) -> list[fx.Node]:
        """The inputs and the other parts' nodes that the part reads, in the graph's order."""
        found: set[fx.Node] = set()
        seen = list(nodes)
        here = set(nodes)
        for node in seen:  # grows by the views and numbers that are recomputed
            for source in node.all_input_nodes:
                if source in self.floating and source not in here:
                    here.add(source)
                    seen.append(source)
                elif source not in here:
                    found.add(self.place(source, level))
        self.add_sizes(level, here | found, found)
        return sorted(found, key=self.position.__getitem__)

    def place(self, node: fx.Node, level: int) -> fx.Node:
        """The node that a part of that level reads the value from."""
        back = self.back.get(node)
        return args_of(back)[0] if back is not None and self.level[node] == self.level[back] < level else node

    def add_sizes(self, level: int, known: set[fx.Node], found: set[fx.Node]) -> None:
        """A part knows a symbol by an input that is it, or has it as a size. One that is recorded has all as inputs of
        their own: torch's trees record it again for other integers, not for tensors of other sizes."""
        wanted = set().union(*(_symbols(node) for node in known))
        told = [node for node in known if node in found or node not in self.floating]
        if level % 2 == 0:
            told = [node for node in told if node.op == "placeholder" and graph_cut.is_number(node)]
        held = set().union(*map(_symbols_held, told))
        for symbol in sorted(wanted - held, key=str):
            holder = next((node for node in self.nodes
                           if self.comes_before(node, level) and symbol in _symbols_held(node)
                           and (level % 2 or graph_cut.is_number(node))), None)
            if holder is None:
                raise Unsupported(f"no part holds the size {symbol}")
            found.add(holder)

    def comes_before(self, node: fx.Node, level: int) -> bool:
        return node.op == "placeholder" or (
            node.op == "call_function" and node not in self.floating and self.level[node] < level)

    # ---- the part

    def part(self, level: int, nodes: Iterable[fx.Node], outside: Sequence[fx.Node],
             leaving: Sequence[fx.Node]) -> Part:
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for source in outside:
            copies[source] = graph.placeholder(source.name)
            copies[source].meta = dict(source.meta)

        def copied(node: fx.Node) -> fx.Node:
            source = self.place(node, level)
            if source not in copies:  # a view or a number
                copies[source] = graph.node_copy(source, copied)
            return copies[source]

        for node in sorted(nodes, key=self.position.__getitem__):
            copied(node)
        graph.output(tuple(copies[node] for node in leaving))
        for node in leaving:
            self.slots[node] = len(self.slots)
        reasons = dict.fromkeys(self.unrecordable[node] for node in nodes if node in self.unrecordable)
        why_not = "; ".join(filter(None, reasons)) or "it reads what Python has written to an input"
        return Part(fx.GraphModule(self.module, graph), level % 2 == 0, why_not if level % 2 else "",
                    tuple(self.slots[node] for node in outside), tuple(self.slots[node] for node in leaving))


def _is_copy_to_input(node: fx.Node) -> bool:
    return node.target is torch.ops.aten.copy_.default and args_of(node)[0].op == "placeholder"


def _same_layout(a: fx.Node, b: fx.Node) -> bool:
    x, y = a.meta["val"], b.meta["val"]
    return (x.dtype, x.device, tuple(x.shape), x.stride()) == (y.dtype, y.device, tuple(y.shape), y.stride())


def _symbols(node: fx.Node) -> set[sympy.Symbol]:
    return set().union(*(free_symbols(value) for value in _values(node)))


def _symbols_held(node: fx.Node) -> set[sympy.Symbol]:
    """The symbols that a number or a tensor tells: it is one, or has one as a size or stride."""
    held: set[sympy.Symbol] = set()
    for value in _values(node):
        parts = (*value.shape, *(value.stride() if value.layout == torch.strided else ())) \
            if isinstance(value, torch.Tensor) else (value,)
        for part in parts:
            expr = getattr(getattr(part, "node", None), "expr", None)
            if expr is not None and expr.is_Symbol:
                held.add(expr)
    return held


def _values(node: fx.Node) -> list[Any]:
    return [value for value in torch.utils._pytree.tree_leaves(node.meta.get("val"))
            if isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool))]


def _find_frees(parts: Sequence[Part], input_count: int, kept: Iterable[int]) -> None:
    """A slot is free behind its last reader; an input that nobody reads before all."""
    seen = set(kept)
    for part in reversed(parts):
        part.frees = tuple(slot for slot in dict.fromkeys((*part.reads, *part.gives)) if slot not in seen)
        seen.update(part.reads, part.gives)
    if parts:
        parts[0].frees += tuple(slot for slot in range(input_count) if slot not in seen)
