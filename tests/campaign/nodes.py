"""How the nodes of the graphs that this process compiles are run: by native kernels, a library or Python.

A node is an ATen operator of a graph as AOTAutograd gives it. One that is a library call of the program by the same
name counts as library, or as Python where the call went through the interpreter or runs operators of the graph there;
every other one is native, views included. Library calls that no node names (linear's addmm) are counted as nodes of
their own. All nodes of a graph that fell back are Python's.
"""
import collections
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

NATIVE, LIBRARY, PYTHON = range(3)


class NodeCounts:
    """From when it is made; one a process. `take` gives {target: [native, library, Python]} since the last time."""

    def __init__(self) -> None:
        from kiln import backend, library, python_calls

        # (targets, library calls; None: fell back, operators that calls of Python run)
        self._graphs: list[tuple[list[str], list[str] | None, list[str]]] = []
        self._by_python: set[str] = set()
        compile_graph, call = backend.compile_graph, library.call

        def counted(module: fx.GraphModule, *arguments: Any, **options: Any) -> Any:
            targets = _targets(module)
            graph = compile_graph(module, *arguments, **options)
            artifact, python = getattr(graph, "artifact", None), getattr(graph, "python", None)
            calls = None if artifact is None else [
                name for name in artifact.info()["library_calls"] if not name.startswith(python_calls.PREFIX)]
            self._graphs.append((targets, calls,
                                 [name for call in (python.calls if python is not None else ())
                                  for name in call.operators]))
            return graph

        def noted(target: str, arguments: dict[str, Any]) -> Any:
            self._by_python.add(target)
            return call(target, arguments)

        backend.compile_graph, library.call = counted, noted  # before `install` hands `call` over

    def take(self) -> dict[str, list[int]]:
        counts: collections.defaultdict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0])
        for targets, calls, python in self._graphs:
            left = collections.Counter(calls or ())
            in_python = collections.Counter(python)
            for target in targets:
                if calls is None:
                    counts[target][PYTHON] += 1
                elif in_python[target]:
                    in_python[target] -= 1
                    counts[target][PYTHON] += 1
                elif left[target]:
                    left[target] -= 1
                    counts[target][self._way(target)] += 1
                else:
                    counts[target][NATIVE] += 1
            for target, number in left.items():
                if number:
                    counts[target][self._way(target)] += number
        self._graphs.clear()
        self._by_python.clear()  # of another dtype the same operator may go another way
        return dict(counts)

    def _way(self, target: str) -> int:
        return PYTHON if target in self._by_python else LIBRARY


def add(total: dict[str, list[int]], counts: Mapping[str, Sequence[int]]) -> None:
    for target, numbers in counts.items():
        total[target] = [a + b for a, b in zip(total.get(target, (0, 0, 0)), numbers)]


def _targets(module: fx.GraphModule) -> list[str]:
    """As programs name them."""
    found = []
    for node in module.graph.nodes:
        if node.op == "call_function" and not isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, int)):
            if isinstance(node.target, torch._ops.OpOverload):
                found.append(str(node.target))
            elif isinstance(node.target, torch._ops.HigherOrderOperator):
                found.append(node.target.name())
    return found
