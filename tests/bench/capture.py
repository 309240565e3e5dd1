"""Graphs that AOTAutograd handed a backend, read from files and made FX graphs again, for the CPU.

A file is JSON, gzipped: {"model", "task", "graphs": [{"kind": "forward" | "backward" | "inference", "nodes": […]}]}.
A node has name, op, target, args, kwargs and meta: {"dtype", "shape", "stride"} of its result, a list of these for
several results, {"sym", "hint"} for an integer that is symbolic, {"repr"} for another. Sizes are integers or
expressions over the symbols.
Among args {"n": name} is a node, {"f": text} a float, {"dtype"}, {"device"}, {"layout"}, {"memory_format"} by name.
"""
import dataclasses
import gzip
import json
import math
import operator
import re
from typing import Any

import torch
import torch._inductor.inductor_prims  # operators of captures that use Inductor's table
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

_KINDS = {"forward": 1, "backward": 2, "inference": 3}
_BUILTINS = {"getitem": operator.getitem, "mul": operator.mul, "add": operator.add, "sub": operator.sub,
             "mod": operator.mod, "neg": operator.neg, "floordiv": operator.floordiv}
# What torch prints in sizes.
_FUNCTIONS = {"Mod": operator.mod, "Max": torch.sym_max, "Min": torch.sym_min, "IntTrueDiv": operator.truediv,
              "CeilToInt": math.ceil}


@dataclasses.dataclass
class Capture:
    model: str
    task: str
    kind: int  # FORWARD, BACKWARD or INFERENCE of kiln.graph
    module: fx.GraphModule  # every node has a fake tensor or a symbolic integer in meta["val"]
    inputs: list[Any]  # those of the placeholders
    node_count: int  # that compute: placeholders and the output are not counted


def read(path: str) -> list[Capture]:
    """The Captures of a file. Raises ValueError with the node's name where it names what torch does not know."""
    with gzip.open(path) as file:
        document = json.load(file)
    return [_Reader(document, graph).read() for graph in document["graphs"]]


class _Reader:
    def __init__(self, document: dict[str, Any], graph: dict[str, Any]) -> None:
        self._document, self._document_graph = document, graph
        self._graph = fx.Graph()
        self._owner = torch.nn.Module()
        self._nodes: dict[str, fx.Node] = {}
        self._symbols: dict[str, Any] = {}
        self._shape_env = ShapeEnv()
        self._mode = FakeTensorMode(shape_env=self._shape_env)

    def read(self) -> Capture:
        described = self._document_graph["nodes"]
        for node in described:
            self._declare(node["meta"])
        for node in described:
            try:
                self._nodes[node["name"]] = self._node(node)
            except (AttributeError, KeyError, TypeError, NameError) as error:
                raise ValueError(f"node {node['name']} ({node['target']}): {error}") from error
        module = fx.GraphModule(self._owner, self._graph)
        inputs = [node.meta["val"] for node in self._graph.nodes if node.op == "placeholder"]
        computing = sum(node.op == "call_function" for node in self._graph.nodes)
        return Capture(self._document["model"], self._document["task"], _KINDS[self._document_graph["kind"]], module,
                       inputs, computing)

    def _declare(self, meta: Any) -> None:
        """A symbol stands by itself in the graph's inputs; its hint is there."""
        if isinstance(meta, dict) and re.fullmatch(r"[a-z]+\d+", str(meta.get("sym", ""))):
            name = meta["sym"]
            if name not in self._symbols:
                source = ConstantSource(name)
                symbol = self._shape_env.create_symbol(meta["hint"], source, DimDynamic.DYNAMIC)
                self._symbols[name] = self._shape_env.create_symintnode(symbol, hint=meta["hint"], source=source)

    def _node(self, node: dict[str, Any]) -> fx.Node:
        arguments = tuple(self._argument(value) for value in node["args"])
        if node["op"] == "output":
            result: fx.Node = self._graph.output(arguments[0])
            return result
        if node["op"] == "placeholder":
            made = self._graph.placeholder(node["name"])
        elif node["op"] == "get_attr":
            value = torch.zeros(node["meta"]["shape"], dtype=getattr(torch, node["meta"]["dtype"]))
            setattr(self._owner, node["target"], value)
            made = self._graph.get_attr(node["target"])
        else:
            keywords = {key: self._argument(value) for key, value in node["kwargs"].items()}
            made = self._graph.create_node("call_function", self._target(node["target"]), arguments, keywords)
        made.meta["val"] = self._value(node["meta"])
        return made

    @staticmethod
    def _target(name: str) -> Any:
        builtin = re.fullmatch(r"<built-in function (\w+)>", name)
        if builtin:
            return _BUILTINS[builtin[1]]
        space, packet, overload = name.split(".")
        return getattr(getattr(getattr(torch.ops, space), packet), overload)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._argument(part) for part in value]
        if not isinstance(value, dict):
            return value
        (kind, text), = value.items()
        if kind == "n":
            return self._nodes[text]
        if kind == "f":
            return float(text)
        if kind == "sym":
            return self._size(text)
        if kind == "device":
            return torch.device("cpu")
        if kind in ("dtype", "layout", "memory_format"):
            return getattr(torch, text.removeprefix("torch."))
        raise TypeError(f"an argument of kind {kind}")

    def _size(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return eval(value, {"__builtins__": {}}, {**_FUNCTIONS, **self._symbols})  # arithmetic on SymInt

    def _value(self, meta: Any) -> Any:
        if meta is None:
            return None
        if isinstance(meta, list):
            return [self._value(part) for part in meta]
        if "sym" in meta:
            return self._size(meta["sym"])
        if "repr" in meta:
            return int(meta["repr"])
        with self._mode:
            return torch.empty_strided([self._size(part) for part in meta["shape"]],
                                       [self._size(part) for part in meta["stride"]],
                                       dtype=getattr(torch, meta["dtype"]), device="cpu")
