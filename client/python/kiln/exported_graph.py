"""What export (graph.py) makes of a graph: the messages, and what the client has to do around the program's runs."""
from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch import fx

from .python_calls import PythonPart
from .size_numbers import Place


@dataclasses.dataclass
class ExportedGraph:
    graph: bytes  # v1.Graph, not yet in normal form
    facts: bytes  # v1.GraphFacts
    notes: bytes  # v1.GraphNotes
    hints: list[int]  # value of every symbol at this call, in symbol order; of an unbacked one an assumption
    unbacked: set[sympy.Symbol]  # of torch's symbols, those of which no call before has known anything
    symbols: list[sympy.Symbol]  # torch's, in symbol order
    constants: list[torch.Tensor]  # that follow the graph's own inputs on every call
    output_count: int
    other_outputs: list[tuple[int, Any]]  # (position, value or function of the inputs) of what the program lacks
    truths: list[int]  # positions of outputs that the program gives as 0 or 1
    float_inputs: list[int]  # positions of numbers that the program takes as tensors of one float64
    to_cpu: list[int]  # positions of outputs that the program leaves on the GPU and the graph has on the CPU
    more_sizes: list[Place]  # of the integers that follow the graph's inputs, before the constants
    python: PythonPart | None  # what runs in Python, in the middle of the program
    nodes: list[tuple[fx.Node | None, str]]  # (node of the graph as it was given, target) by node of the message
    # Node of the graph as it was given -> why Python runs it.
    refused: Mapping[fx.Node, str] = dataclasses.field(default_factory=dict)

    def node_in(self, message: str) -> fx.Node | None:
        """The node that an error of the service is about; None where it names none."""
        for pattern, certain in ((_NODE_AND_TARGET, True), (_TARGET_OF_NODE, False)):
            for number, target in pattern.findall(message):
                node, written = self.nodes[int(number)] if int(number) < len(self.nodes) else (None, "")
                # Some errors number the nodes of a later stage; those agree in nothing but by chance.
                if node is not None and (certain or target == written):
                    return node
        return None


_NODE_AND_TARGET = re.compile(r"\(node (\d+), ([\w.]+)\)")
_TARGET_OF_NODE = re.compile(r"\bnode (\d+) \(([\w.]+)\)")
