"""Finds the nodes that the service refuses to compile, so that they alone run in Python.

An error mostly names its node. Where it names none, the cause is searched for by halves.
"""
import time
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from torch import fx

from . import _C, fallback
from .errors import Unsupported
from .exported_graph import ExportedGraph

# Nodes of one graph that are moved to Python one after the other.
_REFUSALS_MAX = 8
# The search asks for one program a halving.
_SEARCHED_NODES_MAX = 4096
_SEARCH_SECONDS_MAX = 20.0

T = TypeVar("T")
Refused: TypeAlias = dict[fx.Node, str]  # nodes that are to run in Python, and why
Exporting: TypeAlias = Callable[[Refused], ExportedGraph]

_REFUSALS = ("UNIMPLEMENTED", "INVALID_ARGUMENT", "INTERNAL")


def is_refusal(error: _C.ServiceError) -> bool:
    """Whether a ServiceError is about the graph, not about the service or what a gang is served."""
    return error.args[0] in _REFUSALS and not isinstance(error, _C.NoVerdict)


def refined(exporting: Exporting, compiling: Callable[[ExportedGraph], T]) -> T:
    """What `compiling` gives of a graph as `exporting` writes it, with as few nodes in Python as were found to do.

    exporting: of {node: reason}, the nodes that are to run in Python, an ExportedGraph.
    compiling: of that, a compiled graph. Raises what it raises where nothing helps."""
    refused: Refused = {}
    while True:
        exported = exporting(refused)
        try:
            return compiling(exported)
        except _C.ServiceError as error:
            if not is_refusal(error):
                raise
            reason = fallback.reason_of_error(error)[0].removeprefix("unsupported: ")
            node = exported.node_in(error.args[1])
            if node is None or node in refused or len(refused) == _REFUSALS_MAX:
                compiled = _searched(exported, refused, reason, exporting, compiling)
                if compiled is None:
                    raise
                return compiled
            refused[node] = reason


def _searched(exported: ExportedGraph, refused: Refused, reason: str, exporting: Exporting,
              compiling: Callable[[ExportedGraph], T]) -> T | None:
    """The graph with the smallest set of nodes in Python that was found to do; None where none was."""
    candidates = list(dict.fromkeys(node for node, _ in exported.nodes if node is not None and node not in refused))
    if not candidates or len(candidates) > _SEARCHED_NODES_MAX:
        return None

    best: T | None = None
    deadline = time.monotonic() + _SEARCH_SECONDS_MAX

    def does(nodes: list[fx.Node]) -> bool:
        nonlocal best
        try:
            best = compiling(exporting({**refused, **dict.fromkeys(nodes, reason)}))
        except _C.NoVerdict:
            raise  # the others may have been told that it does
        except (_C.ServiceError, Unsupported):
            return False
        return True

    def least(nodes: list[fx.Node], others: list[fx.Node]) -> list[fx.Node]:
        """Those of `nodes` that have to be in Python beside `others`; with all of `nodes` it does."""
        if len(nodes) == 1 or time.monotonic() > deadline:
            return nodes
        first, second = nodes[:len(nodes) // 2], nodes[len(nodes) // 2:]
        for half in (first, second):
            if does(others + half):
                return least(half, others)
        found = least(first, others + second)
        return found + least(second, others + found)

    if does(candidates):
        found = least(candidates, [])
        does(found)
    return best
