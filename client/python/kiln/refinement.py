"""Finds the nodes that the service refuses to compile, so that they alone run in Python.

An error mostly names its node. Where it names none, one node is taken to be the cause, and searched for by halves.
"""
import time

from . import _C, fallback
from .errors import Unsupported

# Nodes of one graph that are moved to Python one after the other.
_REFUSALS_MAX = 8
# The search asks for one program a halving.
_SEARCHED_NODES_MAX = 4096
_SEARCH_SECONDS_MAX = 20.0

_REFUSALS = ("UNIMPLEMENTED", "INVALID_ARGUMENT", "INTERNAL")


def refined(exporting, compiling):
    """What `compiling` gives of a graph as `exporting` writes it, with as few nodes in Python as were found to do.

    exporting: of {node: reason}, the nodes that are to run in Python, an ExportedGraph.
    compiling: of that, a compiled graph. Raises what it raises where nothing helps."""
    refused = {}
    while True:
        exported = exporting(refused)
        try:
            return compiling(exported)
        except _C.ServiceError as error:
            code, message = error.args
            if code not in _REFUSALS:
                raise
            reason = fallback.reason_of_error(error)[0].removeprefix("unsupported: ")
            node = exported.node_in(message)
            if node is None or node in refused or len(refused) == _REFUSALS_MAX:
                compiled = _searched(exported, refused, reason, exporting, compiling)
                if compiled is None:
                    raise
                return compiled
            refused[node] = reason


def _searched(exported, refused, reason, exporting, compiling):
    """The graph with the smallest set of nodes in Python that was found to do; None where none was."""
    candidates = list(dict.fromkeys(node for node, _ in exported.nodes if node is not None and node not in refused))
    if not candidates or len(candidates) > _SEARCHED_NODES_MAX:
        return None

    def tried(nodes):
        try:
            return compiling(exporting({**refused, **dict.fromkeys(nodes, reason)}))
        except (_C.ServiceError, Unsupported):
            return None

    best, deadline = None, time.monotonic() + _SEARCH_SECONDS_MAX
    while len(candidates) > 1 and time.monotonic() < deadline:
        half, rest = candidates[:len(candidates) // 2], candidates[len(candidates) // 2:]
        compiled = tried(half)
        if compiled is None:
            half, compiled = rest, tried(rest) if len(rest) == 1 or best is None else best
        if compiled is None:
            return best  # more than one node is the cause
        best, candidates = compiled, half
    return best if best is not None else tried(candidates)
