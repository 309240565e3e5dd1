"""A torch.compile backend that runs kiln's passes and evaluates the core graph with PyTorch, node by node.

It shows whether decompositions mean what the operators mean, without lowering, kernels or a daemon.
"""
import functools
import json
import os
import pathlib
import struct
import subprocess
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from kiln import decompositions, graph as exporter
from kiln.exported_graph import ExportedGraph

_DTYPES = [None, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
           torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
_MEMORY_FORMATS = [torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d]

# Functions of kiln's own in core graphs, as their names say.
_OWN = torch.library.Library("kiln", "FRAGMENT")
for _name, _function in {"one_plus_erf": lambda x: 1 + torch.erf(x), "one_plus_tanh": lambda x: 1 + torch.tanh(x),
                         "softmax_exp": torch.exp}.items():
    _OWN.define(f"{_name}(Tensor self) -> Tensor")
    _OWN.impl(_name, _function, "CompositeImplicitAutograd")


def binary() -> pathlib.Path:
    """build/bin/graph_passes, or where KILN_BUILD says."""
    root = pathlib.Path(__file__).resolve().parents[2]
    return pathlib.Path(os.environ.get("KILN_BUILD", root / "build")) / "bin" / "graph_passes"


@functools.cache
def _process() -> subprocess.Popen[bytes]:
    return subprocess.Popen([str(binary())], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def run_passes(message: bytes) -> dict[str, Any]:
    """The core graph of a v1.Graph message, as the program prints it."""
    process = _process()
    assert process.stdin and process.stdout
    process.stdin.write(struct.pack("<I", len(message)) + message)
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        _process.cache_clear()
        raise RuntimeError("graph_passes ended without an answer")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer


def _names(symbols: list[int]) -> dict[str, Any]:
    names = {f"s{number}": value for number, value in enumerate(symbols)}
    return names | {"ceildiv": lambda a, b: -(-a // b), "where": lambda c, a, b: a if c else b}


class CoreProgram:
    """A core graph that can be called with the captured graph's inputs."""

    def __init__(self, exported: ExportedGraph) -> None:
        self.core = run_passes(exported.graph)
        self.constants = exported.constants
        self.bindings = exported.hints
        self.targets = [node["target"] for node in self.core["nodes"]]

    def __call__(self, inputs: list[Any], symbols: list[int]) -> list[Any]:
        names = _names([symbols[original] for original in self.core["symbols"]])

        def number(text: str) -> Any:
            return eval(text, {"__builtins__": {"min": min, "max": max, "pow": pow}}, names)  # our own output

        values = {}
        for identifier, value in zip(self.core["inputs"], [*inputs, *self.constants]):
            if identifier is not None:
                values[identifier] = value
        for node in self.core["nodes"]:
            self.run(node, values, number)
        results = []
        for output in self.core["outputs"]:
            if isinstance(output, dict):
                results.append(number(output["int"]))
            else:
                results.append(None if output is None else values[output])
        return results

    def run(self, node: dict[str, Any], values: dict[int, Any], number: Callable[[str], Any]) -> None:
        namespace, name, overload = node["target"].split(".")
        if name == "view" and overload == "default":
            name = "reshape"  # a core view is of any layout
        operator = getattr(getattr(getattr(torch.ops, namespace), name), overload)
        schema = {argument.name: argument for argument in operator._schema.arguments}
        arguments = {}
        for key, (kind, value) in node["args"].items():
            key = "shape" if name == "reshape" and key == "size" else key
            arguments[key] = self.argument(kind, value, str(schema[key].type), values, number)
        for key, argument in schema.items():  # None is left out of the message
            if key not in arguments and not argument.has_default_value():
                arguments[key] = None
        results = operator(**arguments)
        if results is None:  # an assertion's
            results = []
        results = results if isinstance(results, (list, tuple)) else [results]
        for declared, result in zip(node["results"], results, strict=True):
            if declared is None:
                continue
            identifier, dtype, sizes, strides = declared
            sizes, strides = [number(size) for size in sizes], [number(stride) for stride in strides]
            assert list(result.shape) == sizes, f"{node['target']} gave {list(result.shape)}, declared {sizes}"
            result = result.to(_DTYPES[dtype])
            if list(result.stride()) != strides and 0 not in strides:
                result = torch.empty_strided(sizes, strides, dtype=result.dtype).copy_(result)
            values[identifier] = result

    @staticmethod
    def argument(kind: str, value: Any, schema_type: str, values: dict[int, Any], number: Callable[[str], Any]) -> Any:
        if kind == "tensor":
            return values[value]
        if kind == "tensors":
            return [None if part is None else values[part] for part in value]
        if kind in ("int", "float", "bool"):
            scalar = number(value) if kind == "int" else float(value) if kind == "float" else value
            return torch.tensor(scalar) if "Tensor" in schema_type else scalar
        if kind == "ints":
            return [number(part) for part in value]
        if kind == "floats":
            return [float(part) for part in value]
        if kind == "dtype":
            return _DTYPES[value]
        if kind == "memory_format":
            return _MEMORY_FORMATS[value]
        if kind == "device":
            return torch.device("cpu")
        return value


def _symbols(module: fx.GraphModule, inputs: list[Any]) -> list[int]:
    """Value of every symbol, in the order in which the exporter declares them."""
    found: dict[Any, int] = {}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, inputs):
        meta = node.meta["val"]
        pairs: list[tuple[Any, Any]] = [(meta, value)] if isinstance(meta, torch.SymInt) else []
        if isinstance(meta, torch.Tensor):
            pairs = [*zip(meta.shape, value.shape), *zip(meta.stride(), value.stride())]
        for symbol, concrete in pairs:
            if isinstance(symbol, torch.SymInt) and symbol.node.expr.is_symbol:
                found.setdefault(symbol.node.expr, int(concrete))
    return list(found.values())


seen_targets: set[str] = set()


def _compiler(module: fx.GraphModule, _inputs: object, kind: int) -> Callable[..., Any]:
    program = CoreProgram(exporter.export(module, kind))
    seen_targets.update(program.targets)

    def run(inputs: list[Any]) -> list[Any]:
        arguments = list(inputs)
        inputs.clear()
        return program(arguments, _symbols(module, arguments))

    boxed: Any = run
    boxed._boxed_call = True
    return run


def backend(module: fx.GraphModule, inputs: list[Any]) -> Any:
    compilers = {name: functools.partial(_compiler, kind=kind)
                 for name, kind in (("fw_compiler", 1), ("bw_compiler", 2), ("inference_compiler", 3))}
    return aot_autograd(**compilers, decompositions={}, partition_fn=decompositions.partition)(module, inputs)
