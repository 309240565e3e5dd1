"""How well a graph was fused: loop nests and bytes moved, Inductor's and kiln's by one definition.

Loop nests: Inductor's scheduler nodes that are loops, after fusion (nodes under one outer loop are one); kiln's kernel
launches. Bytes: Inductor's `metrics.num_bytes_accessed`, which is a sum over scheduler nodes, library calls among them,
of each buffer that a node reads or writes, once a node; kiln counts its launches and library calls the same way.
`loop_bytes` are those of the loops alone, `bytes` all. Of a buffer that loops index, both count at most the elements
they can touch, but Inductor only where it fused nothing: a fused node that gathers rows counts the whole table.
`touched_bytes` are Inductor's with that put right, the figure to hold kiln's `bytes` against.
"""
from __future__ import annotations

import collections
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import BaseSchedulerNode


Numbered: TypeAlias = dict[tuple[int, str], dict[str, Any]]  # a graph's counts, by number and kind


class InductorGraphs:
    """Keeps what Inductor compiles in this process from now on; counted when asked, so that no start is slower."""

    def __init__(self) -> None:
        from torch._inductor.graph import GraphLowering

        self._graphs: list[GraphLowering] = []
        compile_to_module = GraphLowering.compile_to_module

        def keep(graph: GraphLowering) -> Any:
            self._graphs.append(graph)
            return compile_to_module(graph)

        GraphLowering.compile_to_module = keep  # type: ignore[method-assign, assignment]  # it is to see them

    def counts(self) -> list[dict[str, Any]]:
        return [self._count(graph) for graph in self._graphs]

    @staticmethod
    def _count(graph: GraphLowering) -> dict[str, Any]:
        from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode
        from torch._inductor.virtualized import V

        with V.set_graph_handler(graph):
            total, _, _ = graph.count_bytes()
            loops = [node for node in graph.scheduler.nodes
                     if not isinstance(node, (ExternKernelSchedulerNode, NopKernelSchedulerNode))]
            loop_bytes = sum(node.get_read_write_buffers_sizes() for node in loops)
            untouched = sum(InductorGraphs._untouched(graph, node) for node in loops)
        kind = "backward" if graph.is_backward else "inference" if graph.is_inference else "forward"
        return {"kind": kind, "nests": len(loops), "loop_bytes": int(loop_bytes), "bytes": int(total),
                "touched_bytes": int(total - untouched)}

    @staticmethod
    def _untouched(graph: GraphLowering, node: BaseSchedulerNode) -> int:
        """Bytes that the count has of a fused node beyond what the loops in it can touch."""
        touched: collections.Counter[str] = collections.Counter()  # elements, by buffer
        parts: Iterable[Any] = node.get_nodes()  # of loops: they have ranges
        for part in parts:
            points = math.prod(int(size) for sizes in part.get_ranges() for size in sizes)
            for access in [*part.read_writes.reads, *part.read_writes.writes]:
                touched[access.name] += points
        counted = node.get_read_write_buffer_accesses(include_reads=True, include_writes=True)
        return sum(max(0, size - touched[name] * graph.get_dtype(name).itemsize) for name, size in counted.items())


def kiln_counts(since: int = 0) -> list[dict[str, Any]]:
    """Of the graphs that this process compiled after its first `since`."""
    from kiln import records

    found = []
    for record in records.graphs_since(since):
        if "fallback" in record:
            continue
        kernels = record["kernels"]
        loop_bytes = sum(kernels[number]["bytes_read"] + kernels[number]["bytes_written"]
                         for number in record["launches"])
        found.append({"kind": record["title"].rsplit(" ", 1)[-1], "nests": len(record["launches"]),
                      "loop_bytes": loop_bytes, "bytes": loop_bytes + record["library_bytes"]})
    return found


def _numbered(counts: list[dict[str, Any]]) -> Numbered:
    """By kind and number. A backward graph has the number of its forward graph: the last that still lacks one, both
    where it is compiled at once and where it is compiled when it first runs, the last graph's first."""
    numbered: Numbered = {}
    forward = 0
    open_forward: list[int] = []
    for graph in counts:
        if graph["kind"] == "backward":
            number = open_forward.pop() if open_forward else -1
        else:
            number = forward
            forward += 1
            if graph["kind"] == "forward":
                open_forward.append(number)
        numbered[number, graph["kind"]] = graph
    return numbered


def _without_repeats(numbered: Numbered) -> Numbered:
    """The same with each graph (and its backward) that counts as an earlier one left out."""
    kept = []
    for number in sorted({number for number, _ in numbered}):
        graphs = {kind: counts for (of, kind), counts in numbered.items() if of == number}
        if graphs not in kept:
            kept.append(graphs)
    return {(number, kind): counts for number, graphs in enumerate(kept) for kind, counts in graphs.items()}


def pairs(inductor: list[dict[str, Any]],
          kiln: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """[(kind, Inductor's counts, kiln's)] of the same graphs, in the order of the model. A graph that is compiled again
    comes from Inductor's cache, uncounted."""
    sides = [_numbered(counts) for counts in (inductor, kiln)]
    if sides[0].keys() != sides[1].keys():
        sides = [_without_repeats(side) for side in sides]
    if sides[0].keys() != sides[1].keys():
        raise ValueError(f"Inductor has the graphs {sorted(sides[0])}, kiln {sorted(sides[1])}")
    return [(kind, sides[0][number, kind], sides[1][number, kind])
            for number, kind in sorted(sides[0], key=lambda key: (key[0], key[1] == "backward"))]
